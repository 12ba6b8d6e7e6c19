"""What is built in: found by name, listed, and opened without the heavy libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.cli.flags import own_settings
from ssdlm.storage import builtin

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = builtin.MODELS / "mini"
SETTINGS = DecodeConfig(length=6, B=(3,), T=4, grid="staggered", width=1.0, returns="w_0")
CARD = "# mini\n\nA tiny random model,\nfor tests. It writes noise.\n"

WRITE = """
import sys
from pathlib import Path
from ssdlm import cli
from ssdlm.storage import builtin
if len(sys.argv) > 2:
    builtin.MODELS = Path(sys.argv[2])
assert cli.main(["generate", "the river", "--device", "cpu", "--length", sys.argv[1]]) == 0
heavy = {"transformers", "accelerate", "datasets", "huggingface_hub", "torch._dynamo"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def stocked(tmp_path_factory):
    """Return a folder with one model in it."""
    path = tmp_path_factory.mktemp("builtin")
    SSDLM(tiny.block(), tiny.tokenizer(), SETTINGS).save_pretrained(path / "mini", quantise="int8")
    (path / "mini" / "MODEL_CARD.md").write_text(CARD)
    return path


@pytest.fixture
def standing(stocked, monkeypatch):
    """Put that folder in the place of the package's own."""
    monkeypatch.setattr(builtin, "MODELS", stocked)
    monkeypatch.setattr(builtin, "GUIDES", stocked / "guides")
    own_settings.cache_clear()
    yield stocked
    own_settings.cache_clear()  # help pages show these settings, and other tests read them


def run_python(*arguments: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)


def test_the_built_in_model_opens_by_name(standing):
    named = SSDLM.from_pretrained("builtin:mini", device="cpu")
    folder = SSDLM.from_pretrained(standing / "mini", device="cpu")
    assert named.options == SETTINGS
    assert named.generate("the river") == folder.generate("the river")


def test_generate_without_a_model_takes_the_built_in_one(standing, capsys):
    assert cli.main(["generate", "the river", "--device", "cpu", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    expected = SSDLM.from_pretrained("builtin:mini", device="cpu").generate("the river")
    assert written["tokens"] == expected.tokens
    assert written["calls"] == SETTINGS.T + 1, "reading the context is a pass too"


def test_writing_imports_no_heavy_library(stocked):
    done = run_python("-c", WRITE, 6, stocked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the river")


def test_writing_sorts_no_vocabulary(monkeypatch):
    def refuse(*_):
        raise AssertionError("the vocabulary is sorted")

    monkeypatch.setattr("ssdlm.ops.nucleus.nucleus_by_sort", refuse)
    monkeypatch.setattr(torch.Tensor, "sort", refuse)
    monkeypatch.setattr(torch.Tensor, "argsort", refuse)
    model = SSDLM(tiny.block(V=4096), None, SETTINGS)
    assert len(model.generate([[1, 2]], top_p=0.95)[0].tokens) == 6


def test_models_lists_what_is_there(standing, capsys):
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    count = sum(weight.numel() for weight in tiny.block().state_dict().values())
    assert f"builtin:mini   {count / 1e6:.1f}M parameters, 64 tokens" in shown
    assert "A tiny random model, for tests\n" in shown
    assert [(item.kind, item.name, item.parameters) for item in builtin.list_builtin()] == [
        ("model", "builtin:mini", count)
    ]


def test_models_tells_whether_smollm2_is_here(standing, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builtin.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["models"]) == 0
    assert f"smollm2        not here: {builtin.BRINGING}\n" in capsys.readouterr().out
    builtin.unpacked_smollm2().mkdir(parents=True)
    assert cli.main(["models"]) == 0
    assert f"smollm2        in {tmp_path}" in capsys.readouterr().out


def test_the_packages_own_guides_are_listed():
    guides = {item.name: item for item in builtin.list_builtin() if item.kind == "guide"}
    assert {"sentiment", "tense"} <= guides.keys()
    assert guides["tense"].V == 8194
    assert "past, present" in guides["tense"].summary
    assert [one.name for one in guides["sentiment"].variants] == ["builtin:mini", "smollm2"]
    assert [one.name for one in guides["tense"].variants] == ["smollm2"]
    assert guides.keys() == {"sentiment", "tense"}
    first, _, own, last = str(guides["sentiment"]).splitlines()
    assert first.startswith("guide  sentiment      0.9M parameters, 8,194 tokens")
    assert own.startswith("       also for builtin:mini's tokens: 0.3M parameters, 8,194 tokens")
    assert last.startswith("       also for smollm2's tokens: 1.6M parameters, 49,154 tokens")


def test_a_model_that_is_not_there_is_refused_in_one_line(standing, capsys, tmp_path, monkeypatch):
    assert cli.main(["generate", "a", "--model", "builtin:maxi"]) == 2
    assert "which has builtin:mini; install" in capsys.readouterr().err
    monkeypatch.setattr(builtin, "MODELS", tmp_path)
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "config.json").write_text("{}")  # without weights it does not count
    assert cli.main(["generate", "a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: builtin:mini is not in this installation, which has no model")


def test_the_shipped_model_is_small():
    (mini,) = [item for item in builtin.list_builtin() if item.name == "builtin:mini"]
    assert 30e6 <= mini.parameters <= 36e6
    assert (SHIPPED / "model.safetensors").stat().st_size <= 36e6
    assert mini.V == 8192
    assert mini.summary
    done = run_python("-c", WRITE, 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the river")


def test_the_shipped_model_takes_one_pass_a_token_and_within_a_block_one_more():
    model = SSDLM.from_pretrained("builtin:mini", device="cpu")
    text = model.generate("The river had", length=26)
    assert (text.calls, text.passes_per_token) == (25, 1.0)
    # What plans a block as a whole keeps the window within it, and every block is read again.
    within = model.generate("The river had", length=5, B=5, T=5, must="boat")
    assert (within.calls, within.passes_per_token) == (6, 6 / 5)
    # What forbids words plans nothing.
    without = model.generate("The river had", length=26, must_not="boring")
    assert (without.calls, without.passes_per_token, without.text) == (25, 1.0, text.text)
