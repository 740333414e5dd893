"""jaxsink: attention sinks in masked diffusion and autoregressive language models, in JAX."""

from jaxsink import record
from jaxsink.checkpoint import load, save
from jaxsink.config import Experts, ModelConfig, RopeScaling
from jaxsink.errors import JaxsinkError
from jaxsink.model import Model, Output, abstract, forward, init
from jaxsink.presets import PRESETS, preset
from jaxsink.version import __version__



__all__ = [
    "PRESETS",
    "Experts",
    "JaxsinkError",
    "Model",
    "ModelConfig",
    "Output",
    "RopeScaling",
    "__version__",
    "abstract",
    "forward",
    "init",
    "load",
    "preset",
    "record",
    "save",
]
