"""How a text is written: said before it is, and with it afterwards, in the same words."""

import json
from dataclasses import asdict, replace

import pytest
from tests import graphs, tiny

from ssdlm import SSDLM, GenerateOptions, cli
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.engine.explaining import explain

OPTIONS = GenerateOptions(
    length=6, B=(3,), T=3, grid="sliding", width=1.0, returns="w_0", nucleus="network", top_p=0.9
)
ON_A_CPU = "a CPU has no CUDA graphs"


def likes_a(context, logits):
    """A guide of one's own."""
    return logits[..., 0].sum(-1)


def vowels(texts):
    return [float(sum(letter in "aeiou" for letter in text)) for text in texts]


class Streamer:
    def put(self, ids): ...
    def end(self): ...


# name: (options, the program on a CPU, that on a GPU, what is said of it there if not captured)
TABLE = {
    "plain": ({}, "window", "window", ""),
    "greedy": ({"projection": "greedy"}, "window", "window", ""),
    "a wide window": ({"width": 3.0}, "window", "window", ""),
    "whole blocks": ({"grid": "uniform", "T": 4}, "window", "window", ""),
    "token by token": ({"mode": "autoregressive"}, "chain", "chain", ""),
    "nobody guesses": ({"mode": "speculative"}, "chain", "chain", ""),
    "a grammar": ({"regex": "[a-c]{6}"}, "window", "window", ""),
    "scores": ({"control": vowels, "particles": 3, "particle_step": 2}, "window", "window", ""),
    "a guide": ({"control": "GUIDE"}, "window", "guided", ""),
    "best of": ({"best_of": 2}, "window", "window", ""),
    "a grammar in a wide window": (
        {"regex": "[a-c]{6}", "width": 3.0}, "window", "window",
        "regex with width=3 has its place between the halves of a pass; use grid=sliding and wid"),
    "particles and a grammar": (
        {"regex": "[a-c]{6}", "particles": 2}, "window", "window",
        "particles weigh what regex makes of each token, between the halves of a pass; leave out"),
    "words": ({"must": ["a"]}, "window", "window", ""),
    "words, and words not to use": (
        {"must": ["a"], "must_not": ["b"]}, "window", "window",
        "must beside must_not is obeyed between the halves of a pass; leave one of them out"),
    "words not to use": ({"must_not": ["a"]}, "window", "window", ""),
    "words not to use in a wide window": (
        {"must_not": ["a"], "width": 3.0}, "window", "window", "must_not with width=3 has its"),
    "a grammar and a guide in a block": (
        {"regex": "[a-c]{6}", "control": "GUIDE", "sees": "block"}, "window", "window",
        "regex beside a control that sees a block alone has its place"),
    "a suffix": ({"suffix": "ab"}, "window", "window", ""),
    "a gap": ({"suffix": "ab", "gap": "2-4"}, "window", "window", ""),
    "a pin": ({"pin": {2: "b"}}, "window", "window", ""),
    "a sentence": ({"end_at_sentence": True}, "window", "window", ""),
    "a streamer": ({"streamer": Streamer()}, "window", "window", ""),
    "a guide in blocks": ({"control": "GUIDE", "grid": "staggered"}, "window", "guided", ""),
    "a guide in a block": (
        {"control": "GUIDE", "sees": "block"}, "window", "guided", "use sees=context"),
    "a guide and words": ({"control": "GUIDE", "must": ["a"]}, "window", "guided", ""),
    "a guide at some levels": (
        {"control": "GUIDE", "band": (0.0, 0.5)}, "window", "guided", ""),
    "a guide of one's own": (
        {"control": likes_a, "lam": 1.0}, "window", "guided", "no graph can hold control likes_a"),
    "uneven blocks": (
        {"grid": "uniform", "length": 7}, "reference", "reference",
        "blocks of 3, 3, 1 tokens are not of one length; use one B, and a length that is a mul"),
    "other steps": (
        {"T": 2}, "reference", "reference",
        "T=2, B=3 and width=1 do not move a window of one size by a position in so many passes"),
    "several passes": ({"T": 6, "width": 2.0}, "window", "window", ""),
    "several passes for a part": ({"T": 6, "width": 2.5}, "reference", "reference", "whole width"),
    "a kept state": (
        {"width": 3.0, "rho": 0.5}, "reference", "reference",
        "with rho=0.5 an open position keeps more than its latest token; use rho=0"),
    "nothing drawn": ({"width": 3.0, "top_p": 0.0}, "window", "window", ""),
    "an early end": (
        {"grid": "uniform", "early_exit": True}, "reference", "reference", "leave it out"),
    "an average": (
        {"control": "GUIDE", "reduction": "mean"}, "reference", "reference",
        "reduction=mean makes the texts of a batch depend on each other; use reduction=sum"),
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), OPTIONS)


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    return f"{tiny.save_classifier(tmp_path_factory.mktemp('guide'))}=positive"


def own(guide, name):
    options = dict(TABLE[name][0])
    if isinstance(options.get("control"), str):
        options["control"] = guide
    return options


@pytest.mark.parametrize("name", TABLE)
def test_what_is_said_beforehand_is_said_of_the_text(model, guide, name):
    options, (_, program, _, why) = own(guide, name), TABLE[name]
    said = model.explain("a dog", **options)
    text = model.generate("a dog", **options)
    assert text.written == said.written
    assert (said.written.device, said.written.program) == ("cpu", program)
    assert not said.written.is_captured
    if program == "reference":
        assert why in said.written.why
    else:
        assert said.written.why.startswith(ON_A_CPU)
    if text.finish_reason == "length":
        passes = pytest.approx(said.passes_per_token, rel=0.35 if "gap" in options else 1e-9)
        assert text.passes_per_token == passes or (
            said.is_most and text.passes_per_token < said.passes_per_token
        )
    if "streamer" not in options:
        first, _ = model.generate(["a dog", "no"], **options, batch_size=1)
        assert first.written == text.written  # whoever else is written


@pytest.mark.parametrize("name", TABLE)
def test_what_a_gpu_captures_and_why_not(model, guide, monkeypatch, name):
    _, _, program, why = TABLE[name]
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    written = model.explain("a dog", **own(guide, name)).written
    assert (written.program, written.is_captured) == (program, not why)
    assert written.why.startswith(why) or (why and why in written.why)
    assert bool(written.why) == bool(why)


class Silent:
    """A streamer that does nothing with what it gets."""

    def put(self, value):
        pass

    def end(self):
        pass


def test_who_looks_at_states_is_told_why_nothing_is_captured(model, monkeypatch):
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    assert model.explain("a dog").written.is_captured
    assert model.explain("a dog", stream=True).written.is_captured
    assert model.explain("a dog", states=True).written.why.startswith("candidates, guides and")
    assert model.explain("a dog", states=True, mode="autoregressive").written.is_captured


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"best_of": 2}, "best_of=2: a stream shows one text"),
        ({"control": lambda texts: [0.0] * len(texts), "particles": 3}, "particles=3 are weighed"),
    ],
    ids=["best of two", "particles"],
)
def test_what_no_stream_shows_is_not_explained_for_one(model, options, said):
    assert model.explain("a dog", **options).written.program
    with pytest.raises(ValueError, match=said):
        model.stream("a dog", **options)
    with pytest.raises(ValueError, match=said):
        model.explain("a dog", stream=True, **options)


def test_a_guide_that_reads_less_and_the_pieces_of_particles(model, guide, monkeypatch):
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    for guided in ({"control": guide}, {"control": guide, "particles": 2}):
        assert model.explain("a dog", **guided).written.program == "guided"
        assert "control reads 62 tokens" in model.explain("a dog", **guided, length=60).written.why
    assert model.explain([], control=vowels).written.program == "reference"  # the first piece
    assert model.explain([], control=vowels).written.why.startswith("the prompt has no tokens")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"grid": "warped", "projection": "greedy", "returns": "logits"}, ""),
        ({"must": ["a"]}, "nothing can act inside, as must would; leave it out"),
        ({"control": vowels}, "as control would"),
        ({"stream": True}, "as a stream would; leave it out"),
        ({"streamer": Silent()}, "as a streamer would; leave it out"),
        ({"grid": "staggered"}, "grid=staggered is no program's of an encoder; use grid=uniform"),
        ({"B": [3, 6]}, "give one B"),
        ({"projection": "multi_hot"}, "with projection=multi_hot an open position keeps more"),
        ({"length": 63}, "longer than the model's 64 positions; use a shorter length"),
    ],
)
def test_what_is_said_of_an_encoder(monkeypatch, options, why):
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), GenerateOptions(length=6, B=(6,), T=3))
    assert "this EncoderDenoiser cannot" in model.generate("a dog", length=2).written.why
    monkeypatch.setattr(PaddedEncoder, "takes", staticmethod(lambda denoiser: True))
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    written = model.explain("a dog", **options).written
    assert written.program == ("reference" if why else "encoder")
    assert why in written.why and written.is_captured == (not why)
    model.engine.is_deterministic = True
    assert model.explain("a dog").written.why.endswith("leave out deterministic")


def test_in_plain_words(model, guide):
    said = str(model.explain("a dog", control=guide, must=["a"], best_of=2)).splitlines()
    assert said[0] == "model: BlockDenoiser, V=64, 30240 parameters in float32"
    assert said[1:4] == [
        "device: cpu",
        "program: window, a window of noise behind what is decided",
        "captured: no: a CPU has no CUDA graphs; use a GPU",
    ]
    assert said[4].startswith("passes per token: ")
    assert said[5].startswith(f"control {guide}: gradient (logits, lambda ")
    assert said[6:] == [
        "must: the words have places in the text, which is planned before it is written",
        "2 texts are written for each that is kept, and the context stream rates them",
    ]
    words = model.explain("a dog", control=guide, gradient="words", threshold=2, lam=2, plausible=0)
    assert "gradient (words, threshold 2, lambda 2)" in str(words)
    likely = model.explain("a dog", control=guide, gradient="words", plausible=0.03)
    assert "gradient (words, threshold 0.5, plausible 0.03, lambda 4)" in str(likely)
    (aimed,) = model.explain("a dog", control=guide, target=0.2).notes
    assert aimed == f"target 0.2: this share of the texts seeks {guide}, the others avoid it"


def test_bad_options_are_refused_as_by_generate(model):
    for options in ({"lenght": 5}, {"regex": "("}, {"length": 0}, {"lam": 2.0}):
        with pytest.raises(ValueError) as said:
            model.explain("a", **options)
        with pytest.raises((ValueError, TypeError)) as written:
            model.generate("a", **options)
        assert "lenght" in options or str(said.value) == str(written.value)


def test_the_command_line_says_what_python_does(model, guide, tmp_path, capsys):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    words = ["explain", "--model", str(folder), "a dog", "--must", "a", "--particles", "2"]
    words += ["--control", guide]
    found = model.explain("a dog", must=["a"], particles=2, control=guide)
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.json()))
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{found}\n"
    prompts, target = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text('{"prompt": "a dog"}\n')
    files = ["--input", str(prompts), "--output", str(target)]
    assert cli.main(["generate", "--model", str(folder), *files]) == 0
    line = json.loads(target.read_text())
    assert line["written"] == asdict(model.explain("a dog").written)


def test_all_lengths_of_a_gap_are_written_alike(model):
    (firsts,) = model.requests(["a dog"], {"suffix": "ab", "gap": "1-5"}).firsts
    assert len({explain(model.engine, [one]).written for one in firsts}) == 1
    watched = [replace(one, is_watched=True) for one in firsts]
    assert explain(model.engine, watched).written.why.startswith(ON_A_CPU)
