"""Texts on their way: what a draft tells, and events that rebuild it."""

from dataclasses import asdict

import pytest
import tokenizers
import torch
from tests import bpe, tiny
from tests.closeness import assert_close

from ssdlm import SSDLM, GenerateOptions
from ssdlm.engine.drafts import DraftEncoder, Watcher
from ssdlm.tokenizer import HALF, Tokenizer

PATHS = {
    "sliding": {"grid": "sliding", "T": 6, "width": 1.0},
    "wide sliding": {"grid": "sliding", "T": 6, "width": 4.0, "returns": "w_0"},
    "staggered": {"grid": "staggered", "T": 15, "width": 8.0},
    "all at once": {"grid": "warped", "T": 5},
    "left early": {"grid": "uniform", "T": 16, "early_exit": True},
    "with words": {"grid": "staggered", "T": 15, "width": 8.0, "must": ["hat"], "must_not": ["e"]},
    "a gap": {"grid": "sliding", "T": 6, "width": 1.0, "suffix": " end.", "length": 6},
    "to a stop string": {"stop": ["e", "a", "o"]},
    "to its end": {"stop_at_end": True, "length": 60},
    "whole sentences": {"grid": "warped", "T": 4, "end_at_sentence": True},
    "autoregressive": {"mode": "autoregressive"},
    "speculative": {"mode": "speculative"},
}


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(length=15, B=(6,), T=4))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tiny.save_classifier(tmp_path_factory.mktemp("drafts") / "mood")


@pytest.fixture(scope="module")
def bytewise():
    """A model whose tokens are mostly single bytes, so that many are no character."""
    strings = bpe.gpt2_strings()
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({string: i for i, string in enumerate(strings[:256])}, [])
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|endoftext|>"])
    return SSDLM(
        tiny.block(V=257), Tokenizer(backend), GenerateOptions(length=18, B=(6,), T=12, top_p=1.0)
    )


def events_of(model, prompt="the river", seen=None, **options):
    [request] = model.requests([prompt], options)
    return request, list(model.engine.events(request, **seen or {}))


class Client:
    """Keeps a text as its events tell it."""

    def __init__(self):
        self.positions, self.decided, self.texts, self.tokens = [], 0, "", []

    def take(self, event):
        if event["event"] == "block":
            assert len(self.tokens) == event["start"]
            self.texts, self.tokens = self.texts + event["text"], self.tokens + event["tokens"]
        if event["event"] != "draft":
            return
        for change in event["changed"]:
            while len(self.positions) <= change["position"]:
                self.positions.append({})
            state = self.positions[change["position"]]
            news = {key: value for key, value in change.items() if key != "position"}
            assert news
            assert all(state.get(key) != value for key, value in news.items() if key != "token")
            assert ("token" in news) == ("text" in news)
            if event["decided"] >= self.decided > change["position"]:
                assert news.keys() <= {"token", "text"}  # the text of half a character
                assert news["token"] == state["token"]
            state.update(news)
        assert len(self.positions) == event["length"]
        self.decided = event["decided"]

    @property
    def text(self):
        return "".join(position["text"] for position in self.positions)


@pytest.mark.parametrize("path", PATHS)
def test_the_events_of_a_text_rebuild_it(model, path):
    text = model.generate("the river", seed=3, **PATHS[path])
    request, events = events_of(model, seed=3, **PATHS[path])
    assert events[-1] == {"event": "done", **asdict(text)}
    client = Client()
    for event in events:
        client.take(event)
    assert [position["token"] for position in client.positions][: len(text.tokens)] == text.tokens
    assert client.text.startswith(text.text)
    assert client.decided == len(client.positions)
    assert client.tokens == text.tokens or "end_at_sentence" in PATHS[path]
    assert client.texts == text.text or "end_at_sentence" in PATHS[path]
    drafts = [event for event in events if event["event"] == "draft"]
    assert {event["num_blocks"] for event in drafts} == {len(request.blocks())}
    assert drafts[-1]["passes"] == pytest.approx(text.passes_per_token * max(1, len(text.tokens)))
    assert {event["event"] for event in events} == {"draft", "block", "done"}


@pytest.mark.parametrize("path", ["sliding", "wide sliding", "staggered", "all at once"])
def test_every_draft_is_rebuilt_and_only_what_changed_is_sent(model, path):
    options = PATHS[path] | {"seed": 1}
    _, events = events_of(model, **options)
    told = [event for event in events if event["event"] == "draft"]
    client = Client()
    for draft, event in zip(model.stream("the river", **options), told, strict=True):
        client.take(event)  # which refuses what was known
        end = draft.start + len(draft.tokens)
        shown = client.positions[draft.start : end]
        assert tuple(position["token"] for position in shown) == draft.tokens
        assert client.text.startswith(draft.text)
        for position, level in zip(shown, draft.noise, strict=True):
            assert abs(position["noise"] - level) < 1e-4
            assert (position["noise"] == 0) == (level == 0)
        window = draft.step.window
        assert len(draft.confidence) == window.stop - window.start
        assert (event["block"], event["t"], event["passes"]) == (draft.block, draft.t, draft.passes)
        assert event["decided"] == draft.decided
    entries = sum(len(event["changed"]) for event in told)
    assert entries < sum(event["length"] for event in told)


def test_a_moving_window_is_told_from_noise_to_decided(model):
    drafts = list(model.stream("the", grid="staggered", width=4.0, T=12, length=6))
    noises = [draft.noise for draft in drafts]
    assert noises[0][-1] == 1
    assert set(noises[-1]) == {0}
    assert all(list(noise) == sorted(noise) for noise in noises)
    assert [draft.decided for draft in drafts] == [noise.count(0) for noise in noises]
    assert len({draft.decided for draft in drafts}) > 3


def test_half_characters_never_break(bytewise):
    whole = cut = 0
    for seed in range(8):
        request, events = events_of(bytewise, "the", seed=seed, grid="sliding", width=1.0, T=6)
        client = Client()
        for event in events:
            client.take(event)
            if event["event"] == "draft":
                tokens = [position["token"] for position in client.positions]
                assert client.text == bytewise.text(tokens, request.context).rstrip(HALF)
        assert client.text == client.texts == events[-1]["text"]
        cut += bytewise.text(events[-1]["tokens"], request.context).endswith(HALF)
        *_, last = bytewise.stream("the", seed=seed, grid="sliding", width=1.0, T=6)
        assert last.text == client.text
        pieces = [position["text"] for position in client.positions]
        whole += "" in pieces
        assert all(not piece.endswith(HALF) for piece in pieces)
    assert whole > 0 and cut > 0


def test_a_character_of_several_tokens_stands_at_the_one_that_completes_it(bytewise):
    tokens = bytewise.tokenizer.encode("né€")
    assert len(tokens) == 6
    [request] = bytewise.requests(["the"], {"length": 6})
    encoder = DraftEncoder(Watcher(bytewise.engine.controls, request))
    assert encoder.update(tokens[:5]) == ["n", "", "é", "", ""]
    assert encoder.update(tokens) == ["n", "", "é", "", "", "€"]
    broken = [*tokens[:4], tokens[0], tokens[5]]
    assert encoder.update(broken) == ["n", "", "é", "", HALF + "n", ""]


def test_candidates_are_the_likeliest_of_every_open_position(model):
    options = PATHS["staggered"] | {"seed": 2}
    for draft in model.stream("the", candidates=3, **options):
        probs = draft.step.logits[0].softmax(-1)
        assert len(draft.candidates) == len(probs)
        for row, found in zip(probs, draft.candidates, strict=True):
            best = row.topk(3)
            assert [one.token for one in found] == best.indices.tolist()
            assert_close([one.probability for one in found], best.values)
            assert [one.text for one in found] == [model.text([one.token]) for one in found]
    _, events = events_of(model, "the", seen={"candidates": 3}, **options)
    told = [
        change["candidates"]
        for event in events
        if event["event"] == "draft"
        for change in event["changed"]
        if "candidates" in change
    ]
    assert len(told) > 15
    assert all(set(one) == {"token", "text", "probability"} for one in told[0])


def test_a_guide_says_what_it_makes_of_each_draft(model, classifier):
    seen = {"guides": [f"mood={classifier}"]}
    drafts = list(model.stream("the", seed=2, **PATHS["staggered"], **seen))
    labels = {"negative", "neutral", "positive"}
    for draft in drafts:
        assert draft.guides["mood"].keys() == labels
        assert_close(sum(draft.guides["mood"].values()), 1.0)
    assert len({draft.guides["mood"]["positive"] for draft in drafts}) > 5
    # At the end it has read the text itself, as it would while steering towards the label.
    positive = model.fit(f"{classifier}=positive")
    text = model.generate("the", seed=2, **PATHS["staggered"])
    tokens = torch.tensor([[*model.context("the"), *text.tokens]])
    expected = positive(tokens, torch.zeros(1, 0, model.denoiser.V)).exp()
    assert_close(drafts[-1].guides["mood"]["positive"], float(expected))
    _, events = events_of(model, "the", seed=2, seen=seen, **PATHS["staggered"])
    told = [event["guides"] for event in events if event["event"] == "draft"]
    assert abs(told[-1]["mood"]["positive"] - drafts[-1].guides["mood"]["positive"]) < 1e-3
    assert "guides" not in events_of(model, "the")[1][0]


@pytest.mark.parametrize("path", ["sliding", "staggered", "all at once"])
def test_after_no_prompt_a_guide_has_something_to_read_from_the_first_draft_on(
    model, classifier, path
):
    drafts = list(model.stream([], guides=str(classifier), seed=2, **PATHS[path]))
    assert all(draft.noise[0] < 1 and draft.guides[str(classifier)] for draft in drafts)


def test_drafts_under_control_end_as_the_text_does(model, classifier):
    options = {"control": f"{classifier}=positive:9", "gradient": "simplex", "seed": 4}
    seen = {"guides": [str(classifier)], "candidates": 2}
    _, events = events_of(model, seen=seen, **options)
    assert events[-1]["text"] == model.generate("the river", **options).text
    assert events[0]["guides"].keys() == {str(classifier)}


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"candidates": -1}, "candidates=-1 is out of range; use 0 to 100"),
        ({"candidates": 101}, "candidates=101 is out of range; use 0 to 100"),
        ({"guides": ["joy"]}, "there is no built-in guide 'joy'"),
        ({"guides": [""]}, r"guides=\[''\] is not a word or a list of words"),
        ({"candidates": 2, "mode": "autoregressive"}, "mode=autoregressive decides a token at a"),
    ],
)
def test_what_cannot_be_told_is_refused_before_the_first_draft(model, seen, message):
    with pytest.raises(ValueError, match=message):
        model.stream("the", **seen)


def test_a_guide_reads_chains_as_well(model, classifier):
    drafts = list(model.stream("the", mode="autoregressive", guides=str(classifier)))
    assert len(drafts) == 15
    assert len({draft.guides[str(classifier)]["positive"] for draft in drafts}) == 15
