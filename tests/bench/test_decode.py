"""`ssdlm bench decode`: a table, and one line of JSON whose figures fit together."""

import json
import re
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.closeness import assert_close

from ssdlm import SSDLM, cli
from ssdlm.bench import decode
from ssdlm.bench.decode import Bench, DecodeBench, bench_decode, num_passes, run_plain, silent
from ssdlm.bench.sizes import prompts_for, random_model
from ssdlm.engine.plain import Engine
from ssdlm.options import GenerateOptions

KEYS = {
    "ms_per_step_original",
    "ms_per_step_plain",
    "ms_per_step",
    "ratio_to_original",
    "floor_ms",
    "fraction_of_floor",
    "passes_per_token",
    "tokens_per_s",
    "tokens_per_s_twin",
    "peak_memory",
}
SMALL = ("--size", "tiny", "--device", "cpu", "--context", "5", "--length", "8", "--repeats", "2")


@pytest.fixture(autouse=True)
def quick(monkeypatch, unchecked):
    """A short look at the machine, and the code as users have it."""
    monkeypatch.setattr("ssdlm.bench.machine.TRIES", 1)


def run(capsys, *arguments):
    code = cli.main(["bench", "decode", *SMALL, *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_all_flags_together(capsys):
    flags = ("--batch", 2, "--block", 4, "--steps", 3, "--mode", "diffusion", "--denoiser", "block")
    flags += ("--dtype", "float32", "--deterministic", "--original", "--twin")
    code, out, err = run(capsys, *flags)
    assert code == 0, err
    *lines, last = out.splitlines()
    found = json.loads(last)
    assert KEYS <= set(found)
    assert [name for name in KEYS if found[name] is None] == []
    assert_close(found["ratio_to_original"], found["ms_per_step_original"] / found["ms_per_step"])
    assert_close(found["fraction_of_floor"], found["floor_ms"] / found["ms_per_step"])
    assert found["passes_per_token"] == 0.75  # three passes for four tokens
    rows = {line[:30].strip() for line in lines}
    assert {"this engine", "plain loop", "authors' loop", "floor"} <= rows
    assert "context stream, transformers" in rows
    assert found["path"] | {"mode": "diffusion", "B": [4], "T": 3} == found["path"]
    assert (found["dtype"], found["batch"], found["denoiser"]) == ("float32", 2, "block")
    assert found["deterministic"] is True
    assert found["machine"] and found["threads"] >= 1
    assert "timing the authors' loop" in err


def test_a_model_of_ones_own_is_timed_beside_its_twins(capsys, tmp_path):
    home = tmp_path / "model"
    SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(B=(6,), T=3)).save_pretrained(home)
    code, out, err = run(capsys, "--model", home, "--mode", "autoregressive", "--twin")
    found = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert (found["model"], found["size"], found["denoiser"]) == (str(home), None, "BlockDenoiser")
    assert found["parameters"] == sum(one.numel() for one in tiny.block().parameters())
    assert found["passes_per_token"] == 1
    assert min(found["tokens_per_s_twin"], found["tokens_per_s_twin_engine"]) > 0
    assert out.startswith(f"{home} (BlockDenoiser), batch 1, 8 tokens after 5")


def test_what_was_not_asked_for_is_null_and_named(capsys):
    code, out, _ = run(capsys, "--B", 4, "--T", 3)
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert KEYS <= set(found)
    empty = {"ms_per_step_original", "ratio_to_original", "tokens_per_s_twin"}
    assert {name for name in KEYS if found[name] is None} == empty
    assert found["tokens_per_s_twin_engine"] is None
    assert found["denoiser"] == "encoder"
    assert (found["path"]["B"], found["path"]["T"]) == ([4], 3)
    assert "authors' loop" not in out.rpartition("\n{")[0]


def test_the_page_explains_every_key(capsys):
    page = Path(__file__).parents[2] / "docs" / "speed.md"
    explained = set(re.findall(r"`(\w+)`", page.read_text()))
    found = json.loads(run(capsys, "--steps", 1, "--repeats", 1)[1].splitlines()[-1])
    assert set(found) - explained == set()


def test_medians_lie_within_their_spread(capsys):
    found = json.loads(run(capsys, "--repeats", 3, "--steps", 2)[1].splitlines()[-1])
    assert {"ms_per_step", "ms_per_step_plain", "tokens_per_s"} <= set(found["spread"])
    for name, (least, most) in found["spread"].items():
        assert least <= found[name] <= most
    seconds = found["length"] * found["batch"] / found["tokens_per_s"]
    assert_close(found["ms_per_step"], 1000 * seconds / (found["passes_per_token"] * 8))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--size", "huge"), "size='huge' is unknown; choose one of mini, roberta-base"),
        (("--denoiser", "rnn"), "denoiser='rnn' is unknown; choose one of encoder, block"),
        (("--dtype", "int3"), "dtype='int3' is unknown; choose one of auto, float32"),
        (("--device", "abacus"), "device='abacus' is not there"),
        (("--batch", 0), "batch=0 is out of range; use 1 or more"),
        (("--context", 0), "context=0 is out of range"),
        (("--length", 0), "length=0 is out of range"),
        (("--repeats", 0), "repeats=0 is out of range"),
        (("--steps", 0), "T=0 is out of range"),
        (("--block", 0), "B=0 is out of range"),
        (("--control", "sentiment=positive"), "only size mini as it is has them"),
        (("--twin",), "an encoder has no context stream"),
        (("--mode", "telepathy"), "mode='telepathy' is unknown; choose one of diffusion, auto"),
        (("--mode", "autoregressive"), "needs a model with a context stream"),
        (("--denoiser", "block", "--mode", "autoregressive", "--T", 3), "does not go with mode"),
        (("--grid", "spiral"), "grid='spiral' is unknown; choose one of uniform, warped"),
        (("--width", 0), "width=0.0 is out of range"),
        (("--model", "builtin:mini", "--original"), "original goes with --size"),
        (("--model", "no/where", "--twin"), "no/where"),
        (("--drafter", "somewhere"), "drafter='somewhere': a drafter belongs to a trained model"),
    ],
)
def test_bad_values_end_in_one_line(capsys, flags, complaint):
    code, out, err = run(capsys, *flags)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert complaint in lines[0]
    assert "Traceback" not in err


def test_a_guide_steers_the_built_in_model_while_it_is_timed():
    asked = DecodeBench(
        context=2,
        length=2,
        block=2,
        steps=2,
        repeats=1,
        device="cpu",
        control=("sentiment=positive",),
    )
    found = bench_decode(asked)
    assert found["control"] == ("sentiment=positive",)
    assert found["ms_per_step"] > 0


def test_a_trained_model_is_deterministic_where_that_is_asked_for(tmp_path):
    SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(B=(6,), T=3)).save_pretrained(tmp_path)
    for wanted in (False, True):
        asked = DecodeBench(
            model=str(tmp_path), context=2, length=2, device="cpu", deterministic=wanted
        )
        assert Bench.set_up(asked, silent).model.engine.is_deterministic is wanted


def test_the_plain_loop_counts_every_pass():
    cpu = {"device": torch.device("cpu"), "dtype": torch.float32, "max_len": 30}
    for family, expected in (("block", 2 * (3 + 1)), ("encoder", 2 * 3)):
        model = random_model("tiny", family, **cpu)
        options = model.options.change(T=3, B=4, length=8, grid="staggered")
        engine = Engine(model.denoiser, None)
        assert run_plain(engine, prompts_for(model, batch=2, context=5), options) == expected


def test_passes_of_a_text_are_those_of_all_its_blocks():
    cpu = {"device": torch.device("cpu"), "dtype": torch.float32, "max_len": 30}
    model = random_model("tiny", "block", **cpu)
    (text,) = model.generate([[1, 2, 3]], length=8, B=4, T=3, grid="staggered")
    assert num_passes(text) == 2 * (3 + 1)
    (text,) = model.generate([[1, 2, 3]], length=8, B=4, T=3, grid="sliding")
    assert num_passes(text) == 2 * 3  # the prompt is read on the way


def test_a_batch_beyond_the_memory_is_refused_in_one_line(capsys, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB. And more")

    monkeypatch.setattr(decode, "run_engine", full)
    code, _, err = run(capsys, "--steps", 1)
    assert code == 2
    assert err.splitlines()[-1] == ("error: batch=1: CUDA out of memory; use a smaller --batch")


def test_the_twin_under_this_engine_is_timed_too(capsys):
    found = json.loads(run(capsys, "--denoiser", "block", "--twin")[1].splitlines()[-1])
    assert found["tokens_per_s_twin_engine"] > 0


def test_a_text_token_by_token_has_no_diffusion_in_its_path(capsys):
    code, out, err = run(capsys, "--denoiser", "block", "--mode", "autoregressive")
    found = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert found["path"]["mode"] == "autoregressive"
    assert {found["path"][name] for name in ("grid", "width", "B", "T")} == {None}
    assert found["passes_per_token"] == 1.0
    assert found["ms_per_step_plain"] > 0
    assert found["floor_ms"] > 0


def test_a_window_that_slides_takes_a_pass_per_token(capsys):
    flags = ("--denoiser", "block", "--grid", "sliding", "--width", 1, "--block", 4, "--steps", 4)
    code, out, err = run(capsys, *flags)
    found = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert (found["path"]["grid"], found["path"]["width"]) == ("sliding", 1.0)
    assert found["passes_per_token"] == 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["encoder", "block"])
def test_a_gpu_is_measured_in_all_ways(capsys, family):
    flags = ("--device", "cuda", "--denoiser", family, "--batch", 3, "--block", 4, "--steps", 3)
    flags += ("--original", *(["--twin"] if family == "block" else []))
    code, out, err = run(capsys, *flags)
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    twin = {"tokens_per_s_twin"} if family == "encoder" else set()
    assert {name for name in KEYS if found[name] is None} == twin
    assert (found["device"], found["dtype"]) == ("cuda", "bfloat16")
    assert found["machine"] == torch.cuda.get_device_name()
