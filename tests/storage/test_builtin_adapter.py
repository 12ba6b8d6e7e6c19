"""An adapter inside the package, in int8 and without a tokenizer: its language model is beside."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import causal, tiny

from ssdlm import SSDLM, cli
from ssdlm.storage import builtin

SHIPPED = builtin.MODELS / "smol"
CARD = "# builtin:smol\n\nA tiny adapter, for tests. It writes noise.\n"
TEXT = "the river was wide and the old boat"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A language model, a run with an adapter for it under the name smollm2, and that in int8."""
    path = tmp_path_factory.mktemp("made")
    run = causal.save_adapted(path)
    assert cli.main(["convert", str(run), str(path / "smol"), "--quantise", "int8"]) == 0
    change(path / "smol", base="smollm2")
    (path / "smol" / "README.md").write_text(CARD)
    return path


@pytest.fixture
def folder(made, tmp_path, monkeypatch) -> Path:
    """The folder of builtin:smol, copied into the place of the package's own; smollm2 is here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builtin, "MODELS", tmp_path / "builtin")
    shutil.copytree(made / "base", builtin.unpacked_smollm2())
    return Path(shutil.copytree(made / "smol", tmp_path / "builtin" / "smol"))


def change(folder: Path, **settings) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def refusal(capsys, *words: object) -> str:
    """Return the one line with which a command is refused."""
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_it_opens_by_name_with_the_tokens_of_its_language_model(made, folder, capsys):
    named, run = (SSDLM.from_pretrained(one) for one in ("builtin:smol", made / "run"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert named.options == run.options
    assert named.tokenizer.token_strings() == run.tokenizer.token_strings()
    beneath, asked = SSDLM.from_pretrained("smollm2"), {"length": 6, "temperature": 1.0}
    own = named.generate(TEXT, mode="autoregressive", **asked)
    assert own.tokens == beneath.generate(TEXT, mode="autoregressive", **asked).tokens
    text = named.generate(TEXT, length=6).text
    (rewrite,) = named.rewrite(TEXT, [(4, 9)])
    assert rewrite.text.startswith("the ") and rewrite.text.endswith(TEXT[9:])
    words = ["--model", "builtin:smol", "--length", "6"]
    assert cli.main(["generate", TEXT, *words]) == cli.main(["explain", TEXT, *words]) == 0
    assert capsys.readouterr().out.startswith(TEXT + text + "\n")


def test_models_lists_it_with_its_size(folder, capsys):
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert f"builtin:smol   0.0M parameters, {tiny.V} tokens" in shown
    assert "A tiny adapter, for tests\n" in shown


def test_without_its_language_model_it_names_the_command_that_brings_it(
    folder, monkeypatch, capsys
):
    shutil.rmtree(builtin.unpacked_smollm2())
    monkeypatch.setattr(builtin.importlib.util, "find_spec", lambda name: None)
    for words in (["generate", "a"], ["explain", "a"], ["serve", "--port", "0"]):
        assert refusal(capsys, *words, "--model", "builtin:smol").endswith(builtin.BRINGING)
    shutil.rmtree(folder)
    line = refusal(capsys, "generate", "a", "--model", "builtin:smol")
    assert line.startswith("error: builtin:smol is not in this installation, which has no model")


def swapped_weights(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, base / "model.safetensors")


def swapped_tokens(base: Path) -> None:
    path = base / "tokenizer.json"
    path.write_text(path.read_text().replace('"z":', '"Z":'))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (swapped_weights, "for other weights than those of smollm2 "),
        (swapped_tokens, "tokenizer.json has other tokens than when the adapter was trained"),
        (lambda base: change(base, rms_norm_eps=0.5), "config.json has other settings than when"),
        (lambda base: change(base, architectures=["X"]), "smollm2 is no causal language model"),
    ],
)
def test_another_language_model_is_refused(folder, spoil, words, capsys):
    spoil(builtin.unpacked_smollm2())
    assert words in refusal(capsys, "generate", "a", "--model", "builtin:smol")


NAME = "layers.0.qkv_up"
SPOILT = {
    "no scales": (lambda x: x.pop(NAME + ".scale"), f"{NAME} is a int8 tensor; give weights"),
    "no numbers": (lambda x: x.pop(NAME), f"lacks {NAME}; config.json"),
    "floats with scales": (
        lambda x: x.update({NAME: x[NAME].float()}),
        f"{NAME} is float32 (128, 3) and its scales are (128,), where int8 has one for each row",
    ),
    "scales of another shape": (
        lambda x: x.update({NAME + ".scale": torch.ones(3)}),
        f"{NAME} is int8 (128, 3) and its scales are (3,), where int8 has one for each row",
    ),
    "scales of another kind": (
        lambda x: x.update({NAME + ".scale": torch.ones(128, dtype=torch.int32)}),
        f"{NAME}.scale is a int32 tensor; give weights",
    ),
    "scales that are no numbers": (
        lambda x: x.update({NAME + ".scale": torch.full((128,), torch.nan)}),
        f"{NAME} contains infinities or NaN; get the file anew",
    ),
    "another shape": (
        lambda x: x.update({NAME: x[NAME][:64].clone(), NAME + ".scale": torch.ones(64)}),
        f"{NAME} is (64, 3) where config.json means (128, 3)",
    ),
    "another rank": (lambda x: x.update(wider(x)), "where config.json means"),
    "another layout": (lambda x: x.update({"words": x.pop("log_unigram")}), "lacks log_unigram"),
    "fewer layers": (
        lambda x: [x.pop(name) for name in list(x) if name.startswith("layers.1.")],
        "lacks layers.1.",
    ),
}


def wider(tensors):
    """The same adapter of rank 6."""
    ups = {name: value for name, value in tensors.items() if name.endswith("_up")}
    return {name: torch.cat((value, value), 1) for name, value in ups.items()}


@pytest.mark.parametrize("case", SPOILT)
def test_damaged_weights_are_refused_in_one_line(folder, case, capsys):
    spoil, words = SPOILT[case]
    tensors = load_file(folder / "model.safetensors")
    spoil(tensors)
    save_file(tensors, folder / "model.safetensors")
    line = refusal(capsys, "generate", "a", "--model", "builtin:smol")
    assert words in line and str(folder) in line


def test_the_shipped_adapter_is_small_and_says_what_it_is():
    (smol,) = [one for one in builtin.list_builtin() if one.name == "builtin:smol"]
    assert smol.size <= 6e6 and smol.V == 49152
    assert "smollm2" in smol.summary
    assert {path.name for path in SHIPPED.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    config = json.loads((SHIPPED / "config.json").read_text())
    assert config["base"] == "smollm2"
    assert all(len(config[name]) == 64 for name in ("digest", "network", "tokens"))
    assert "Apache-2.0" in (SHIPPED / "README.md").read_text()


@pytest.mark.skipif(not builtin.unpacked_smollm2().is_dir(), reason="smollm2 is not unpacked here")
def test_the_shipped_adapter_writes_four_positions_at_a_time():
    model = SSDLM.from_pretrained("builtin:smol", device="cpu")
    text = model.generate("The river had", length=8, seed=0, stop_at_end=False)
    assert (len(text.tokens), model.options.width) == (8, 4.0)
    assert 1.5 < text.passes_per_token < 3
