"""A table of kinds of tokens says what reading their bytes says."""

import itertools
import random

import numpy as np
import pytest
from tests.constraints.grammars.machines import accepts

from ssdlm.constraints.grammars import kinds
from ssdlm.constraints.grammars.kinds import KindTable, read_tokens
from ssdlm.constraints.grammars.machine import TooLarge
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.constraints.grammars.utf8 import ByteMachine, byte_machine

BYTES = [bytes([code]) for code in range(256)]
PIECES = [b"ab", b"ba", b"a b", b"\xc3\xa9a", b"\xa9", b"b\xc3", b"aab", b"", b"<pad>", b"<end>"]
SPELLINGS = [*BYTES, *PIECES]
PAD, END = len(SPELLINGS) - 2, len(SPELLINGS) - 1
PATTERNS = ["", "a*", "(ab)+", ".{2,5}", "\u00e9{1,2}b", r"(?a)\w+ \w+", "[^a]*a[^a]*", "b?\u65e5"]


def compiled(pattern: str) -> tuple[ByteMachine, KindTable, np.ndarray]:
    machine = byte_machine(read_pattern(pattern))
    table, ends = read_tokens(machine, SPELLINGS, never={PAD}, end_of_text=END)
    return machine, table, ends


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_in_tokens_is_accepted_as_its_bytes_are(pattern):
    machine, table, ends = compiled(pattern)
    alphabet = [ord("a"), ord("b"), ord(" "), 0xC3, 0xA9, *range(256, PAD)]
    for tokens in itertools.product(alphabet, repeat=3):
        state = 1
        for token in tokens:
            state = table[state, token]
        spelled = b"".join(SPELLINGS[token] for token in tokens)
        is_text = b"" not in [SPELLINGS[token] for token in tokens]
        try:
            expected = is_text and accepts(machine, spelled.decode())
        except UnicodeDecodeError:
            expected = False
        assert bool(ends[state]) is expected, (tokens, spelled)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_reads_like_an_array(pattern):
    _, table, _ = compiled(pattern)
    states, tokens = range(table.num_states), range(len(SPELLINGS))
    whole = np.array([[table[state, token] for token in tokens] for state in states])
    safe = np.random.default_rng(0).random(len(whole)) < 0.5
    for state in states:
        assert (table[state] == whole[state]).all()
        assert (table.leading(state, safe) == safe[whole[state]]).all()
    for token in tokens:
        assert (table[:, token] == whole[:, token]).all()
    by_kind = table.by_kind(table.num_states * table.num_kinds)
    assert (by_kind.next_state[:, by_kind.kind_of] == whole).all()
    assert table.by_kind(table.num_states * table.num_kinds - 1) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_it_finds_over_all_tokens(pattern):
    _, table, _ = compiled(pattern)
    whole = np.stack([table[state] for state in range(table.num_states)])
    rng = np.random.default_rng(1)
    safe, allowed = rng.random(len(whole)) < 0.5, rng.random(len(SPELLINGS)) < 0.1
    safe[0] = False  # no text goes on from DEAD
    for kind in range(table.num_kinds):  # a kind is allowed or not as a whole
        alike = table.kind_of == kind
        allowed[alike] = allowed[alike.argmax()]
    into = safe[whole] & allowed
    assert (table.states_into(safe, allowed) == into.any(1)).all()
    some = rng.random(len(whole)) < 0.5
    reached = np.unique(whole[some][safe[whole[some]]])
    found_kinds, found_states = table.spread(some, safe)
    assert set(found_states.nonzero()[0]) == set(reached)
    assert (found_kinds[table.kind_of] == safe[whole[some]].any(0)).all()
    weights, after = rng.random(len(SPELLINGS)), rng.random(len(whole)) * safe
    by_kind = np.bincount(table.kind_of, weights, minlength=table.num_kinds)
    assert np.allclose(table.message(by_kind, after), (weights * after[whole]).sum(1))


def test_tokens_that_behave_alike_are_one_kind():
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = {"".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(3000)}
    spellings = [*(word.encode() for word in sorted(words)), b"<end>"]
    machine = byte_machine(read_pattern("[a-z]{0,500}"))
    table, _ = read_tokens(machine, spellings, never=(), end_of_text=len(spellings) - 1)
    assert table.num_kinds == 8  # nowhere, one to six letters, and the end
    assert len(table.targets) < 8 * table.num_states


def test_end_of_text_fits_where_a_text_may_end_and_anything_after_it():
    _, table, ends = compiled("ab")
    assert table[1, END] == 0
    state = table[table[1, ord("a")], ord("b")]
    over = table[state, END]
    assert ends[state] and ends[over] and (table[over] == over).all()


def test_a_table_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(kinds, "MOST_ARROWS", 100)
    with pytest.raises(TooLarge, match="100 pairs"):
        compiled(".{2,50}")
