"""Options that cannot have an effect beside the others are refused by name, wherever they come."""

import json

import pytest
import torch

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli import main
from ssdlm.diffusion.grid import Sliding, Staggered
from ssdlm.engine.prompt_files import generate_file
from ssdlm.guidance.gradient import weighted
from ssdlm.options import known_options
from tests import tiny

OPTIONS = GenerateOptions(length=12, B=(6,), T=6, grid="sliding", width=1.0, returns="w_0")
WIDE = {"width": 3.0}
FUNCTION = weighted()
"""A control that is an object, and has a gradient."""
TEXTS = {"control": lambda texts: [float(len(text)) for text in texts]}
"""A control that reads texts, and has none."""


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), OPTIONS)


IDLE = [
    ("gradient", "simplex", {}, "control"),
    ("threshold", 1.0, {}, "control"),
    ("plausible", 0.1, {}, "control"),
    ("target", 0.8, {}, "control"),
    ("band", [0.2, 0.8], {}, "control"),
    ("reduction", "mean", {}, "control"),
    ("special_tokens", False, {}, "control"),
    ("sees", "block", {}, "control"),
    ("lam", 3.0, {}, "control"),
    ("particle_weight", 3.0, {}, "control"),
    ("particles", 4, {}, "control"),
    ("particles", 1, {}, "control"),
    ("particle_step", 3, {}, "particles"),
    ("particle_potential", "maximum", {}, "particles"),
    ("particle_step", 3, {"regex": "[a-z]+"}, "particles"),
    ("width", 2.0, {"grid": "uniform"}, "grid=uniform"),
    ("width", 2.0, {"grid": "warped"}, "grid=warped"),
    ("rho", 0.5, {"rule": "ddpm"} | WIDE, "rule=renoise"),
    ("rho", 0.5, {"rule": "adaptive"} | WIDE, "rule=renoise"),
    ("rho", 0.5, {}, "no state is kept"),
    ("rule", "ddpm", {}, "no state is kept"),
    ("rule", "adaptive", {"grid": "uniform", "T": 1}, "no state is kept"),
    ("rho", 0.5, {"grid": "staggered"}, "no state is kept"),
    ("rho", 0.5, {"must": "ab"}, "no state is kept"),
    ("top_p", 0.4, {"projection": "greedy"}, "projection=greedy"),
    ("top_p", 0.4, {"projection": "greedy", "mode": "autoregressive"}, "projection=greedy"),
    ("top_p", 0.4, {"projection": "greedy", "grid": "uniform"}, "projection=greedy"),
    ("nucleus", "network", {"top_p": 1.0}, "nothing is cut"),
    ("nucleus", "network", {"projection": "greedy"}, "draws nothing"),
    ("temperature", 0.4, {"projection": "greedy"}, "projection=greedy"),
    ("temperature", 0.4, {"top_p": 0.0, "mode": "speculative"}, "top_p=0"),
    ("temperature", 0.4, {"returns": "logits"}, "returns=w_0"),
    ("returns", "logits", {"projection": "greedy"} | WIDE, "the likeliest token"),
    ("best_of", 3, {"mode": "autoregressive", "projection": "greedy"}, "the same text"),
    ("stop_at_end", True, {"regex": "[a-z]+"}, "a grammar"),
    ("stop_at_end", True, {"json_schema": {"type": "boolean"}}, "a grammar"),
    ("never_end", True, {"regex": "[a-z]+"}, "a grammar"),
    ("B", 4, {"suffix": "xy", "grid": "uniform"}, "one block"),
    ("T", 9, {"mode": "autoregressive"}, "mode=autoregressive"),
]
OBJECTS = [
    ("special_tokens", False, {"control": FUNCTION}, "classifier that control names"),
    ("sees", "block", {"control": FUNCTION}, "classifier that control names"),
    ("threshold", 1.0, {"control": FUNCTION}, "gradient=words"),
    ("plausible", 0.1, {"control": FUNCTION}, "gradient=words"),
    ("gradient", "fudge", {"control": FUNCTION} | WIDE, "several are open"),
    ("gradient", "fudge", {"control": FUNCTION, "grid": "uniform"}, "several are open"),
    ("particle_step", 3, {"control": FUNCTION}, "particles"),
    ("particle_potential", "maximum", {"control": FUNCTION}, "particles"),
    ("particle_step", 3, TEXTS | {"particles": 4, "grid": "staggered"}, "after each block"),
    ("particle_step", 3, TEXTS | {"particles": 4, "must": "ab"}, "words to place"),
    ("particle_step", 3, TEXTS | {"particles": 4, "must_not": "ab"}, "words to place"),
    ("particle_weight", 3.0, {"control": FUNCTION}, "by its gradient"),
    ("gradient", "words", TEXTS, "no control here has a gradient"),
    ("band", [0.2, 0.8], TEXTS, "no control here has a gradient"),
    ("lam", 2.0, TEXTS | {"particle_weight": 2.0}, "no control has a gradient"),
]
every_idle = pytest.mark.parametrize(("name", "value", "beside", "needed"), IDLE)


@pytest.mark.parametrize(("name", "value", "beside", "needed"), [*IDLE, *OBJECTS])
def test_an_option_that_cannot_have_an_effect_is_refused_by_name(
    model, name, value, beside, needed
):
    model.requests("ab", beside)  # by itself each of the others is fine
    with pytest.raises(ValueError, match=rf"^{name}=.*; .*") as error:
        model.requests("ab", beside | {name: value})
    assert needed in str(error.value)
    assert "\n" not in str(error.value)


@every_idle
def test_a_line_of_a_file_is_refused_where_python_is(model, tmp_path, name, value, beside, needed):
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "a"}, {"prompt": "a", name: value}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"in.jsonl.*2: {name}=") as error:
        generate_file(model.writer(**beside), prompts, out, identity={})
    assert needed in str(error.value) and not out.exists()


def test_the_command_line_refuses_them_in_one_line(model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "m")
    words = ["generate", "a", "--model", str(tmp_path / "m"), "--length", "3"]
    for given in (["--gradient", "simplex"], ["--rho", "0.5"], ["--no-special-tokens"]):
        assert main([*words, *given]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {given[0].removeprefix('--no').strip('-')[:3]}")
    assert main([*words, "--threshold", "0.5", "--width", "1"]) == 0


def test_a_flag_for_all_lines_goes_with_what_each_line_adds(model, tmp_path):
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": "a", "width": 3.0}) + "\n")
    generate_file(model.writer(rho=0.5, length=3), prompts, out, identity={})
    assert len(out.read_text().splitlines()) == 1


def test_what_is_as_it_would_be_without_is_never_refused(model):
    ways = [{}, {"mode": "autoregressive"}, {"grid": "uniform"}, {"projection": "greedy"}]
    for way in [*ways, {"rule": "ddpm", **WIDE}, {"regex": "[a-z]+"}]:
        own = OPTIONS.change(**way).to_json()
        said = {n: v for n, v in own.items() if n not in ("regex", "json_schema", "gap") or v}
        (one,) = model.requests("ab", said | way)
        assert one.options == OPTIONS.change(**way)


def test_a_models_own_options_are_not_given(model):
    own = SSDLM(model.denoiser, model.tokenizer, OPTIONS)
    own.options = own.options.change(gradient="words", threshold=1.0, rho=0.5, band=(0.2, 0.8))
    assert len(own.generate("ab", length=3).tokens) == 3
    with pytest.raises(ValueError, match=r"threshold=3\.0 says how control is heard"):
        own.generate("ab", length=3, threshold=3.0)
    whole = GenerateOptions(length=3, B=(6,), T=6, grid="sliding", width=1.0, rho=0.5)
    with pytest.raises(ValueError, match=r"rho=0\.5 has no effect"):
        model.generate("ab", options=whole)
    assert len(model.generate("ab", options=GenerateOptions(length=3, T=4)).tokens) == 3
    theirs = GenerateOptions().change(length=3, T=6, gradient="words", band=(0.2, 0.8))
    assert len(own.generate("ab", options=theirs).tokens) == 3


@pytest.mark.parametrize("grid", ["sliding", "staggered"])
def test_a_state_is_kept_where_a_position_stays_open_between_two_passes(grid):
    from ssdlm.needs import keeps_state

    seen = set()
    for T in (1, 2, 3, 4, 6, 9, 12):
        for width in (0.5, 1.0, 2.5) if grid == "sliding" else (1.0, 2.5):
            for length in (6, 8, 12):
                options = GenerateOptions(length=length, B=(6,), T=T, grid=grid, width=width)
                blocks = options.blocks()
                if grid == "sliding":
                    moves = list(Sliding(T, width).moves(blocks, [6] * len(blocks)))
                    is_kept = any(m.window.stop - m.window.start > m.num_decided for m in moves)
                else:
                    levels = [Staggered(T, width)(size).progress[1:-1] for size in blocks]
                    is_kept = any(bool(torch.any((x > 0) & (x < 1))) for x in levels)
                assert keeps_state(options) == is_kept, (T, width, length)
                seen.add(is_kept)
    assert seen == {True, False}


def test_the_table_names_options_and_the_page_lists_them():
    from ssdlm.needs import NEEDS
    from tests.test_options import ROOT

    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    for need in NEEDS:
        assert set(need.names) <= set(known_options())
        assert need.what in page.partition("## Which option needs which")[2]
