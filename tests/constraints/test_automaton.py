"""Forbidden words and ends of sentences, read token by token."""

import random
import re

import numpy as np
import pytest

from ssdlm.constraints.automaton import Matcher, build_automaton
from ssdlm.constraints.placement import TokenConstraint, find_placement
from ssdlm.constraints.sentences import sentences_of

BYTES = [bytes([code]) for code in range(256)]
PIECES = ["a", "b", "A", "B", " ", ".", "'", "\u00e9", "\u00c9", "_", "1", "-"]


def pattern(word: str) -> str:
    """What the automaton promises: a word between bytes that are not ASCII letters or digits."""
    before = "(?<![0-9A-Za-z_])" if re.match(r"\w", word) else ""
    after = "(?![0-9A-Za-z_])" if re.search(r"\w\Z", word) else ""
    return before + re.escape(word) + after


def reads(automaton, text: bytes, tokens: list[bytes]) -> bool:
    """Whether a text, cut into tokens, is accepted."""
    state = automaton.start
    for token in tokens:
        state = automaton.next_state[state, BYTES_AND_PAIRS.index(token)]
    assert b"".join(tokens) == text
    return bool(automaton.accepts[state])


BYTES_AND_PAIRS = [*BYTES, *(a.encode() + b.encode() for a in PIECES for b in PIECES)]


def cut(text: bytes, rng: random.Random) -> list[bytes]:
    """A text in tokens, one of many ways."""
    tokens = []
    while text:
        pair = next((p for p in BYTES_AND_PAIRS[256:] if text.startswith(p)), None)
        tokens.append(pair if pair and rng.random() < 0.5 else text[:1])
        text = text[len(tokens[-1]) :]
    return tokens


def test_it_accepts_exactly_the_texts_without_the_words():
    rng = random.Random(0)
    seen = {True: 0, False: 0}
    for _ in range(60):
        words = ["".join(rng.choices(PIECES, k=rng.randint(1, 3))) for _ in range(3)]
        words = [word for word in words if word.strip()] or ["a"]
        automaton = build_automaton(words, BYTES_AND_PAIRS)
        for _ in range(15):
            text = "".join(rng.choices(PIECES, k=rng.randint(0, 8)))
            expected = not any(re.search(pattern(word), text, re.I) for word in words)
            assert reads(automaton, text.encode(), cut(text.encode(), rng)) is expected, (
                words,
                text,
            )
            seen[expected] += 1
    assert min(seen.values()) > 100


@pytest.mark.parametrize(
    ("prompt", "text", "is_allowed"),
    [
        ("the ba", "d dog", False),
        ("the ba", "dger", True),
        ("the bad", " dog", True),
        ("the bad", "", True),
        ("em", "bad", False),
        ("a bad", "bad", False),
        ("not ", "BAD!", False),
    ],
)
def test_the_border_to_the_prompt_counts_and_the_prompt_does_not(prompt, text, is_allowed):
    automaton = build_automaton(["bad"], BYTES, prompt=prompt.encode())
    state = automaton.start
    for byte in text.encode():
        state = automaton.next_state[state, byte]
    assert bool(automaton.accepts[state]) is is_allowed


def test_a_broken_character_hides_nothing():
    automaton = build_automaton(["bad"], BYTES)
    state = automaton.start
    for byte in b"\xe2bad\xe2":
        state = automaton.next_state[state, byte]
    assert not automaton.accepts[state]


def test_words_are_found_in_a_text_on_its_own():
    matcher = Matcher(("art", "e.g.", "Stra\u00dfe"))
    assert matcher.find(b"start") is None
    assert matcher.find(b"an ART!") == "art"
    assert matcher.find(b"an art") is None  # which may be an artist
    assert matcher.find(b"see e.g.this") == "e.g."
    assert matcher.find("die STRA\u1e9eE!".encode()) == "Stra\u00dfe"


def case_forms(word: str) -> set[str]:
    return {word, word.casefold(), word.upper(), word.lower(), word.title(), word.capitalize()}


@pytest.mark.parametrize(
    "word", ["stra\u00dfe", "\ufb01n", "\u0149", "\ufb03", "\u0130x", "\u1fb3"]
)
def test_case_forms_of_another_length_are_found_both_ways(word):
    for banned in case_forms(word):
        for form in case_forms(word):
            assert Matcher((banned,)).find(f"a {form}!".encode()) == banned, (banned, form)
            automaton = build_automaton([banned], BYTES)
            state = automaton.start
            for byte in form.encode():
                state = automaton.next_state[state, byte]
            assert not automaton.accepts[state]


def test_every_character_is_found_in_every_case():
    for char in map(chr, range(0x1E944)):
        forms = case_forms(char) - {char}
        for form in forms if char.isprintable() else ():
            assert Matcher((char,)).find(f" {form}!".encode()) == char
            assert Matcher((form,)).find(f" {char}!".encode()) == form


def test_a_form_that_ends_in_a_mark_is_still_a_word_of_its_own():
    assert Matcher(("\u01f0",)).find("j\u030cab".encode()) is None
    assert Matcher(("\u01f0",)).find("J\u030c!".encode()) == "\u01f0"
    assert Matcher(("mass",)).find("ma\u00dfe ".encode()) is None


def test_a_longer_form_is_found_across_the_border():
    automaton = build_automaton(["\ufb03"], BYTES, prompt=b"an FF")
    assert not automaton.accepts[automaton.next_state[automaton.start, ord("I")]]


TOKENS = ["a", " a", ".", ".\n", '"', '."', " ", "5", "!", "?)", "<end>", ""]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (["a", ".", " a"], 2),
        (["a", ".", " a", "."], 4),
        (["a", ".", "5", " a"], 0),
        (["a", ".", '"', " a", "a"], 3),
        (["a", ".\n", "a"], 2),
        (["a", "?)"], 2),
        (["a", " a"], 0),
        ([], 0),
    ],
)
def test_a_text_is_cut_at_the_last_end_of_a_sentence(text, kept):
    sentences = sentences_of([token.encode() for token in TOKENS])
    assert sentences.cut([TOKENS.index(token) for token in text]) == kept


def test_a_text_ends_well_exactly_if_there_is_something_to_cut_it_at():
    rng = random.Random(1)
    spellings = [token.encode() for token in TOKENS]
    automaton = build_automaton([], spellings, is_sentence=True)
    verdicts = []
    for _ in range(400):
        tokens = rng.choices(range(len(TOKENS)), k=rng.randint(0, 6))
        state = automaton.start
        for token in tokens:
            state = automaton.next_state[state, token]
        verdicts.append(bool(automaton.accepts[state]))
        assert verdicts[-1] == (automaton.sentences.cut(tokens) > 0), [TOKENS[t] for t in tokens]
    assert 50 < sum(verdicts) < 350


def test_end_of_text_is_for_texts_that_may_end():
    spellings = [token.encode() for token in TOKENS]
    end = TOKENS.index("<end>")
    automaton = build_automaton(["a"], spellings, end_of_text=end, is_sentence=True)
    state = automaton.next_state[automaton.start, end]
    assert not automaton.accepts[state]
    state = automaton.next_state[automaton.next_state[automaton.start, TOKENS.index(".")], end]
    assert np.all(automaton.accepts[automaton.next_state[state]])


def test_a_longer_word_is_one_token_or_required_so_that_no_letters_are_glued_on():
    spellings = [b" the", b" there", b"re", b"way", b" a", b" th", b"e"]
    automaton = build_automaton(["the"], spellings)
    free = find_placement(TokenConstraint(automaton, 4, {}, ()))
    pinned = find_placement(TokenConstraint(automaton, 4, {1: 2}, ()))
    assert free is not None and pinned is not None
    legal = free.legal_tokens(automaton.start, 0)
    assert [spelling for spelling, is_legal in zip(spellings, legal, strict=True) if is_legal] == [
        b" there", b"re", b"way", b" a", b" th", b"e"
    ]  # fmt: skip
    assert not free.is_legal(free.step(automaton.start, 0, 5), 1, 6)
    assert pinned.is_legal(automaton.start, 0, 0)


@pytest.mark.parametrize("is_sentence", [False, True])
@pytest.mark.parametrize("end_of_text", [None, 255])
def test_tokens_to_the_end_tell_where_a_text_can_be_finished(is_sentence, end_of_text):
    settings = {"end_of_text": end_of_text, "is_sentence": is_sentence}
    automaton = build_automaton(["bad", "a dog"], BYTES, **settings)
    placement = find_placement(TokenConstraint(automaton, 6, {}, ()))
    needed = automaton.tokens_to_end(6)
    for room, safe in enumerate(reversed(placement.safe)):
        assert ((needed <= room) == safe).all()
    assert set(needed) == ({0, 1, 7} if is_sentence else {0, 7})


def test_a_dense_table_has_a_column_for_each_kind_of_token():
    table = build_automaton(["bad", "a dog"], BYTES_AND_PAIRS).next_state
    by_kind = table.by_kind(table.array.size)
    assert (by_kind.next_state[:, by_kind.kind_of] == table.array).all()
    assert len({column.tobytes() for column in table.array.T}) == by_kind.next_state.shape[1] < 50
    assert table.by_kind(by_kind.next_state.size - 1) is None
