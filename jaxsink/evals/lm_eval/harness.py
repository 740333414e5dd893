"""The model `jaxsink` of lm-evaluation-harness (extra `eval`): importing this module registers it.

    jaxsink lm-eval --model jaxsink --model_args pretrained=mini-llama,max_new_tokens=32 --tasks gsm8k --batch_size 32

lm-eval has no plug-ins for models, so its own command does not find this one; `jaxsink lm-eval` is that command after the
import. In Python, `import jaxsink.evals.lm_eval.harness` does the same for `lm_eval.simple_evaluate(model="jaxsink", …)`.

Texts are generated and cut as `jaxsink evaluate` does it, with the same seeds, so that scores are the same.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.checkpoints.load import load, sampler_for
from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import batch_size as size_of
from jaxsink.evals.batching import buckets, full_batches, round_up
from jaxsink.evals.likelihood.scoring import Likelihood, Pair, Scoring, likelihoods, share_of
from jaxsink.evals.lm_eval.answers import Answers
from jaxsink.evals.lm_eval.options import Request, make_sampler, parse_options
from jaxsink.nn.fingerprint import fingerprint
from jaxsink.nn.quantization import weights_dtype
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.mesh import mesh_from
from jaxsink.runs.progress import progress
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import before_end, end_ids
from jaxsink.tasks.exam import BUCKET
from jaxsink.tasks.extract import truncate
from jaxsink.text import chat

ROWS = 32  # of a batch where lm-eval is told "auto"
PART = 16  # batches of likelihoods, after which they are kept
REPEAT = 1_000_003  # between the seeds of two texts for the same question

log = logging.getLogger(__name__)


@register_model("jaxsink")
class JaxsinkLM(TemplateLM):
    """A checkpoint, or a built-in model by name, with its sampler and, if asked, its sinks masked.

    pretrained     a converted checkpoint, a Hugging Face directory, or mini-llama, mini-llada, mini-dream
    dtype, mesh    as `jaxsink evaluate` has them: mesh=1x8 cuts the weights over eight devices, 8x1 the batch
    max_length     of prompt and response; longer prompts lose their beginning (default: what the model was made for)
    mc_num         canvases per answer for the likelihood of a diffusion model
    check_greedy   whether to find out, for likelihoods, if the model would write the answer itself
    seed           of all draws; each question adds its number in the task
    setting        decode as this setting of `jaxsink evaluate` says
    chat_template  the template's name in jaxsink.text.chat, where the tokenizer's files do not tell
    out            directory of a run: answers are kept there as they come, and the same command goes on with them
    add_bos_token  whether texts get the tokenizer's special tokens (default: unless they begin with bos)
    options        of the sampler and of the masking: see jaxsink.evals.lm_eval.options
    """

    def __init__(
        self,
        pretrained: str,
        dtype: str | None = None,
        mesh: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        mc_num: int = 128,
        check_greedy: bool = True,
        seed: int = 0,
        setting: str | None = None,
        chat_template: str | None = None,
        add_bos_token: bool | None = None,
        out: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        del max_batch_size, device  # lm-eval passes them to every model; JAX uses the devices that it finds
        for name, value in (("max_length", max_length), ("mc_num", mc_num), ("seed", seed)):
            if value is not None and not isinstance(value, int):
                raise JaxsinkError(f"the model argument {name} takes a whole number, not {value!r}.")
        own_mesh = None if mesh is None else mesh_from(str(mesh))
        self.model = load(pretrained, dtype=dtype, mesh=own_mesh)
        self.config = self.model.config
        self.text = self.model.tokenizer
        self.sampler = sampler_for(self.model)
        self.source = str(pretrained)
        self.options = parse_options(options, self.config, setting)
        self.rows = parse_rows(batch_size)
        self.seed = seed
        self.max_length = self.config.max_positions if max_length is None else max_length
        self.template = chat_template
        self.add_bos_token = add_bos_token
        self.has_cut = False
        guidance = self.options.decoding.get("cfg_scale", 0.0)
        self.scoring = Scoring(mc_num, self.rows, seed, BUCKET, guidance, self.options.masking, check_greedy)
        # wrong options are found now, not after the tasks are loaded
        make_sampler(self.config, self.sampler, self.options, Request())
        self.answers = Answers(None if out is None else local(out, "out"), {} if out is None else self.identity())

    def identity(self) -> JsonObject:
        """What all answers depend on, beside the question itself."""
        scoring = replace(self.scoring, intervene=None, rows=1, check_greedy=True)  # the others change no result
        masking = None if self.options.masking is None else asdict(self.options.masking)
        weights = {"fingerprint": fingerprint(self.model), "dtype": weights_dtype(self.model)}
        return {"model": weights, "masking": masking, "likelihoods": asdict(scoring)}

    # Text and tokens

    @property
    def eot_token_id(self) -> int:
        ends = (*self.config.eos_ids, self.text.special.get("eos"))
        found = next((token for token in ends if token is not None), None)
        if found is None:
            raise JaxsinkError(f"neither {self.source} nor its tokenizer names an end token, which lm-eval needs.")
        return found

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has nothing before it."""
        return self.text.special.get("bos", self.eot_token_id)

    @property
    def tokenizer_name(self) -> str:
        return self.source.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """With the special tokens that the tokenizer adds, unless the text brings them, as from a chat template."""
        if add_special_tokens is None:
            add_special_tokens = self.add_bos_token
        ids = self.text.encode(string)
        if add_special_tokens is None:
            add_special_tokens = not ids or ids[0] != self.text.special.get("bos")
        return self.text.encode(string, add_special_tokens=True) if add_special_tokens else ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template for lm-eval's records; its name, given to --apply_chat_template, chooses it."""
        if isinstance(chat_template, str):
            self.template = chat.get(chat_template).name
        return json.dumps(asdict(self.text.chat_form(self.template))) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text. Without the generation prompt, the last message is an answer to be continued."""
        form = self.text.chat_form(self.template)
        if add_generation_prompt:
            return chat.render(chat_history, form)
        *before, last = chat_history
        begun = last["content"].strip() if "assistant" in form.strip else last["content"]
        return chat.render(before, form) + begun

    # Likelihoods

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [self.fitting(context, answer) for _, context, answer in requests]
        return [(found.log_prob, found.is_greedy) for found in self.likelihoods(pairs, self.scoring)]

    def likelihoods(self, pairs: Sequence[Pair], scoring: Scoring) -> list[Likelihood]:
        def ask(numbers: Sequence[int]) -> Iterator[dict[int, Likelihood]]:
            """All at once, or where they are kept in parts, pairs of a length together."""
            by_length = sorted(numbers, key=lambda number: sum(map(len, pairs[number])))
            size = len(numbers) if self.answers.folder is None else PART * self.rows
            parts = [by_length[first : first + size] for first in range(0, len(numbers), max(1, size))]
            with progress([len(part) for part in parts]) as (begin, end):
                for part in parts:
                    begin("likelihoods")
                    yield dict(zip(part, likelihoods(self.model, [pairs[n] for n in part], scoring), strict=True))
                    end()

        found = self.answers.complete([[*pair, scoring.check_greedy] for pair in pairs], ask)
        return [Likelihood(*one) for one in found]

    def fitting(self, context: list[int], answer: list[int]) -> Pair:
        """As much of the context as the model has room for."""
        room = self.max_length - len(answer)
        if room < 1:
            raise JaxsinkError(f"an answer of {len(answer)} tokens does not fit max_length {self.max_length}.")
        return Pair(self.end_of(context, room), tuple(answer))

    def end_of(self, ids: Sequence[int], room: int) -> tuple[int, ...]:
        if len(ids) > room and not self.has_cut:
            self.has_cut = True
            log.warning(
                "prompts are cut: one of %d tokens to its last %d (max_length %d)", len(ids), room, self.max_length
            )
        return tuple(ids[-room:])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Whole texts, window by window, each window with one token before it."""
        owners, pairs = [], []
        for number, request in enumerate(requests):
            ids = self.text.encode(request.args[0])
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, context_len=1):
                context, answer = make_disjoint_window(window)
                owners.append(number)
                pairs.append(Pair(tuple(context), tuple(answer)))
        found = self.likelihoods(pairs, replace(self.scoring, check_greedy=False))
        sums = np.bincount(owners, [one.log_prob for one in found], minlength=len(requests)) if pairs else None
        return [0.0] * len(requests) if sums is None else [float(value) for value in sums]

    # Generation

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The texts, in order; each up to its first end token or stop sequence."""
        asked = list(self.writings(requests))

        def ask(numbers: Sequence[int]) -> Iterator[dict[int, str]]:
            for texts in self.write([asked[number] for number in numbers]):
                for number, text in texts.items():  # for lm-eval's own --use_cache
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
                yield texts

        return self.answers.complete([one.question for one in asked], ask)

    def write(self, asked: Sequence[Writing]) -> Iterator[dict[int, str]]:
        """The texts of one batch after the other."""
        found = buckets(asked, lambda one: (one.width, one.sampler.response_length, repr(one.sampler)))
        share = share_of(self.model)
        jobs = [job for _, bucket in found for job in full_batches(bucket, size_of(len(bucket), self.rows, share))]
        with progress([(batch[0].width + batch[0].sampler.response_length) * len(batch) for batch, _ in jobs]) as (
            begin,
            end,
        ):
            for batch, real in jobs:
                begin(f"texts, prompts of up to {batch[0].width} tokens")
                out = generate(
                    self.model,
                    [list(one.prompt) for one in batch],
                    batch[0].sampler,
                    intervene=self.options.masking,
                    seed=[one.seed for one in batch],
                    pad_to=BUCKET,
                )
                yield {
                    one.number: truncate(self.text.decode(before_end(ids, end_ids(self.config))), one.until)
                    for one, ids in list(zip(batch, to_host(out.response).tolist(), strict=True))[:real]
                }
                end()

    def writings(self, requests: Sequence[Any]) -> Iterator[Writing]:
        """Requests ready to run. A question's seed is that of `jaxsink evaluate`, and another one when it is asked again."""
        before: Counter[tuple[int, str]] = Counter()
        for number, request in enumerate(requests):
            context, wanted = request.args[0], Request.parse(request.args[1])
            sampler = make_sampler(self.config, self.sampler, self.options, wanted)
            room = self.max_length - sampler.response_length
            if room < 1:
                raise JaxsinkError(
                    f"a response of {sampler.response_length} tokens leaves no room for a prompt in max_length "
                    f"{self.max_length}."
                )
            question = request.doc_id or 0
            seed = self.seed + question + REPEAT * before[question, context]
            before[question, context] += 1
            prompt = self.end_of(self.tok_encode(context) or [self.prefix_token_id], room)
            yield Writing(number, prompt, sampler, seed, wanted.until)


class Writing(NamedTuple):
    """A text that is asked for."""

    number: int  # of the request
    prompt: tuple[int, ...]
    sampler: Any
    seed: int
    until: tuple[str, ...]

    @property
    def question(self) -> list[Any]:
        """All that decides the text, beside the model."""
        return [self.prompt, repr(self.sampler), self.seed, self.until]

    @property
    def width(self) -> int:
        """Of the padded prompt."""
        return round_up(len(self.prompt), BUCKET)


def parse_rows(size: int | str) -> int:
    """lm-eval's --batch_size."""
    if str(size).startswith("auto"):
        return ROWS
    if not str(size).isdecimal() or int(size) < 1:
        raise JaxsinkError(f"--batch_size takes a number of sequences, or auto, not {size!r}.")
    return int(size)
