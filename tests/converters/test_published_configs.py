"""Published config files: those of supported families are accepted as they are, the others refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jaxsink_converters.families import FAMILIES, family_of
from jaxsink_converters.shared_settings import DEFAULTS, HARMLESS
from jaxsink_converters.special_ids import complete_ids
from jaxsink_converters.table import Settings
from support.checkpoints import (
    CONFIGS,
    assert_refused,
    config_of,
    converted,
    make,
    random_model,
    run,
    tensors_of,
    write,
)
from support.paths import GOLDEN

import jaxsink
from jaxsink import JaxsinkError, ModelConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")

PUBLISHED = GOLDEN / "configs"
# folder: (preset with the same sizes, mask id, eos ids, bos id, eot id)
Ids = tuple[int | None, tuple[int, ...], int | None, int | None]
LLAMA3_ENDS = (128001, 128008, 128009)
ACCEPTED: dict[str, tuple[str | None, Ids]] = {
    "copied/LLaDA-8B-Instruct": ("llada-8b-instruct", (126336, (126081,), 126080, 126348)),
    "copied/Dream-v0-Instruct-7B": ("dream-7b-instruct", (151666, (151643,), 151643, None)),
    "copied/Dream-7B-Instruct_monash-yann": ("dream-7b-instruct", (151666, (151643,), 151643, None)),
    "copied/Fast_dLLM_v2_1.5B": ("fast-dllm-v2-1.5b", (151665, (151645,), 151643, None)),
    "copied/Fast_dLLM_v2_7B": ("fast-dllm-v2-7b", (151665, (151645, 151643), 151643, None)),
    "copied/SDAR-4B-Chat": ("sdar-4b", (151669, (151643, 151645), 151643, None)),
    "copied/SDAR-1dot7B-Chat": (None, (151669, (151643, 151645), 151643, None)),
    "copied/SDAR-8B-Chat": (None, (151669, (151643, 151645), 151643, None)),
    "copied/Nemotron-Labs-Diffusion-8B_quoted": ("nemotron-labs-diffusion-8b", (100, (11,), 1, None)),
    "copied/LLaDA2.0-mini_dFactory": ("llada2.0-mini", (156895, (156892,), None, None)),
    "copied/LLaDA2.0-flash_dFactory": ("llada2.0-flash", (156895, (156892,), None, None)),
    "copied/LLaDA2.1-mini": ("llada2.1-mini", (156895, (156892,), None, None)),
    "copied/SDAR-30B-A3B-Chat": ("sdar-30b-a3b", (151669, (151643,), 151643, None)),
    "recalled/LLaDA-8B-Base": ("llada-8b-base", (126336, (126081,), 126080, 126348)),
    "recalled/LLaDA-1.5": ("llada-1.5", (126336, (126081,), 126080, 126348)),
    "recalled/iLLaDA-8B-Instruct": (None, (5, (2,), 0, None)),
    "recalled/MMaDA-8B-Base": ("mmada-8b", (126336, (126081,), 126080, 126348)),
    "recalled/LLaDA-MoE-7B-A1B-Instruct": ("llada-moe-7b-a1b", (156895, (156892,), None, None)),
    "recalled/Dream-Coder-v0-Instruct-7B": (None, (151666, (151643,), 151665, None)),
    "recalled/DiffuCoder-7B-Instruct": (None, (151666, (151643,), 151643, None)),
    "recalled/Llama-2-7b-hf": ("llama-2-7b", (None, (2,), 1, None)),
    "recalled/Meta-Llama-3-8B-Instruct": ("llama-3-8b", (None, (128009, 128001), 128000, None)),
    "recalled/Llama-3.1-8B-Instruct": ("llama-3.1-8b-instruct", (None, LLAMA3_ENDS, 128000, None)),
    "recalled/Llama-3.2-1B-Instruct": ("llama-3.2-1b", (None, LLAMA3_ENDS, 128000, None)),
    "recalled/SmolLM2-135M-Instruct": ("smollm2-135m", (None, (2,), 1, None)),
    "recalled/Mistral-7B-v0.1": ("mistral-7b-v0.1", (None, (2,), 1, None)),
    "recalled/Mistral-7B-Instruct-v0.2": (None, (None, (2,), 1, None)),
    "recalled/Mistral-7B-Instruct-v0.3": ("mistral-7b-v0.3", (None, (2,), 1, None)),
    "recalled/Qwen2-7B": (None, (None, (151643,), 151643, None)),
    "recalled/Qwen2.5-7B-Instruct": ("qwen2.5-7b", (None, (151645, 151643), 151643, None)),
    "recalled/Qwen3-8B": ("qwen3-8b", (None, (151645, 151643), 151643, None)),
    "recalled/bd3lm-owt-block_size4": ("bd3lm-owt-block_size4", (50257, (50256,), 50256, None)),
    "recalled/mdlm-owt": ("mdlm-owt", (50257, (50256,), 50256, None)),
    "recalled/gidd-small-p_unif-0.1": ("gidd-small-p_unif-0.1", (50257, (50256,), 50256, None)),
    "recalled/gpt2": ("gpt2", (None, (50256,), 50256, None)),
    "recalled/gpt2-medium": ("gpt2-medium", (None, (50256,), 50256, None)),
    "recalled/gpt2-large": ("gpt2-large", (None, (50256,), 50256, None)),
    "recalled/gpt2-xl": ("gpt2-xl", (None, (50256,), 50256, None)),
}
# What the files of a folder disagree about.
NOTES = {"copied/Fast_dLLM_v2_7B": ("config.json has pad id 151645", "151643; 151645 is used.")}
REFUSED = {
    "copied/constructed_llama_trap": "ExampleDiffusionModelLM",
}
IDS = {"mask_id": None, "eos_ids": (), "bos_id": None, "pad_id": None, "eot_id": None}
SUPPORTED = f"supported are {', '.join(family.name for family in FAMILIES)}"


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    files = [folder / name for name in ("config.json", "generation_config.json")]
    config, generation = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return config, generation


def understood(folder: Path, mask_id: int | None = None) -> tuple[ModelConfig, tuple[str, ...]]:
    """What a directory without weights says, and what its files disagree about."""
    values, generation = read(folder)
    settings = Settings(values, "test")
    family = family_of(values, "test")
    config = family.configure(settings)
    settings.finish()
    source: Any = SimpleNamespace(generation=generation)
    return complete_ids(family, config, source, folder, mask_id)


def test_every_file_is_covered() -> None:
    folders = {f"{path.parent.parent.name}/{path.parent.name}" for path in PUBLISHED.glob("*/*/config.json")}
    assert folders == {*ACCEPTED, *REFUSED}


@pytest.mark.parametrize("name", ACCEPTED)
def test_published_configs_are_accepted(name: str) -> None:
    config, notes = understood(PUBLISHED / name)
    preset, expected = ACCEPTED[name]
    assert (config.mask_id, config.eos_ids, config.bos_id, config.eot_id) == expected
    words = NOTES.get(name, ())
    assert len(notes) == bool(words) and all(word in notes[0] for word in words)
    if preset is not None:
        assert config.replace(**IDS) == jaxsink.PRESETS[preset].replace(**IDS)


@pytest.mark.parametrize(("name", "size"), [("llada2.1-mini", 32511296512), ("sdar-30b-a3b", 61064245248)])
def test_published_weights_have_our_size(name: str, size: int) -> None:
    """Bytes of all tensors, by the index of the published files; LLaDA2's biases of experts are float32 there as well."""
    leaves = jax.tree.leaves(jaxsink.abstract(jaxsink.preset(name), "bfloat16"))
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) == size


@pytest.mark.parametrize("command", ["convert", "inspect"])
@pytest.mark.parametrize("name", REFUSED)
def test_families_that_are_not_supported(name: str, command: str, tmp_path: Path, capsys: Any) -> None:
    """Even where the weights were not downloaded yet; and nobody is invited to ignore it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((PUBLISHED / name / "config.json").read_bytes())
    target = [tmp_path / "out"] if command == "convert" else []
    options = ["--ignore-setting", "auto_map", "--ignore-setting", "architectures"]
    result = run(capsys, command, source, *target, *options)
    assert_refused(result, tmp_path / "out", REFUSED[name], "family that is not supported", SUPPORTED)
    assert "ignore" not in result[2]
    with pytest.raises(JaxsinkError, match="family that is not supported"):
        jaxsink.load(source, ignore_settings=["auto_map", "architectures"])


AUTO_MAPS: list[tuple[Any, bool]] = [
    ({"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}, True),
    ({"AutoModel": "modeling_llama.LlamaModel", "AutoConfig": "x.OtherConfig", "AutoTokenizer": ["x.Y", None]}, True),
    ({"AutoModelForSequenceClassification": "owner/repo--modeling.LlamaForSequenceClassification"}, True),
    ({"AutoModelForCausalLM": "owner/repo--modeling_llama.DiffusionLlamaForCausalLM"}, False),
    ({"AutoModel": "modeling.LlamaDiffusionModel"}, False),
    ({"AutoModelForCausalLM": "modeling.LlamaForCausalLM", "AutoModel": "modeling.BidirectionalModel"}, False),
    (["modeling.LlamaForCausalLM"], False),
]


@pytest.mark.parametrize(("auto_map", "fits"), AUTO_MAPS)
def test_code_of_another_class(auto_map: Any, fits: bool, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (source / "config.json").write_text(json.dumps(config_of("llama") | {"auto_map": auto_map}))
    result = run(capsys, "inspect", source)
    if fits:
        assert result[0] == 0
    else:
        assert_refused(result, tmp_path / "out", "auto_map")


# gpt2-medium and LLaDA at a tiny size, otherwise as published: through the real converter.
SHRUNK: dict[str, dict[str, Any]] = {
    "recalled/gpt2-medium": {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16, "n_ctx": 16},
    "copied/LLaDA-8B-Instruct": {
        "d_model": 4,
        "n_heads": 2,
        "n_kv_heads": 2,
        "n_layers": 1,
        "mlp_hidden_size": 4,
        "max_sequence_length": 16,
    },
    "recalled/MMaDA-8B-Base": {
        "d_model": 4,
        "n_heads": 2,
        "n_kv_heads": 2,
        "n_layers": 1,
        "mlp_hidden_size": 4,
        "max_sequence_length": 16,
    },
    "copied/LLaDA2.1-mini": {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "rotary_dim": 2,
        "intermediate_size": 6,
        "moe_intermediate_size": 4,
        "num_experts": 16,
        "num_experts_per_tok": 3,
    },
    "copied/SDAR-30B-A3B-Chat": {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "moe_intermediate_size": 4,
        "num_experts": 5,
        "num_experts_per_tok": 2,
    },
}


@pytest.mark.parametrize("name", SHRUNK)
def test_published_configs_with_weights(name: str, tmp_path: Path, capsys: Any) -> None:
    config = read(PUBLISHED / name)[0] | SHRUNK[name]
    model = random_model(config)
    source = write(tmp_path / "source", config, tensors_of(model))
    report = converted(capsys, source, tmp_path / "out")
    assert report["family"] == model.config.family
    assert jaxsink.load(tmp_path / "out").config == jaxsink.load(source).config
    assert jaxsink.load(source).config.eos_ids == ACCEPTED[name][1][1]


@pytest.mark.parametrize("family", CONFIGS)
def test_defaults_of_the_base_class(family: str) -> None:
    """transformers 4 wrote them out in full; null says the same."""
    defaults = json.loads((PUBLISHED / "transformers4_defaults.json").read_text())
    for extra in (defaults, dict.fromkeys(defaults), {"setting_of_tomorrow": None}):
        values = config_of(family) | extra
        settings = Settings(values, "test")
        family_of(values, "test").configure(settings)
        settings.finish()


@pytest.mark.parity
def test_the_table_holds_every_setting_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    generation = transformers.GenerationConfig().to_dict()
    known = HARMLESS | DEFAULTS.keys() | {"bos_token_id", "eos_token_id", "pad_token_id"}
    assert set(transformers.PretrainedConfig().to_dict()) | set(generation) <= known
    for name in ("LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config", "GPT2Config"):
        kind = "GPT2LMHeadModel" if name == "GPT2Config" else name.replace("Config", "ForCausalLM")
        values = getattr(transformers, name)().to_dict() | {"architectures": [kind]}
        settings = Settings(values, name)
        family_of(values, name).configure(settings)
        settings.finish()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("add_cross_attention", True),
        ("is_encoder_decoder", True),
        ("pruned_heads", {"1": [0]}),
        ("quantization_config", {"bits": 4}),
        ("tie_encoder_decoder", True),
    ],
)
def test_other_values_are_refused(key: str, value: Any) -> None:
    assert set(DEFAULTS) == {
        "add_cross_attention",
        "is_encoder_decoder",
        "pruned_heads",
        "quantization_config",
        "tie_encoder_decoder",
    }
    with pytest.raises(JaxsinkError, match=f"'{key}' = .* is not supported"):
        Settings(config_of("llama") | {key: value}, "test", frozenset([key]))


def test_rows_beyond_the_vocabulary_of_gpt2() -> None:
    values = read(PUBLISHED / "recalled/gpt2-medium")[0] | {"n_special": 2}
    with pytest.raises(JaxsinkError, match="'n_special' = 2 is not supported"):
        family_of(values, "test").configure(Settings(values, "test"))
