"""jaxsink: attention sinks in masked diffusion and autoregressive language models, in JAX.

Names are imported on first use, so that `import jaxsink` and the command line start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxsink.version import __version__

if TYPE_CHECKING:
    from jaxsink import parallel, sinks
    from jaxsink.checkpoints.describe import describe
    from jaxsink.checkpoints.load import load, sampler_for, save
    from jaxsink.errors import JaxsinkError
    from jaxsink.evals import statistics as stats
    from jaxsink.evals.lm_eval.command import lm_eval
    from jaxsink.evals.prepare import evaluate
    from jaxsink.health.doctor import Health, doctor
    from jaxsink.nn import edits as edit
    from jaxsink.nn.config import Experts, ModelConfig, RopeScaling
    from jaxsink.nn.forward import forward
    from jaxsink.nn.new_model import abstract, init
    from jaxsink.nn.origin import Origin
    from jaxsink.nn.transformer import Model, Output
    from jaxsink.planner.plan import plan
    from jaxsink.plugins import convert, study
    from jaxsink.recording import recorders as record
    from jaxsink.recording import reductions as reduce
    from jaxsink.report import plots
    from jaxsink.report.own import show
    from jaxsink.report.write import report
    from jaxsink.sampling.ancestral import AncestralSampler
    from jaxsink.sampling.autoregressive import ARSampler
    from jaxsink.sampling.base import Sampler
    from jaxsink.sampling.diffusion import DiffusionSampler
    from jaxsink.sampling.dllm import BD3LMSampler, MDLMSampler
    from jaxsink.sampling.dream import DreamSampler
    from jaxsink.sampling.fast_dllm import FastDLLMv2Sampler
    from jaxsink.sampling.generate import generate
    from jaxsink.sampling.generation import Generation
    from jaxsink.sampling.gidd import GIDDSampler
    from jaxsink.sampling.interventions import DropPositions
    from jaxsink.sampling.llada import LLaDASampler
    from jaxsink.sampling.llada2 import LLaDA2Sampler
    from jaxsink.sampling.nemotron import NemotronSampler
    from jaxsink.sampling.respond import Response, respond
    from jaxsink.sampling.sdar import SDARSampler
    from jaxsink.sampling.speculation import SpeculativeSampler
    from jaxsink.text.tokenizer import Tokenizer
    from jaxsink.training.train import train
    from jaxsink.zoo.listing import models
    from jaxsink.zoo.presets import PRESETS, preset

_MODULES = {
    "edit": "jaxsink.nn.edits",
    "parallel": "jaxsink.parallel",
    "plots": "jaxsink.report.plots",
    "record": "jaxsink.recording.recorders",
    "reduce": "jaxsink.recording.reductions",
    "report": "jaxsink.report",
    "sinks": "jaxsink.sinks",
    "stats": "jaxsink.evals.statistics",
    "study": "jaxsink.study",
}
_HOME = {
    "describe": "jaxsink.checkpoints.describe",
    "load": "jaxsink.checkpoints.load",
    "save": "jaxsink.checkpoints.load",
    "Experts": "jaxsink.nn.config",
    "ModelConfig": "jaxsink.nn.config",
    "RopeScaling": "jaxsink.nn.config",
    "JaxsinkError": "jaxsink.errors",
    "evaluate": "jaxsink.evals.prepare",
    "lm_eval": "jaxsink.evals.lm_eval.command",
    "Model": "jaxsink.nn.transformer",
    "Output": "jaxsink.nn.transformer",
    "abstract": "jaxsink.nn.new_model",
    "forward": "jaxsink.nn.forward",
    "init": "jaxsink.nn.new_model",
    "Origin": "jaxsink.nn.origin",
    "plan": "jaxsink.planner.plan",
    "Health": "jaxsink.health.doctor",
    "doctor": "jaxsink.health.doctor",
    "convert": "jaxsink.plugins",
    "PRESETS": "jaxsink.zoo.presets",
    "preset": "jaxsink.zoo.presets",
    "show": "jaxsink.report.own",
    "Generation": "jaxsink.sampling.generation",
    "generate": "jaxsink.sampling.generate",
    "Response": "jaxsink.sampling.respond",
    "respond": "jaxsink.sampling.respond",
    "DropPositions": "jaxsink.sampling.interventions",
    "sampler_for": "jaxsink.checkpoints.load",
    "Sampler": "jaxsink.sampling.base",
    "DiffusionSampler": "jaxsink.sampling.diffusion",
    "ARSampler": "jaxsink.sampling.autoregressive",
    "AncestralSampler": "jaxsink.sampling.ancestral",
    "GIDDSampler": "jaxsink.sampling.gidd",
    "DreamSampler": "jaxsink.sampling.dream",
    "FastDLLMv2Sampler": "jaxsink.sampling.fast_dllm",
    "LLaDASampler": "jaxsink.sampling.llada",
    "LLaDA2Sampler": "jaxsink.sampling.llada2",
    "SDARSampler": "jaxsink.sampling.sdar",
    "NemotronSampler": "jaxsink.sampling.nemotron",
    "SpeculativeSampler": "jaxsink.sampling.speculation",
    "MDLMSampler": "jaxsink.sampling.dllm",
    "BD3LMSampler": "jaxsink.sampling.dllm",
    "Tokenizer": "jaxsink.text.tokenizer",
    "train": "jaxsink.training.train",
    "models": "jaxsink.zoo.listing",
}

__all__ = [*_MODULES, *_HOME, "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'jaxsink' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
