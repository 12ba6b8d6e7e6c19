"""Spans written anew: the rest of a text stays to the byte, and words join without a space lost."""

import json
import re

import numpy as np
import pytest
from tests import bpe, causal, tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli import main
from ssdlm.constraints.automaton import span_automaton
from ssdlm.diffusion.likelihood import text_nll
from ssdlm.engine import rewriting
from ssdlm.engine.requests import Opened
from ssdlm.engine.rewriting import Rewriting, Span, splits_character
from ssdlm.engine.runners import Runners
from ssdlm.tokenizer import load_tokenizer

OWN = GenerateOptions(length=7, B=(4,), T=4, returns="w_0")
TEXT = "the river ran by the mill and the men sat in the sun."
SPANS = [(4, 9), (21, 25)]


@pytest.fixture(scope="module")
def letters():
    """A model whose tokens are letters, so that a space is a token of its own."""
    return SSDLM(tiny.block(), tiny.tokenizer(), OWN)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model whose tokens are words with the space before them, and bytes."""
    tokenizer = load_tokenizer(bpe.write_gpt2(tmp_path_factory.mktemp("bpe")))
    return SSDLM(tiny.block(V=tokenizer.V), tokenizer, OWN)


def outside(text, spans):
    """What lies between spans."""
    edges = [0, *(place for span in spans for place in span), len(text)]
    return [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("length", ["equal", "free"])
@pytest.mark.parametrize("which", ["letters", "words"])
@pytest.mark.usefixtures("unchecked")
def test_all_but_the_spans_stays_to_the_byte(request, which, length):
    model, text = request.getfixturevalue(which), TEXT
    if which == "words":
        text = "\ufeffThe\r\nriver  had caf\u00e9\t, \u4e2d\U0001f600 and the men."
    spans = [(m.start(), m.end()) for m in re.finditer("river|men", text)]
    for rewrite in model.rewrite(text, spans, length=length, alternatives=3):
        assert outside(rewrite.text, rewrite.spans) == outside(text, spans)
        assert rewrite.text not in (text, "") and len(rewrite.generations) == 2


def test_equal_is_as_many_tokens_as_there_were(letters, words):
    (rewrite,) = letters.rewrite(TEXT, SPANS, seed=1)
    assert [end - start for start, end in rewrite.spans] == [5, 4], "a letter is a token"
    text = "The river had risen in the night."
    (rewrite,) = words.rewrite(text, [(4, 9)])
    rest = len(words.tokenizer.encode(" had risen in the night."))
    count = len(words.tokenizer.encode(" river"))
    assert len(rewrite.generations[0].tokens) == count + rest


@pytest.mark.usefixtures("unchecked")
def test_free_keeps_the_length_whose_span_and_right_side_are_likeliest(letters):
    kept = set()
    for seed in range(2):
        (rewrite,) = letters.rewrite(TEXT, [(10, 16)], length="free", seed=seed)
        options = OWN.change(seed=seed)
        work = Rewriting(letters.engine, TEXT, [Span(10, 16)], [options], length="free")
        (context,), (asked,) = work.asked(0)
        assert list(asked.lengths) == [4, 5, 6, 7, 8]
        found = [
            next(letters.engine.write(letters.engine.prepare([context], [one])))[1]
            for one in (asked.change(length=length) for length in asked.lengths)
        ]
        best = min(found, key=lambda one: text_nll(letters.denoiser, context, one.tokens))
        assert rewrite.generations[0].tokens == best.tokens
        kept.add(len(best.tokens))
    assert len(kept) > 1, "or one length would do"


@pytest.mark.parametrize("more", [{}, {"must": ["fog"]}, {"grid": "uniform"}, {"must_not": ["e"]}])
@pytest.mark.parametrize("which", ["letters", "words"])
@pytest.mark.usefixtures("unchecked")
def test_a_program_writes_a_span_as_the_reference_loop_does(request, which, more):
    model = request.getfixturevalue(which)
    own = OWN.change(seed=4, projection="sampling", nucleus="network", rho=0.0, **more)
    work = Rewriting(model.engine, TEXT, [Span(10, 20)], [own])
    requests = model.engine.prepare(*work.asked(0))
    ((_, text),) = model.engine.write(requests)
    steps = list(model.engine.steps([requests[0]]))
    assert text.tokens == [one for step in steps if step.is_last for one in step.tokens[0].tolist()]
    assert text.written.program == "window"
    why = model.engine.runners.why_chosen(requests[0])
    assert why.startswith("suffix beside must_not is obeyed") if "must_not" in more else not why


@pytest.mark.parametrize("more", [{}, {"must": ["fog"]}, {"temperature": 0.5, "top_k": 9}])
@pytest.mark.parametrize("which", ["letters", "words", "adapted"])
@pytest.mark.usefixtures("unchecked")
def test_blocks_of_all_lengths_share_a_batch_as_on_a_gpu(request, monkeypatch, which, more):
    if which == "adapted":
        folder = causal.save_adapted(request.getfixturevalue("tmp_path"))
        model, more = SSDLM.from_pretrained(folder), more | {"grid": "warped"}
    else:
        model = request.getfixturevalue(which)
    own = GenerateOptions(T=4, returns="w_0", seed=4, nucleus="network").change(**more)
    work = Rewriting(model.engine, TEXT, [Span(10, 20)], [own], length="free")
    requests = model.engine.prepare(*work.asked(0))
    assert len({sum(one.blocks()) for one in requests}) > 2

    def texts():
        found = model.engine.candidates(requests)
        return {(len(text.tokens), text.sample): text for _, text in found}

    plain = texts()
    monkeypatch.setattr(Runners, "is_padded", lambda self, request: request.num_given > 0)
    assert len({model.engine.runners.key_of(one) for one in requests}) == 1
    assert texts() == plain
    last = list(model.engine.stream(requests[1]))[-1]
    assert list(last.tokens) == plain[sum(requests[1].blocks()), requests[1].sample].tokens


def test_alternatives_are_what_their_seeds_give_alone(letters):
    found = letters.rewrite(TEXT, SPANS, alternatives=3, seed=5, T=2)
    assert [one.seed for one in found] == [5, 6, 7]
    assert len({one.text for one in found}) == 3
    assert [letters.rewrite(TEXT, SPANS, seed=one.seed, T=2) for one in found] == [
        [one] for one in found
    ]


def test_spans_are_written_from_left_to_right_in_view_of_each_other(letters):
    (rewrite,) = letters.rewrite(TEXT, SPANS[::-1], must=[["fog"], ["up"]], length="free")
    assert rewrite.spans == sorted(rewrite.spans)
    first, second = rewrite.generations
    (start, end), (later, _) = rewrite.spans
    assert first.prompt == TEXT[:4] and second.prompt == rewrite.text[:later]
    assert "up" in rewrite.text[start:end] and "fog" in rewrite.text[later:]
    assert first.text.endswith(TEXT[9 : 9 + rewriting.MOST_AFTER]), "it saw the old right side"


@pytest.mark.parametrize(
    ("span", "old"),
    [
        ((4, 9), "river"),
        ((3, 9), "river"),
        ((4, 10), "river"),
        ((3, 13), "river had"),
        ((0, 3), "The"),
        ((6, 9), "ver"),
        ((4, 6), "ri"),
        ((23, 32), "the night"),
        ((24, 33), "he night."),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_words_join_with_the_spaces_that_were_there(words, span, old):
    text = "The river had risen in the night."
    a = text.index(old, max(0, span[0]))
    for rewrite in words.rewrite(text, [span], alternatives=4):
        ((start, end),) = rewrite.spans
        new = rewrite.text[start:end]
        assert rewrite.text == text[:a] + new + text[a + len(old) :]
        assert new and new == new.strip(rewriting.SPACES)
        (generation,) = rewrite.generations
        assert generation.prompt in (text[:a].removesuffix(" "), "<|endoftext|>")
        first = words.tokenizer.token_bytes()[generation.tokens[0]]
        assert first.startswith(b" ") == text[:a].endswith(" ")


@pytest.mark.usefixtures("unchecked")
def test_forbidden_words_are_those_of_the_span(letters):
    """The right side may have them, but none may begin in the span and end there."""
    spellings = letters.engine.compiler.spellings
    automaton = span_automaton(
        ["ab cd", "x", "e"], spellings, prompt=b"", opening="", given=b" cd e x."
    )

    def is_legal(text):
        state = automaton.start
        for token in letters.tokenizer.encode(text):
            state = automaton.next_state[state, token]
        return bool(automaton.accepts[state])

    assert is_legal("ab c") and is_legal("cab") and is_legal("abe")
    assert not any(map(is_legal, ("ab", "q ab", "x y", "no e", " ab c", "")))
    free = letters.rewrite(TEXT, [(4, 9)], alternatives=12)
    signs = [*" .,!?'-", "the"]
    held = letters.rewrite(TEXT, [(4, 9)], alternatives=12, must_not=signs)
    assert any(set(one.text[4:9]) & set(" .,!?'-") for one in free)
    assert not any(set(one.text[4:9]) & set(" .,!?'-") for one in held)


def test_control_words_and_pins_reach_the_span(letters):
    def prefers_e(context, logits):
        return logits.log_softmax(-1)[..., 4].sum(-1)

    how = {"control": prefers_e, "lam": 50.0, "gradient": "simplex"}
    (pushed,) = letters.rewrite(TEXT, [(10, 20)], **how)
    assert pushed.text[10:20].count("e") > 5
    (required,) = letters.rewrite(TEXT, [(10, 20)], must=["fog"])
    assert " fog" in required.text[10:20]
    (pinned,) = letters.rewrite(TEXT, [(10, 20)], pin={0: "Z", 4: "mist"})
    assert pinned.text[10] == "Z" and pinned.text[14:18] == "mist"


@pytest.mark.usefixtures("unchecked")
def test_an_adapter_rewrites_within_its_positions(tmp_path):
    folder = causal.save_adapted(tmp_path)
    model = SSDLM.from_pretrained(folder)
    text = 8 * f"{TEXT}\n"
    span = text.index("mill", 300), text.index("mill", 300) + 4
    (rewrite,) = model.rewrite(text, [span], T=4)
    assert outside(rewrite.text, rewrite.spans) == outside(text, [span])
    (generation,) = rewrite.generations
    assert text[: span[0]].endswith(generation.prompt) and len(generation.prompt) == 128 - 32 - 4
    with pytest.raises(ValueError, match=r"span 1-200 takes 198 tokens, and the model sees 128"):
        model.rewrite(text, [(1, 200)])
    (best,) = model.rewrite(TEXT, [SPANS[0]], T=4)
    assert model.rewrite(TEXT, [SPANS[0]], T=4, best_of=4) == [best]
    (single,) = model.rewrite(TEXT, [SPANS[0]], T=4, best_of=1)
    assert best.generations[0].calls == 4 * (single.generations[0].calls + 1)
    (free,) = model.rewrite(TEXT, [SPANS[0]], T=2, length="free")
    assert model.rewrite(TEXT, [SPANS[0]], T=2, length="free", best_of=1) == [free]
    base = SSDLM.from_pretrained(folder.parent / "base")
    line = "rewriting needs several open positions, .* it needs an adapter"
    with pytest.raises(ValueError, match=line):
        base.rewrite(TEXT, SPANS)


def test_without_a_tokenizer_there_are_no_words_to_rewrite():
    with pytest.raises(ValueError, match="rewriting needs a tokenizer, and this model has none"):
        SSDLM(tiny.block(), None, OWN).rewrite(TEXT, SPANS)


def test_an_encoder_rewrites_at_equal_length():
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), OWN)
    (rewrite,) = model.rewrite(TEXT, SPANS)
    assert outside(rewrite.text, rewrite.spans) == outside(TEXT, SPANS)
    with pytest.raises(ValueError, match=r"length=free needs a model with .* use length=equal"):
        model.rewrite(TEXT, SPANS, length="free")


BAD = [
    ({"spans": [(4, 9), (8, 12)]}, "spans 4-9 and 8-12 overlap; make one of them"),
    ({"text": ""}, "the text is empty; give one with words"),
    ({"spans": [(4, 99)]}, "span 4-99 is empty or lies outside the text, whose characters are"),
    ({"spans": [(-2, 3)]}, "span -2-3 is empty or lies outside"),
    ({"spans": [(9, 4)]}, "span 9-4 is empty or lies outside"),
    ({"spans": [(4, 4)]}, "span 4-4 is empty"),
    ({"spans": [(3, 4)]}, "span 3-4 has nothing but spaces; give one with a word"),
    ({"spans": []}, "spans is empty; give at least one"),
    ({"spans": [4, 9]}, "is not a list of places such as"),
    ({"spans": [(4, 9, 11)]}, "is not a list of places such as"),
    ({"spans": None}, "is not a list of places such as"),
    ({"spans": [("4", 9)]}, "is not a list of places such as"),
    ({"text": "cafe\u0301 now", "spans": [(0, 4)]}, "span 0-4 splits the character at 4, which"),
    ({"text": "a\r\nb", "spans": [(2, 4)]}, "splits the character at 2, which goes on with U+000A"),
    ({"text": 5}, "text=5 is not a text in UTF-8"),
    ({"text": "a\ud800", "spans": [(0, 1)]}, "is not a text in UTF-8"),
    ({"length": "longer"}, "length='longer'"),
    ({"alternatives": 0}, "alternatives=0 is out of range; ask for 1 to 1000000"),
    ({"alternatives": 2, "seed": 2**63 - 1}, "seed=9223372036854775808 is out of range"),
    ({"gap": (2, 4)}, "gap=2-4: use length=free"),
    ({"suffix": "x"}, "suffix=x: the text behind a span is its suffix"),
    ({"num_samples": 2}, "num_samples=2: use alternatives"),
    ({"max_new_tokens": 9}, "length=9: a span is as long as it was; use length=free"),
    ({"stop": ["x"]}, "a span ends where the text goes on"),
    ({"end_at_sentence": True}, "end_at_sentence=True: a span ends where"),
    ({"regex": "a+"}, "regex=a+: a pattern is for whole texts"),
    ({"mode": "autoregressive"}, "mode=autoregressive: only mode=diffusion sees both sides"),
    ({"must": ["a fog bank"]}, "room for 5 in span 4-9; use length=free or a longer span"),
    ({"must": [["fog"], ["mist", "fogs"]]}, "takes 10 tokens and there is room for 9"),
    ({"pin": {4: "fog"}}, "takes 3 tokens from 4 on, and there is room for 5 in span 4-9; pin it"),
    ({"pin": {1: "fog"}, "length": "free"}, "from 1 on, and there is room for 3 in span 4-9"),
    ({"seed": [1, 2, 3]}, "seed=[1, 2, 3] is not one for each of 2 spans; give one each"),
    ({"spam": 1}, "there is no option 'spam'"),
    ({"alternative": 2}, "there is no option 'alternative'; the nearest is alternatives"),
    ({"keep_steps": True}, "'keep_steps'; the steps of a span are not kept; leave it out"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=lambda one: str(one)[:40])
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_meant_is_refused_in_one_line(letters, given, message):
    asked = {"text": TEXT, "spans": [(4, 9), (10, 19)]} | given
    with pytest.raises(ValueError) as caught:
        letters.rewrite(**asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("e\u0301a", [1]),
        ("a\U0001f469\u200d\U0001f469b", [2, 3]),
        ("\U0001f44b\U0001f3fda", [1]),
        ("\u263a\ufe0fa", [1]),
        ("\u0915\u0940x", [1]),
        ("a\r\nb", [2]),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\U0001f1e9 \U0001f1ea\U0001f1f8", [1, 3, 7]),
        ("\U0001f3f4\U000e0067\U000e007fa", [1, 2]),
        ("\u1112\u1161\u11ab\u1100\u1173 \uac00\u11ab\ud55c\uae00", [1, 2, 4, 7]),
        ("\u4e2d\u6587 ab", []),
    ],
)
def test_a_character_that_goes_on_is_not_split(text, places):
    assert [at for at in range(len(text) + 1) if splits_character(text, at)] == places


@pytest.mark.usefixtures("unchecked")
def test_the_command_prints_the_text_and_nothing_else(letters, tmp_path, capsys, monkeypatch):
    letters.save_pretrained(tmp_path / "model")
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT.encode() + b" no\r\nend")
    text = file.read_bytes().decode()
    asked = ["--model", str(tmp_path / "model"), "--span", "21-25", "--span", "4-9", "--seed", "2"]
    assert main(["rewrite", str(file), *asked]) == 0
    (expected,) = letters.rewrite(text, SPANS, seed=2)
    assert capsys.readouterr().out == expected.text
    asked += ["--alternatives", "2", "--length", "free", "--must-not", "e"]
    with file.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert main(["rewrite", "-", *asked, "--json"]) == 0
    expected = letters.rewrite(text, SPANS, seed=2, alternatives=2, length="free", must_not=["e"])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["text"], one["seed"]) for one in printed] == [
        (one.text, one.seed) for one in expected
    ]
    assert printed[0]["spans"] == [list(span) for span in expected[0].spans]
    assert main(["rewrite", str(file), *asked]) == 0
    assert capsys.readouterr().out == "".join(f"{one.text}\n" for one in expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--span", "4-9", "--span", "5-7"], "error: spans 4-9 and 5-7 overlap"),
        (["--span", "4"], "4 is not two places such as 4-9"),
        ([], "--span"),
        (["--span", "4-9", "--length", "7"], "--length"),
        (["--span", "4-9", "--suffix", "x"], "unrecognized argument --suffix"),
    ],
    ids=str,
)
def test_a_bad_command_is_one_line(letters, tmp_path, capsys, words, message):
    letters.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["rewrite", str(tmp_path / "text.txt"), "--model", str(tmp_path / "model"), *words]
    try:
        code = main(asked)
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


def test_a_folder_in_place_of_a_text_is_one_line(tmp_path, capsys):
    assert main(["rewrite", str(tmp_path), "--span", "0-1"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is a folder and not a text; give a file\n"


def test_a_file_that_is_no_text_is_one_line(tmp_path, capsys):
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    assert main(["rewrite", str(tmp_path / "bad.txt"), "--span", "0-1"]) == 2
    assert "bad.txt is not UTF-8 (byte 3)" in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path / "none.txt"), "--span", "0-1"]) == 2
    said = capsys.readouterr().err
    assert "error: there is no file" in said and "none.txt; give one, or -" in said


def test_the_first_token_of_a_span_is_the_only_one_that_is_held(words):
    (request,) = words.engine.prepare([Opened((5, 6), " ")], [OWN.change(suffix=" the")])
    assert request.placement is not None
    automaton = request.placement.constraint.automaton
    first = request.placement.legal_tokens(automaton.start, 0)
    spelled = [words.engine.compiler.spellings[token] for token in np.flatnonzero(first)]
    assert spelled and all(re.match(rb" [^ \n]", one) for one in spelled)
    state = request.placement.step(automaton.start, 0, int(np.flatnonzero(first)[0]))
    assert request.placement.legal_tokens(state, 1).all()
