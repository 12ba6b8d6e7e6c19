"""Folders of causal language models with one thing wrong: refused in one line, before they run."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import causal

from ssdlm import SSDLM
from ssdlm.storage.checkpoint import load_denoiser

NAN = float("nan")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("causal")


@pytest.fixture
def folder(kept, tmp_path, request) -> Path:
    """A copy of a family's model, which is made once."""
    family = getattr(request, "param", "llama-tied")
    if not (kept / family).exists():
        causal.save(kept / family, family)
    return Path(shutil.copytree(kept / family, tmp_path / "model"))


def change(folder: Path, **settings) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def rewrite(folder: Path, edit) -> None:
    """Replace the weights by what a function makes of them."""
    weights = load_file(folder / "model.safetensors")
    save_file(edit(weights), folder / "model.safetensors", {"format": "pt"})


def refusal(folder: Path) -> str:
    """Return how a folder is refused: in one line that names it."""
    with pytest.raises(ValueError) as caught:
        load_denoiser(folder)
    said = str(caught.value)
    assert "\n" not in said and str(folder) in said and ";" in said
    return said


@pytest.mark.parametrize(
    ("folder", "name", "value", "words"),
    [
        ("llama-tied", "rope_parameters", "x", "rope_parameters='x' is not an object"),
        ("llama-tied", "rope_parameters", [1], "rope_parameters=[1] is not an object"),
        ("llama-tied", "rope_scaling", "x", "rope_scaling='x' is not an object"),
        ("llama-tied", "rope_scaling", [1], "rope_scaling=[1] is not an object"),
        ("mistral", "sliding_window", "x", "sliding_window='x' is not a whole number from 1"),
        ("mistral", "sliding_window", -3, "sliding_window=-3 is not a whole number from 1"),
        ("llama-tied", "hidden_size", 32.0, "hidden_size=32.0 is not a whole number"),
        ("llama-tied", "num_attention_heads", 4.0, "num_attention_heads=4.0 is not a whole"),
        ("llama-tied", "num_hidden_layers", 2.0, "num_hidden_layers=2.0 is not a whole number"),
        ("llama-tied", "head_dim", 16.0, "head_dim=16.0 is not a whole number"),
        ("llama-tied", "head_dim", "x", "head_dim='x' is not a whole number"),
        ("llama-tied", "head_dim", -16, "head_dim=-16 is not a whole number"),
        ("llama-tied", "rms_norm_eps", NAN, "rms_norm_eps=nan is not a number from 0"),
        ("llama-tied", "tie_word_embeddings", False, "tie_word_embeddings is not true, and"),
    ],
    indirect=["folder"],
)
def test_a_setting_of_another_kind_is_named(folder, name, value, words):
    change(folder, **{name: value})
    assert f"config.json: {words}" in refusal(folder)


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_theta": "abc"}, "rope_theta of its rotary position embedding is 'abc'"),
        ({"rope_theta": 0}, "rope_theta of its rotary position embedding is 0"),
        ({"rope_theta": -5}, "rope_theta of its rotary position embedding is -5"),
        (causal.LINEAR | {"factor": 0}, "factor of its rotary position embedding is 0"),
        (causal.LINEAR | {"factor": NAN}, "factor of its rotary position embedding is nan"),
        ({"rope_type": "linear"}, "factor of its rotary position embedding is missing"),
        ({"rope_type": "llama3"}, "factor of its rotary position embedding is missing"),
        (causal.LLAMA3 | {"low_freq_factor": None}, "low_freq_factor of its rotary"),
        (causal.LLAMA3 | {"original_max_position_embeddings": 0}, "original_max_position_embeddi"),
        (causal.LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor is not above low_freq_fac"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_numbers_of_rotary_position_embedding_are_above_zero_and_there(folder, name, rope, words):
    earlier = {"rope_theta": rope.get("rope_theta")} if name == "rope_scaling" else {}
    change(folder, **{"rope_parameters": None, **earlier, name: rope})
    assert f"config.json: {words}" in refusal(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 50.0},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 50.0},
    ],
    ids=str,
)
def test_of_two_rotary_settings_that_of_transformers_counts(folder, settings):
    change(folder, **settings)
    tokens, denoiser = torch.arange(20).unsqueeze(0), load_denoiser(folder)
    with torch.no_grad():
        expected = causal.theirs(folder)(tokens).logits[:, -1]
    assert (denoiser.prefill(tokens).logits - expected).abs().max() < 1e-3


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("folder", ["llama-tied", "gpt2"], indirect=True)
def test_weights_that_are_no_usual_floats_are_refused(folder, kind):
    rewrite(folder, lambda weights: {name: value.to(kind) for name, value in weights.items()})
    assert "tensor; give weights as float32" in refusal(folder)


@pytest.mark.parametrize(
    ("folder", "part"),
    [("gpt2", ".h.1."), ("gemma", ".layers.1."), ("gpt_neox", "final_layer_norm.bias")],
    indirect=["folder"],
)
def test_weights_that_transformers_would_make_up_are_refused(folder, part):
    rewrite(folder, lambda weights: {n: v for n, v in weights.items() if part not in n})
    assert f"{folder} lacks " in refusal(folder)


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_weights_of_another_kind_of_model_are_refused(folder):
    change(folder, model_type="opt", architectures=["OPTForCausalLM"])
    assert "describes" in refusal(folder)


@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
def test_weights_that_no_network_reads_are_refused(folder):
    rewrite(folder, lambda weights: weights | {"h.0.attn.bias": torch.ones(1, 1, 8, 8)})
    load_denoiser(folder)  # a mask of old versions
    rewrite(folder, lambda weights: weights | {"transformer.h.7.ln_1.weight": torch.ones(32)})
    assert "also contains transformer.h.7.ln_1.weight" in refusal(folder)


@pytest.mark.parametrize(
    ("folder", "name", "value"),
    [
        ("gpt2", "n_inner", 10**9),
        ("gpt2", "n_inner", 10**6),
        ("gpt2", "n_layer", 300_000),
        ("gpt2", "n_layer", 290),
        ("gpt2", "n_positions", 10**6),
        ("gpt2", "vocab_size", 10**12),
        ("opt", "ffn_dim", 10**6),
        ("gemma", "num_hidden_layers", 10**9),
    ],
    indirect=["folder"],
)
def test_a_network_far_larger_than_its_weights_is_never_built(folder, name, value, unchecked):
    change(folder, **{name: value})
    began = time.monotonic()
    assert "restore the file" in refusal(folder)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("folder", ["gpt2", "llama-tied"], indirect=True)
def test_a_weight_that_is_no_number_is_refused(folder):
    def spoil(weights):
        name = next(name for name in weights if "mlp" in name and "weight" in name)
        weights[name][3, 5] = NAN
        return weights

    rewrite(folder, spoil)
    assert "contains infinities or NaN; get the file anew" in refusal(folder)


@pytest.mark.parametrize(
    "settings", [{"rms_norm_eps": 0.5}, {"rope_parameters": {"rope_theta": 5.0}}], ids=str
)
def test_an_adapter_knows_a_changed_config_of_its_model(tmp_path, settings):
    run, base = causal.save_adapted(tmp_path), tmp_path / "base"
    assert load_denoiser(run).config.network
    change(base, **settings)
    with pytest.raises(ValueError, match=f"{base}/config.json has other settings than when the"):
        load_denoiser(run)
    change(run, network="")  # as earlier versions wrote it
    load_denoiser(run)


@pytest.mark.parametrize("changed", ["run", "base"])
def test_an_adapter_knows_changed_tokens(tmp_path, changed):
    run = causal.save_adapted(tmp_path)
    SSDLM.from_pretrained(run)
    path = tmp_path / changed / "tokenizer.json"
    path.write_text(path.read_text().replace('"z":', '"Z":'))
    with pytest.raises(ValueError, match=f"{run}/tokenizer.json has other tokens than .*base") as e:
        SSDLM.from_pretrained(run)
    assert "\n" not in str(e.value)


def test_an_adapter_whose_logits_overflow_is_refused(tmp_path):
    run = causal.save_adapted(tmp_path)
    rewrite(run, lambda weights: {name: value * 1e30 for name, value in weights.items()})
    assert "its logits are not finite" in refusal(run)
