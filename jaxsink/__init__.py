"""jaxsink: attention sinks in masked diffusion and autoregressive language models, in JAX.

Names are imported on first use, so that `import jaxsink` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxsink.version import __version__

if TYPE_CHECKING:
    from jaxsink import parallel, plots, record, reduce, sinks, stats
    from jaxsink.checkpoint import load, save
    from jaxsink.config import Experts, ModelConfig, RopeScaling
    from jaxsink.errors import JaxsinkError
    from jaxsink.model import Model, Output, abstract, forward, init
    from jaxsink.origin import Origin
    from jaxsink.presets import PRESETS, preset
    from jaxsink.reporting.own import report
    from jaxsink.sampling.generate import generate
    from jaxsink.sampling.generation import Generation
    from jaxsink.sampling.intervene import DropPositions
    from jaxsink.sampling.recommend import sampler_for
    from jaxsink.sampling.samplers import ARSampler, DreamSampler, LLaDASampler, SDARSampler
    from jaxsink.tokenizer import Tokenizer

_HOME = {
    "parallel": "jaxsink.parallel",
    "plots": "jaxsink.plots",
    "record": "jaxsink.record",
    "reduce": "jaxsink.reduce",
    "sinks": "jaxsink.sinks",
    "stats": "jaxsink.stats",
    "load": "jaxsink.checkpoint",
    "save": "jaxsink.checkpoint",
    "Experts": "jaxsink.config",
    "ModelConfig": "jaxsink.config",
    "RopeScaling": "jaxsink.config",
    "JaxsinkError": "jaxsink.errors",
    "Model": "jaxsink.model",
    "Output": "jaxsink.model",
    "abstract": "jaxsink.model",
    "forward": "jaxsink.model",
    "init": "jaxsink.model",
    "Origin": "jaxsink.origin",
    "PRESETS": "jaxsink.presets",
    "preset": "jaxsink.presets",
    "report": "jaxsink.reporting.own",
    "Generation": "jaxsink.sampling.generation",
    "generate": "jaxsink.sampling.generate",
    "DropPositions": "jaxsink.sampling.intervene",
    "sampler_for": "jaxsink.sampling.recommend",
    "ARSampler": "jaxsink.sampling.samplers",
    "DreamSampler": "jaxsink.sampling.samplers",
    "LLaDASampler": "jaxsink.sampling.samplers",
    "SDARSampler": "jaxsink.sampling.samplers",
    "Tokenizer": "jaxsink.tokenizer",
}

__all__ = [*_HOME, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'jaxsink' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if _HOME[name] == f"jaxsink.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
