"""The arguments of `--model jaxsink` in lm-evaluation-harness: which ones there are, and what they become.

    decoding     the fields of the model's sampler: steps, block_length, temperature, top_p, alg … or setting=NAME for those
                 of a setting of `jaxsink evaluate`
    masking      the fields of MaskSinks: k, select, rule, rank_on, per, layers, spare, positions, keep, factor, share,
                 rows, sink_eps

What the model arguments say goes first, then what the task asks for (its generation_kwargs, or --gen_kwargs), then what
the model recommends (`jaxsink.sampler_for`). So a task's `temperature: 0.0` does not undo the temperature of a setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.evals.settings import get_setting
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import sampler_kind
from jaxsink.sinks.mask import MaskSinks

LENGTHS = ("gen_length", "max_new_tokens")  # both names are taken, whatever the sampler calls it
TASK_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")
LISTS = ("layers", "positions")
KINDS = {"k": int, "spare": int, "eps": (int, float), "factor": (int, float), "share": float, "keep": bool}


@dataclass(frozen=True)
class Options:
    """decoding: for the sampler, but for the length. length: of a response; None leaves it to the task."""

    decoding: Mapping[str, Any]
    length: int | None
    masking: MaskSinks | None


def parse_options(given: Mapping[str, Any], config: ModelConfig, setting: str | None = None) -> Options:
    """Sort the arguments out; one that nothing knows is an error."""
    kind = sampler_kind(config)
    decoding_names = {*kind.settings(), *LENGTHS}
    masking_names = {field.name for field in fields(MaskSinks)} - {"eps"} | {"sink_eps"}
    for name in given:
        if name not in decoding_names | masking_names:
            known = ", ".join(sorted(decoding_names | masking_names))
            raise JaxsinkError(
                f"--model jaxsink has no argument {name!r} for {a_model(config.family)}; it has {known}."
            )
    decoding = setting_options(setting, kind) | {name: given[name] for name in given if name in decoding_names}
    lengths = {decoding.pop(name) for name in LENGTHS if name in decoding}
    if len(lengths) > 1:
        raise JaxsinkError(f"{' and '.join(LENGTHS)} are two names of one thing; give one of them.")
    length = next(iter(lengths), None)
    if length is not None and (not isinstance(length, int) or length < 1):
        raise JaxsinkError(f"the length of a response must be a whole number above 0, not {length!r}.")
    masking = {name: given[name] for name in given if name in masking_names}
    return Options(decoding, length, parse_masking(masking))


def setting_options(name: str | None, kind: type[Sampler]) -> dict[str, Any]:
    """How the setting of that name decodes."""
    if name is None:
        return {}
    setting = get_setting(name)
    if setting.sampler_kind is not kind:
        raise JaxsinkError(f"the setting {name} is decoded by another kind of model; choose the setting of your model.")
    return dict(setting.options)


def parse_masking(given: Mapping[str, Any]) -> MaskSinks | None:
    """The policy; None where nothing is to be hidden."""
    values = {("eps" if name == "sink_eps" else name): value for name, value in given.items()}
    for name in LISTS:
        if values.get(name) is not None:
            values[name] = parse_numbers(name, values[name])
    for name, kinds in KINDS.items():
        value = values.get(name)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
            raise JaxsinkError(f"the model argument {name} has the wrong kind of value: {value!r}.")
    hides = values.keys() & {"k", "share", "positions"} or values.get("rule") == "threshold"
    if values and not hides:
        raise JaxsinkError(f"{next(iter(given))} says how sinks are masked, but not that they are; add k=1, say.")
    if not values or (values.get("k") == 0 and len(values.keys() & {"positions", "rule", "keep"}) == 0):
        return None
    return MaskSinks(**values)


def parse_numbers(name: str, value: Any) -> tuple[int, ...]:
    """Numbers joined by + (commas part the model arguments), one number, or a list."""
    parts = list(value) if isinstance(value, (list, tuple)) else str(value).split("+")
    if not parts or not all(re.fullmatch(r"\d+", str(part).strip()) for part in parts):
        raise JaxsinkError(f"the model argument {name} takes whole numbers joined by +, such as 0+1+2, not {value!r}.")
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Request:
    """What a task asks of a text: where it ends, and how it is drawn."""

    until: tuple[str, ...] = ()
    length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Request:
        """From generation_kwargs. A draw without a temperature has 1, no draw has 0, as in the other models of lm-eval."""
        left = dict(given)
        until = left.pop("until", None) or []
        lengths = [left.pop(name) for name in TASK_LENGTHS if name in left]
        draws, temperature = left.pop("do_sample", None), left.pop("temperature", None)
        top_p, top_k = left.pop("top_p", None), left.pop("top_k", None)
        if left.pop("num_beams", 1) != 1 or left:
            name = next(iter(left), "num_beams")
            raise JaxsinkError(f"the task asks for {name} in its generation_kwargs, which jaxsink does not have.")
        if draws is False:
            temperature = 0.0
        elif draws and temperature is None:
            temperature = 1.0
        if not temperature:
            top_p = top_k = None
        return cls(
            tuple([until] if isinstance(until, str) else until),
            lengths[0] if lengths else None,
            temperature,
            top_p,
            top_k,
        )


def make_sampler(config: ModelConfig, base: Sampler, options: Options, request: Request) -> Sampler:
    """The sampler for a request, checked: the model's own, `base`, with the fields that were asked for replaced."""
    names = base.settings()
    length = options.length or request.length
    asked = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k")}
    values = {name: value for name, value in asked.items() if value is not None and name in names}
    if request.temperature == 0:
        values |= {name: None for name in ("top_p", "top_k") if name in names}
    if length is not None:
        values[base.length_field] = length
    try:
        sampler = base if length is None else base.with_length(length)
        sampler = sampler.with_settings({**values, **options.decoding})
        sampler.check(config)
    except TypeError as error:
        raise JaxsinkError(f"a model argument has the wrong kind of value ({error}).") from error
    return sampler
