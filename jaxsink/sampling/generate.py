"""`generate`: prompts in, text and attention statistics out, from one compiled program per shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from jaxtyping import PyTree
from numpy.typing import ArrayLike

from jaxsink.checks import check_value
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.edits import Edit
from jaxsink.nn.placed import Course, place_edits
from jaxsink.nn.recorder import given_arrays
from jaxsink.nn.transformer import Transformer
from jaxsink.parallel.mesh import Device, mesh_of
from jaxsink.parallel.pmap import check_devices
from jaxsink.sampling import interventions
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.execution import Program
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.inputs import Start, pad_prompts, policy_numbers
from jaxsink.sampling.interventions import Intervention
from jaxsink.sampling.prompts import Prompts, encode_prompts
from jaxsink.sampling.run import RunSpec
from jaxsink.sampling.run_options import Options, RunOptions
from jaxsink.sampling.whole_run import whole_run
from jaxsink.zoo.recommend import model_sampler


def generate(
    model: Transformer,
    prompts: Prompts,
    sampler: Sampler | None = None,
    mask: ArrayLike | None = None,
    record: PyTree = None,
    intervene: Intervention | Edit | Sequence[Intervention | Edit] | None = None,
    seed: int | Sequence[int] = 0,
    *,
    chat: bool = False,
    **options: Unpack[Options],
) -> Generation:
    """Generate from prompts, and return attention statistics of every step along with the tokens.

    Args:
        prompts: a text or a list of texts, for the model's own tokenizer; or int[B,P], left-padded where `mask`
            bool[B,P] says so; or a list of lists of ids. Masks inside are filled.
        sampler: LLaDASampler, DreamSampler, SDARSampler … or your own; None takes what the model recommends
        record: recorders, as for `forward`; see also jaxsink.reduce
        intervene: a function of the previous step that names the keys to hide (jaxsink.sinks), an edit of what is at a tap
            (jaxsink.edit), or a list of edits, with such a function among them
        seed: one for all sequences, or one each; draws do not depend on batch or padding
        chat: put texts into the model's chat template

    Keyword Args:
        every: record every n-th step only
        stream: move records to the host after every n steps, so that the device holds those of n steps at most
        pad_to: pad prompts to a multiple of this, so that prompts of many lengths share a compiled program
        backend: of the attention, as for `forward`
        draws: recorded uniform draws to replay: {"token": [T,B,S,V], "remask": [T,B,S], "transfer": [T,B,S]}
        force: ids per sequence that an autoregressive model has to write first; `log_prob` says how likely they were
        edit_logits: traceable f(step, logits f32[B,W,V], position i32[B,W]) -> logits, before a diffusion sampler decides
        edit_tokens: the same of tokens i32[B,S], before the first step (step = -1) and after each
        listener: called after every `stream` steps: f(steps done, tokens, committed_at), or f(…, their record)
        devices: deal the sequences out over these devices by pmap; a model on a mesh uses that instead (docs/numerics.md)
        policies: which of the intervention's policies each sequence follows (sinks.Turns); None takes them in turns
        targets: int[B,S], the tokens that `record.lens(rank=True)` ranks; None runs twice, for those that the run writes

    Examples:
        >>> jaxsink.generate(model, [question, question[:34]], sampler).texts[0] == out.text  # padding changes nothing
        True
        >>> hidden = jaxsink.generate(model, question, sampler, intervene=jaxsink.sinks.MaskSinks(k=1))
        >>> hidden.tokens.shape == out.tokens.shape
        True
    """
    check_value("generate: model", model, Transformer)
    check_value("generate: chat", chat, bool)
    config, how = model.config, RunOptions.make(options)
    sampler = model_sampler(model) if sampler is None else sampler
    intervene, edits = apart(intervene)
    check_run(config, sampler, intervene, how)
    tokens, real = pad_prompts(config, encode_prompts(model, prompts, mask, chat), mask, how.pad_to)
    start = Start.make(config, sampler, tokens, real, padded=how.pad_to is not None, force=how.force)
    policy = policy_numbers(how.policies, len(tokens), interventions.policy_count(intervene))
    interventions.check(intervene, config, sampler, start.mask.sum(axis=1), policy)
    spec = make_spec(model, sampler, start, record, intervene, how)._replace(edits=bool(edits))
    course = Course(spec.total_steps, spec.prompt_length - 1 if sampler.is_autoregressive else None)
    edits = place_edits(edits, config, start.mask, course)
    program = Program(model, sampler, spec, chosen_devices(how, spec, len(tokens)))
    return whole_run(program, start, how, seed=seed, policy=policy, edits=edits, tuned=given_arrays(record))


def apart(
    intervene: Intervention | Edit | Sequence[Intervention | Edit] | None,
) -> tuple[Intervention | None, tuple[Edit, ...]]:
    """(what hides keys, what edits taps)."""
    given = intervene if isinstance(intervene, (list, tuple)) else () if intervene is None else (intervene,)
    hiding: list[Intervention] = [one for one in given if not isinstance(one, Edit)]  # pyright: ignore[reportAssignmentType]
    if len(hiding) > 1:
        raise JaxsinkError(f"intervene takes any number of edits, but only one that hides keys, not {len(hiding)}.")
    return hiding[0] if hiding else None, tuple(one for one in given if isinstance(one, Edit))


def chosen_devices(how: RunOptions, spec: RunSpec, count: int) -> tuple[Device, ...] | None:
    """Devices for pmap, no more than there are sequences; None: the default one, or the model's mesh."""
    if how.devices is None:
        return None
    if spec.mesh is not None:
        raise JaxsinkError("this model lies on a mesh, which places the sequences as well; leave devices out.")
    return check_devices(how.devices)[:count]


def check_run(config: ModelConfig, sampler: Sampler, intervene: Intervention | None, how: RunOptions) -> None:
    """One sentence about the first thing that cannot be."""
    if isinstance(sampler, type):
        raise JaxsinkError(f"sampler is the class {sampler.__name__}; give one of its objects, {sampler.__name__}(…).")
    if not isinstance(sampler, Sampler):
        raise JaxsinkError(
            "sampler must be a LLaDASampler, DreamSampler, ARSampler or another one, or None for the one that the model "
            f"recommends, not {type(sampler).__name__}: {sampler!r}."
        )
    Sampler.check(sampler, config)  # also one of the caller's own, whose `check` may not begin with it
    sampler.check(config)
    interventions.check(intervene, config, sampler)
    if sampler.is_autoregressive and (how.edit_logits is not None or how.edit_tokens is not None):
        raise JaxsinkError("edit_logits and edit_tokens are for diffusion samplers.")
    if how.force is not None and not sampler.is_autoregressive:
        raise JaxsinkError("force is for autoregressive models; masks in the prompt make a diffusion model fill gaps.")


def make_spec(
    model: Transformer,
    sampler: Sampler,
    start: Start,
    record: PyTree,
    intervene: Intervention | None,
    how: RunOptions,
) -> RunSpec:
    if start.infill and sampler.cache is not None:
        raise JaxsinkError("masks inside the prompt cannot be filled with a cache.")
    if start.infill and not sampler.infills:
        raise JaxsinkError(
            f"masks stand in the prompt, and {type(sampler).__name__} cannot fill them with these settings: take them out, "
            "or choose a sampler that does, such as LLaDASampler or MDLMSampler."
        )
    spec = RunSpec.make(
        model.config,
        record,
        intervene,
        every=how.every,
        prompt_length=start.prompt_length,
        length=start.canvas.shape[1],
        total_steps=sampler.total_steps(start.masks),
        backend=how.backend,
        mesh=mesh_of(model),
    )
    return spec._replace(
        infill=start.infill,
        edit_logits=how.edit_logits,
        edit_tokens=how.edit_tokens,
        forced=how.force is not None,
    )
