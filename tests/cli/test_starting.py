"""How a command starts: what it imports, leaves alone, and how many threads it takes."""

import gc
import subprocess
import sys

import pytest
import torch
from tests import tiny

from ssdlm import DecodeConfig
from ssdlm.cli import starting


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Nothing said by the user, and two threads; afterwards as many as there were."""
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads(**options):
    starting.choose_threads(tiny.block(), DecodeConfig(**options))
    return torch.get_num_threads()


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"grid": "sliding", "width": 1.0}, 2),
        ({"grid": "sliding", "width": 3.0}, 4),
        ({"grid": "staggered", "B": (6,)}, 7),
        ({"mode": "autoregressive"}, 1),
        ({"mode": "speculative"}, 1),
    ],
)
def test_one_thread_does_passes_of_few_products(monkeypatch, options, most):
    weights = sum(weight.numel() for weight in tiny.block().parameters())
    monkeypatch.setattr(starting, "FEW_PRODUCTS", most * weights - 1)
    assert threads(**options) == 2
    monkeypatch.setattr(starting, "FEW_PRODUCTS", most * weights)
    assert threads(**options) == 1


def test_who_says_how_many_threads_gets_them(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads(grid="sliding", width=1.0) == 2
    with starting.one_thread():
        assert torch.get_num_threads() == 2


def test_an_encoder_keeps_all_threads():
    starting.choose_threads(tiny.encoder(), DecodeConfig())
    assert torch.get_num_threads() == 2


def test_one_thread_does_guided_passes_unless_a_guide_is_large(tmp_path):
    guided = {"grid": "sliding", "width": 1.0}
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2 * starting.FEW_PRODUCTS)  # takes no room
    assert threads(**guided, control=("sentiment=positive", f"{tmp_path}=1")) == 2
    assert threads(**guided, control=("sentiment=positive", "org/name=1")) == 2  # of unknown size
    assert threads(**guided, control=("sentiment=positive", "tense!=past:3")) == 1


def test_a_model_is_opened_by_one_thread():
    with starting.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_garbage_is_collected_again_after_the_start():
    with starting.without_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with starting.without_collecting():
            pass
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
        gc.unfreeze()


def libraries_of(*words, expect):
    """Run a command in a process of its own; return what it said and the libraries it imported."""
    code = (
        "import sys; from ssdlm.cli import main; status = main(sys.argv[1:]);"
        "names = {'torch', 'transformers', 'torch._dynamo', 'numpy'} & set(sys.modules);"
        "print(*sorted(names)); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, done.stderr
    return done.stderr, done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "a", "--control", "mood=happy"], "no built-in guide 'mood'"),
        (["generate", "a", "--control", "sentiment=happy"], "(0: negative, 1: positive)"),
        (["generate", "a", "--control", "sentiment=positive:-1"], "lam=-1.0 is out of range"),
        (["generate", "a", "--control", "sentiment"], "is not CLASSIFIER=LABEL"),
        (["generate", "--input", "a", "--output", "b", "--control", "tense=x"], "label='x'"),
        (["explain", "--control", "sentiment=happy"], "label='happy'"),
        (["generate", "a", "--length", "0"], "length=0"),
        (["generate", "a", "--grid", "slidng"], "grid='slidng' is unknown"),
        (["generate", "a", "--model", "smolm2"], "nor a Hub id org/name; the nearest is smollm2"),
        (["explain", "a", "--model", "mini"], "org/name; the nearest is builtin:mini"),
        (["generate", "a", "--model", "x"], "org/name; `ssdlm models` lists those here"),
        (["generate", "--input", "no.jsonl", "--output", "o"], "there is no file no.jsonl; give"),
        (["train", "--recipe", "tinny", "--data", "d", "--out", "o"], "did you mean 'tiny'?"),
        (["estimate", "--recipe", "tinny"], "there is no recipe 'tinny'"),
        (["generate", "a", "--control", "no/such=x"], "no/such is no folder here and the Hub did"),
        (["evaluate", "a", "--out", "b", "--control-guide", "mood=happy"], "'mood'"),
        (["evaluate", "a", "--out", "b", "--control-judge", "tense=soon"], "label='soon'"),
    ],
)
def test_a_wrong_value_is_refused_before_torch_is_imported(words, said, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stderr, libraries = libraries_of(*words, expect=2)
    assert stderr.startswith("error: ") and stderr.count("\n") == 1
    assert said in stderr
    assert libraries == []


def test_a_built_in_guide_needs_neither_transformers_nor_the_compiler():
    words = ["generate", "The movie was", "--length", "2", "--seed", "1"]
    _, libraries = libraries_of(*words, "--control", "sentiment=positive", expect=0)
    assert libraries == ["numpy", "torch"]
