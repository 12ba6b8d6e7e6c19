"""Texts of a language model with an adapter: its own with one position open, and any others."""

import json
import re

import pytest
from tests import causal

from ssdlm import SSDLM
from ssdlm.cli import main

PROMPT = "the river"


def prefers_e(context, logits):
    return logits.log_softmax(-1)[..., 4].sum(-1)


PATHS = [{"grid": "sliding", "width": width, "T": T}
         for width, T in ((1.0, 4), (2.0, 4), (4.0, 8), (16.0, 8))]  # fmt: skip
PATHS += [{"grid": "staggered", "width": 2.5, "T": 4}]
PATHS += [
    {"grid": "tilted", "width": 2.5, "T": 6},
    {"grid": "warped", "T": 4},
    {"grid": "uniform", "T": 4},
]
SIGNS = list(".,!?'-")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return causal.save_adapted(tmp_path_factory.mktemp("adapted"))


@pytest.fixture(scope="module")
def model(folder):
    return SSDLM.from_pretrained(folder)


@pytest.fixture(scope="module")
def base(folder):
    return SSDLM.from_pretrained(folder.parent / "base")


SLIDING = {"grid": "sliding", "B": [4]}
STEERED = {"control": prefers_e, "gradient": "simplex", "lam": 20.0}
PROGRAMMED = {
    "one": SLIDING | {"width": 1.0, "T": 4},
    "slow": SLIDING | {"width": 1.0, "T": 8},
    "two": SLIDING | {"width": 2.0, "T": 4},
    "four": SLIDING | {"width": 4.0, "T": 4},
    "four, slow": SLIDING | {"width": 4.0, "T": 8},
    "uniform": {"grid": "uniform", "B": [4], "T": 5},
    "warped": {"grid": "warped", "B": [4], "T": 5},
    "tilted": {"grid": "tilted", "B": [4], "T": 7, "width": 2.0},
    "blocks of one": {"grid": "uniform", "B": [1], "T": 2},
    "gap": {"grid": "uniform", "suffix": " ran.", "T": 6},
    "tilted gap": {"grid": "tilted", "suffix": " ran.", "T": 9, "width": 3.0},
    "forbidden": SLIDING | {"width": 4.0, "T": 8, "must_not": SIGNS},
    "grammar": SLIDING | {"width": 4.0, "T": 8, "regex": "[a-e]{3} (b|cd)*"},
    "grammar, one": SLIDING | {"width": 1.0, "T": 4, "regex": "[a-e]{3} (b|cd)*"},
    "guide": SLIDING | STEERED | {"width": 4.0, "T": 4},
    "guide, tilted": STEERED | {"grid": "tilted", "B": [4], "T": 7, "width": 2.0},
    "guided gap": STEERED | {"grid": "uniform", "suffix": " no", "T": 4},
}
"""Paths and wishes for which there is a program."""
LEFT = {
    "grid=staggered": {"grid": "staggered", "width": 2.0, "B": [4], "T": 4},
    "grid=sliding": SLIDING | {"T": 4, "must": ["fog"]},
    "must": {"grid": "uniform", "B": [4], "T": 4, "must": ["fog"]},
    "pin": {"grid": "tilted", "B": [4], "T": 4, "pin": {4: "we"}},
}
"""Those for which there is none, by what is named."""


def named(options):
    return "-".join(map(str, options.values()))


def without_idle(path):
    """What a gap, which is one block, is told of a path."""
    return path if path["grid"] == "sliding" else {k: v for k, v in path.items() if k != "B"}


@pytest.mark.parametrize(
    "how", [{"projection": "greedy"}, {"top_p": 0.8, "temperature": 1.4}], ids=named
)
def test_with_one_position_open_the_text_is_the_language_models_own(model, base, how):
    shared = {"length": 18, "stop_at_end": False, "seed": 5, **how}
    window = {"grid": "sliding", "width": 1.0, "B": [6], "T": 6}
    found = model.generate(PROMPT, **window, **shared)
    assert found.tokens == base.generate(PROMPT, **window, **shared).tokens
    assert found.passes_per_token == 1
    chains = [
        model.generate(PROMPT, mode="autoregressive", **shared),
        model.generate(PROMPT, mode="speculative", **shared),
        base.generate(PROMPT, mode="autoregressive", **shared),
    ]
    assert chains[0].tokens == chains[1].tokens == chains[2].tokens


def by_reference(model, prompt, own):
    """Return the steps of a text by the reference loop."""
    (request,) = model.requests([prompt], own)
    return list(model.engine.steps([request]))


@pytest.mark.parametrize("own", PROGRAMMED.values(), ids=PROGRAMMED)
@pytest.mark.usefixtures("unchecked")
def test_a_program_writes_what_the_reference_loop_writes(model, own):
    own = {"length": 8, "seed": 2, "temperature": 2.0, "returns": "w_0"} | own
    prompts, end = [PROMPT, "a"], model.tokenizer.end_of_text
    texts = model.generate(prompts, **own)
    for prompt, text in zip(prompts, texts, strict=True):
        steps = by_reference(model, prompt, own)
        wanted = [token for step in steps if step.is_last for token in step.tokens[0].tolist()]
        assert text.tokens == (wanted[: wanted.index(end)] if end in wanted else wanted)
        assert text.written.program == "window"
        shown = list(model.stream(prompt, **own))
        drafts = [one.step.tokens[0].tolist() for one in shown]
        assert drafts == [step.tokens[0].tolist() for step in steps]
        assert model.generate(prompt, **own).tokens == text.tokens


@pytest.mark.parametrize("asked", LEFT)
def test_what_is_certain_before_the_rest_is_read_as_words_by_the_reference_loop(model, asked):
    written = model.generate(PROMPT, length=8, **LEFT[asked]).written
    assert written.program == "reference" and written.why.startswith(f"{asked} may make")


@pytest.mark.usefixtures("unchecked")
def test_a_gap_is_filled_at_once_unless_it_is_told_how(model):
    asked = {"suffix": " ran.", "length": 6, "T": 5, "temperature": 2.0}
    texts = {
        name: model.generate(PROMPT, **asked, **told)
        for name, told in {
            "untold": {},
            "warped": {"grid": "warped"},
            "window": {"grid": "sliding"},
            "width": {"width": 2.0},
        }.items()
    }
    assert model.options.grid == "sliding"
    assert texts["untold"].tokens == texts["warped"].tokens != texts["window"].tokens
    by_program = {name: text.written.program for name, text in texts.items()}
    reference = [name for name, program in by_program.items() if program == "reference"]
    assert reference == ["window", "width"]
    assert model.explain(PROMPT, **asked).written.program == "window"


BY_NIGHT = PATHS[1], PATHS[3], PATHS[6]
"""Those on which texts obey as they do on a neighbour that is tried by day."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(one, marks=[pytest.mark.nightly] * (one in BY_NIGHT)) for one in PATHS],
    ids=named,
)
@pytest.mark.usefixtures("unchecked")
def test_texts_are_their_own_and_obey_on_every_path(model, path):
    path = path | {"length": 8, "B": [4], "seed": 2, "temperature": 3.0}
    free = model.generate([PROMPT], num_samples=8, **path)
    assert len({text.text for text in free}) == 8
    assert model.generate(["a", PROMPT], **path)[1].tokens == free[0].tokens
    required = model.generate(PROMPT, must=["fog", "up"], **path).text
    assert {"fog", "up"} <= set(re.findall("[a-z]+", required))
    pinned = model.generate(PROMPT, pin={0: "a", 5: "we"}, **path).text
    assert pinned[0] == "a" and pinned[5:7] == "we"
    gap = model.generate(PROMPT, suffix=" ran.", **without_idle(path))
    assert gap.text.endswith(" ran.") and len(gap.tokens) == 8 + 5
    held = model.generate([PROMPT], num_samples=8, must_not=SIGNS, **path)
    assert any(sign in text.text for text in free for sign in SIGNS)
    assert not any(sign in text.text for text in held for sign in SIGNS)
    matched = model.generate(PROMPT, regex="[a-e]{3} (b|cd)*", **path).text
    assert set(matched[:3]) <= set("abcde") and set(matched[4:]) <= set("bcd")
    letter = free[0].text[4]
    assert model.generate(PROMPT, stop=[letter], **path).text == free[0].text.split(letter)[0]


@pytest.mark.parametrize("path", [PATHS[2], PATHS[6]], ids=named)
@pytest.mark.usefixtures("unchecked")
def test_control_reaches_several_open_positions(model, path):
    path = path | {"length": 8, "B": [4]}
    how = {"gradient": "simplex"}
    plain = model.generate(PROMPT, **path).tokens.count(4)
    for suffix in ("", " no"):
        own = without_idle(path) if suffix else path
        pushed = model.generate(PROMPT, control=prefers_e, lam=50.0, suffix=suffix, **how, **own)
        assert pushed.tokens[:8].count(4) > plain + 4


def test_the_right_side_of_a_gap_is_seen(model):
    gaps = {
        tuple(model.generate(PROMPT, suffix=suffix, length=6).tokens[:6])
        for suffix in (" no.", " yes", "?!")
    }
    assert len(gaps) == 3
    tried = model.generate(PROMPT, suffix=" no", gap=(2, 4))
    assert 2 + 3 <= len(tried.tokens) <= 4 + 3


def test_watched_and_plain_texts_are_one(model):
    text = model.generate(PROMPT, seed=2, length=12)
    assert list(model.stream(PROMPT, seed=2, length=12))[-1].text == text.text


def test_what_has_no_room_or_no_first_word_is_refused_in_one_line(model):
    with pytest.raises(ValueError, match=r"width=900 is more than the model's \d+ positions"):
        model.generate("no dog", length=4, grid="sliding", width=900.0)
    with pytest.raises(ValueError, match="has no tokens, and this model knows none to begin with"):
        model.generate([[]])
    for mode in ({}, {"mode": "autoregressive"}):
        with pytest.raises(ValueError, match=r"tokens and length=126 are more than .* 128"):
            model.generate("abc", length=126, **mode)
    with pytest.raises(ValueError, match=r"length=120 and a suffix of 6 are more than .* 128"):
        model.generate("abc", length=120, suffix=" ran. ")


def test_the_command_line_writes_and_explains(folder, capsys):
    asked = ["--model", str(folder), "--length", "6", "--suffix", " ran", PROMPT]
    assert main(["generate", "--json", *asked]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["text"].endswith(" ran")
    assert main(["explain", "--grid", "sliding", *asked]) == 0
    said = capsys.readouterr().out
    assert "program: reference" in said and "reads those as words" in said
    assert main(["explain", "--grid", "uniform", *asked]) == 0
    assert "program: window" in capsys.readouterr().out


def test_prompts_begin_and_texts_end_as_the_language_model_has_it(tmp_path):
    run = causal.save_adapted(tmp_path)
    causal.begin_with_a(tmp_path / "base")
    adapted, base = SSDLM.from_pretrained(run), SSDLM.from_pretrained(tmp_path / "base")
    for prompt in ("", "b", "ab"):
        assert adapted.engine.context(prompt) == base.engine.context(prompt)
    assert adapted.context("b") == (0, 1)
    assert adapted.tokenizer.ends == base.tokenizer.ends
    options = {"length": 6, "temperature": 1.0, "seed": 3}
    own = base.generate("b", mode="autoregressive", **options).tokens
    assert adapted.generate("b", mode="autoregressive", **options).tokens == own
