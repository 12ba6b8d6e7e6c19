"""A control that does nothing, or has the weight of another scale, is not silent."""

import warnings

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.engine.controls import ControlWarning
from ssdlm.guidance.gradient import shift

PROMPT = "the river"


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tiny.save_classifier(tmp_path_factory.mktemp("controls") / "c")


def nothing(context, logits):
    """A control without a gradient that words could follow."""
    return logits.sum((1, 2)) * 0


def no_q(context, logits):
    return logits.log_softmax(-1)[..., 16].sum(-1)


def heard(model, **options) -> list[str]:
    """What is said while a text is written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.generate(PROMPT, **options)
    assert {one.category for one in caught} <= {ControlWarning}
    return [str(one.message) for one in caught]


def test_a_shift_is_a_total_variation():
    logits, nudge = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    assert shift(logits, nudge) == 0
    nudge[0, 1, 2] = 100.0  # from a quarter to certain
    assert shift(logits, nudge).item() == pytest.approx(0.75)


def test_a_control_that_changed_nothing_is_named_with_a_remedy(model):
    assert heard(model, control=nothing) == ["control nothing changed nothing; use a larger lam"]
    (said,) = heard(model, control=nothing, gradient="words")
    assert "gradient=logits, which follows more than a few words" in said
    assert len(list(heard(model, control=nothing))) == 1  # a second time too


def test_of_several_controls_only_the_idle_one_is_named(model):
    (said,) = heard(model, control=[no_q, nothing], lam=[50.0, 50.0])
    assert said.startswith("control nothing changed nothing")


def test_what_acts_or_is_switched_off_is_silent(model, classifier):
    assert heard(model, control=no_q, lam=50.0) == []
    assert heard(model, control=f"{classifier}=positive:2000") == []
    assert heard(model, control=f"{classifier}=positive:0") == []
    assert heard(model, control=nothing, lam=0.0) == []


def test_a_stream_says_it_too(model):
    with pytest.warns(ControlWarning, match="control nothing changed nothing"):
        drafts = list(model.stream(PROMPT, control=nothing))
    assert drafts[-1].text == model.generate(PROMPT).text


@pytest.mark.parametrize(
    ("gradient", "lam", "said"),
    [
        ("words", 500, "is far above what is usual with gradient=words, 5: the text may become"),
        ("logits", 5, "is far below what is usual with gradient=logits, 2000: the text may stay"),
        ("simplex", 2000, "is far above what is usual with gradient=simplex, 10"),
    ],
)
def test_a_weight_of_another_scale_is_named_with_the_usual_one(
    model, classifier, gradient, lam, said
):
    found = heard(model, control=f"{classifier}=positive:{lam}", gradient=gradient)
    assert found[0].startswith(f"lam={lam} of {classifier} {said}")


@pytest.mark.filterwarnings("default")
def test_the_command_line_says_it_in_one_line_and_writes_the_text(tmp_path, capsys, classifier):
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4))
    model.save_pretrained(tmp_path / "m")
    words = ["generate", PROMPT, "a", "--model", str(tmp_path / "m"), "--gradient", "words"]
    assert cli.main([*words, "--control", f"{classifier}=positive:900"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(PROMPT)
    (line,) = err.splitlines()
    assert line.startswith("warning: lam=900 of")
