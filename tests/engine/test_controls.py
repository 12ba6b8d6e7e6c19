"""A control that does nothing, or has the weight of another scale, is not silent."""

import warnings

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, classifier_guide, cli
from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.slots import Slots
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


@pytest.mark.parametrize("held", [{"must": ["b"], "must_not": ["c"]}, {"regex": "[a-e ]+"}])
def test_it_is_named_too_where_the_reference_loop_chooses_tokens(model, held):
    wide = {"grid": "sliding", "width": 3.0, "B": 6, "T": 6, "length": 6, "returns": "w_0"}
    said = heard(model, control=nothing, **wide, **held)
    assert said == ["control nothing changed nothing; use a larger lam"]


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
        ("words", 500, "is far above what is usual with gradient=words, 4: the text may become"),
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


SLIDING = DecodeConfig(length=12, B=(4,), T=4, grid="sliding", width=1.0, returns="w_0")


@pytest.fixture
def num_passes(monkeypatch):
    """How often the network has run."""
    passes, read = [], Slots.read

    def counted(self, x, *rest):
        passes.extend([1] * len(x))
        return read(self, x, *rest)

    monkeypatch.setattr(Slots, "read", counted)
    return passes


@pytest.mark.parametrize("grid", ["sliding", "staggered", "uniform"])
def test_a_guide_that_reads_the_block_reads_all_of_it_named_or_as_an_object(classifier, grid):
    model, options = SSDLM(tiny.block(), tiny.tokenizer(), SLIDING), {"grid": grid}
    guide = classifier_guide(classifier, "positive", sees="block", has_special_tokens=False)
    model.requests(PROMPT, {"control": guide})  # for which it reads a token to try
    read = []
    guide.classifier.register_forward_pre_hook(
        lambda module, inputs, named: read.append(named["inputs_embeds"].shape[1]),
        with_kwargs=True,
    )
    text = model.generate(PROMPT, control=guide, **options)
    assert set(read) == {4}
    named = {"control": f"{classifier}=positive", "sees": "block", "special_tokens": False}
    assert model.generate(PROMPT, **named, **options) == text
    assert model.generate(PROMPT, **options).text != text.text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"T": 7, "prompt": [[]]},
        {"grid": "uniform", "prompt": [[]]},
        {"regex": "[a-z ]{6,}"},
        {"must_not": "no"},
        {"must": "no"},
        {"suffix": " no"},
        {"particles": 3},
        {"best_of": 2},
    ],
)
@pytest.mark.parametrize("sees", ["context", "block"])
def test_the_passes_that_are_reported_are_those_of_the_network(
    num_passes, classifier, options, sees
):
    model = SSDLM(tiny.block(), tiny.tokenizer(), SLIDING)
    guide = classifier_guide(classifier, "positive", sees=sees)
    options = {"prompt": [PROMPT], "control": guide, "lam": 500.0} | options
    (text,) = model.generate(options.pop("prompt"), **options)
    # A program of blocks reads the last one too, once a text: who forks a text goes on from it.
    num_texts = options.get("particles", 1) * options.get("best_of", 1)
    reported = text.passes_per_token * len(text.tokens)
    assert len(num_passes) - reported in (pytest.approx(0, abs=1e-6), pytest.approx(num_texts))


def test_a_guide_without_weight_changes_nothing(classifier):
    model = SSDLM(tiny.block(), tiny.tokenizer(), SLIDING)
    for sees in ("context", "block"):
        guide = classifier_guide(classifier, "positive", sees=sees)
        assert model.generate(PROMPT, control=guide, lam=0.0).text == model.generate(PROMPT).text


@pytest.mark.parametrize("T", [2, 4, 7])
def test_passes_that_read_the_context_apart_are_counted_too(num_passes, T):
    denoiser = tiny.block()

    class Own(Denoiser):
        V, K, B, device = denoiser.V, denoiser.K, denoiser.B, denoiser.device
        num_context_passes, has_evidence = 1, True
        prefill, extend = denoiser.prefill, denoiser.extend
        denoise, evidence = denoiser.denoise, denoiser.evidence

    (text,) = SSDLM(Own(), tiny.tokenizer(), SLIDING).generate([PROMPT], T=T)
    assert text.passes_per_token * len(text.tokens) == pytest.approx(len(num_passes))
    assert SSDLM(denoiser, tiny.tokenizer(), SLIDING).generate(PROMPT, T=T).text == text.text


@pytest.mark.parametrize("control", [(), no_q, lambda texts: [0.0 for _ in texts], "context"])
def test_sees_without_a_classifier_that_could_read_the_block_is_refused_by_name(
    classifier, control
):
    model = SSDLM(tiny.block(), tiny.tokenizer(), SLIDING)
    if control == "context":  # a guide that is given as an object says itself what it reads
        control = classifier_guide(classifier, "positive")
    with pytest.raises(ValueError, match=r"^sees=block has no effect without a classifier that"):
        model.generate(PROMPT, sees="block", control=control)
    assert model.generate(PROMPT, sees="context").text == model.generate(PROMPT).text


def boom(context, logits):
    raise KeyError("a\nb")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (boom, r"control boom raised KeyError: 'a"),
        (lambda: 0, r"control <lambda> raised TypeError: .* takes 0 positional arguments"),
        (lambda a, b, c: 0, r"control <lambda> raised TypeError: .* missing 1 required"),
    ],
)
def test_what_goes_wrong_in_a_function_is_said_with_its_name(model, function, said):
    with pytest.raises(ValueError, match=said) as caught:
        model.generate("ab", length=3, control=function)
    assert "\n" not in str(caught.value)


def test_a_function_that_changes_its_context_changes_nothing_else(model):
    def careless(context, logits):
        context.zero_()
        return no_q(context, logits)

    texts = [model.generate("ab", length=9, control=one, lam=9.0).text for one in (no_q, careless)]
    assert texts[0] == texts[1]


def test_a_bounded_number_of_controls_is_known(monkeypatch):
    monkeypatch.setattr("ssdlm.engine.controls.MOST_KNOWN", 2)
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4))
    controls = model.engine.controls
    asked = [model.options.change(control=lambda texts: [0.0] * len(texts)) for _ in range(4)]
    first = [controls.ways(options)[0].scorer for options in asked]
    assert len(set(map(id, first))) == 4
    assert len(controls.known.made) == len(controls.scorers.made) == 2
    latest = [controls.ways(options)[0].scorer for options in asked[2:]]
    assert latest == first[2:]  # the same ones
    assert controls.ways(asked[0])[0].scorer is not first[0]  # made anew
