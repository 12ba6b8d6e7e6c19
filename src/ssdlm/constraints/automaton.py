"""Which texts are allowed, token by token: no forbidden word, and the end of a sentence if asked.

    words, token spellings -> [automaton] -> placement, constrained

Forbidden words are looked for in bytes, since a token need not be a whole character and one text
can be cut into tokens in many ways. `Matcher` is a machine over bytes, whose state is the set of
forbidden words that may be under way. `build_automaton` runs it along the bytes of every token, so
that an `Automaton` reads a whole token by one look into a table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ssdlm.constraints.sentences import NO_END, Sentences, sentences_of

WORD_BYTES = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
"""What continues a forbidden word. No byte of another alphabet does: better a match too many."""
LAST_CASED = 0x1E944
"""No character beyond this one has another case."""
DEAD = 0
"""The state of a text that breaks a rule, or of one that can no longer end well."""

PartialMatch = tuple[int, int, bytes]
"""A forbidden word under way: the number of its pattern, the index in that pattern after the
character being read, and the bytes of this character still to come."""
PartialMatches = frozenset[PartialMatch]


@dataclass(frozen=True)
class Matcher:
    """Finds words in any case, where no letter, digit or _ stands beside them."""

    words: tuple[str, ...]

    @cached_property
    def patterns(self) -> list[tuple[str, str]]:
        """What is looked for, each with the word that it stands for."""
        return [(pattern, word) for word in self.words for pattern in spelling_patterns(word)]

    def expect(self, number: int, index: int) -> list[PartialMatch]:
        """Return what a pattern waits for at one of its characters, or after its last."""
        pattern, _ = self.patterns[number]
        if index == len(pattern):
            return [(number, index, b"")]
        matches = [(number, index + 1, spelling) for spelling in case_variants(pattern[index])]
        for fold, spelling in characters_with_long_folds().get(pattern[index], []):
            if pattern.startswith(fold, index):
                matches.append((number, index + len(fold), spelling))
        return matches

    def step(self, matches: PartialMatches, byte: int) -> tuple[PartialMatches, bool]:
        """Return the words under way after one more byte, and whether one has been completed."""
        is_inside, has_match = byte in WORD_BYTES, False
        after: set[PartialMatch] = set(new_matches(self, is_inside))
        for number, index, awaited in matches:
            pattern, word = self.patterns[number]
            if not awaited:  # complete, unless this byte makes it part of a longer word
                has_match = has_match or not is_inside
            elif awaited[0] == byte:
                reached = [(number, index, awaited[1:])]
                if len(awaited) == 1:
                    reached = self.expect(number, index)
                    # A word that ends in a sign is complete whatever follows.
                    ends_anywhere = not is_word_char(word[-1])
                    has_match = has_match or (index == len(pattern) and ends_anywhere)
                after.update(reached)
        return frozenset(after), has_match

    def after_prompt(self, text: bytes) -> PartialMatches:
        """Return what a prompt leaves under way, and what may begin where it ends."""
        matches = new_matches(self, False)
        longest = max((len(pattern.encode()) for pattern, _ in self.patterns), default=0)
        # Four times, since another case of a character may have up to four times its bytes.
        for byte in text[-4 * longest - 1 :]:
            matches, _ = self.step(matches, byte)
        # A word complete in the prompt is the prompt's own. A text is also read on its own, so
        # that any word may begin with it even where the prompt ends within a word.
        return frozenset(match for match in matches if match[2]) | new_matches(self, False)

    def find(self, text: bytes) -> str | None:
        """Return a word that occurs on its own in a text, as far as the text tells."""
        for number, word in enumerate(self.words):
            alone = Matcher(self.words[number : number + 1])
            matches = new_matches(alone, False)
            for byte in text:
                matches, has_match = alone.step(matches, byte)
                if has_match:
                    return word
        return None

    def stays_out(self, matches: PartialMatches, given: bytes) -> bool:
        """Tell whether no word under way is completed in given bytes; words of their own may be."""
        under_way = matches - new_matches(self, False)
        for byte in given:
            under_way, has_match = self.step(under_way, byte)
            if has_match:
                return False
            under_way -= new_matches(self, byte in WORD_BYTES)
            if not under_way:
                return True
        return all(awaited for _, _, awaited in under_way)

    def byte_table(self, start: PartialMatches) -> tuple[np.ndarray, np.ndarray]:
        """Return the next state for each state and byte, and which states a text may end in."""
        table, states = self.explore(start)
        accepts = [False] + [all(awaited for _, _, awaited in matches) for matches in states[1:]]
        return table, np.array(accepts)

    def explore(self, start: PartialMatches) -> tuple[np.ndarray, list[PartialMatches]]:
        """Return the next state for each state and byte, and what is under way in each state.

        State 0 is DEAD and state 1 is the start.
        """
        # Bytes that no pattern waits for differ only in whether they continue a word.
        indices = [
            (n, i) for n, (pattern, _) in enumerate(self.patterns) for i in range(len(pattern))
        ]
        expected = {
            byte for at in indices for _, _, spelling in self.expect(*at) for byte in spelling
        }
        known = {frozenset([(-1, -1, b"")]): DEAD, start: 1}
        rows, queue = [[DEAD] * 256], [start]
        for matches in queue:  # grows as states are found
            reached: dict[int, int] = {}
            row = []
            for byte in range(256):
                kind = byte if byte in expected else -1 - (byte in WORD_BYTES)
                if kind not in reached:
                    after, has_match = self.step(matches, byte)
                    if not has_match and after not in known:
                        known[after] = len(known)
                        queue.append(after)
                    reached[kind] = DEAD if has_match else known[after]
                row.append(reached[kind])
            rows.append(row)
        return np.array(rows, dtype=np.int32), list(known)


@lru_cache(maxsize=64)
def new_matches(matcher: Matcher, is_inside: bool) -> PartialMatches:
    """Return the words that may begin here; inside a word only those that begin with a sign."""
    return frozenset(
        match
        for number, (_, word) in enumerate(matcher.patterns)
        if not (is_inside and is_word_char(word[0]))
        for match in matcher.expect(number, 0)
    )


class ByKind(NamedTuple):
    """A table with one column for each kind of token: tokens that lead to the same states."""

    kind_of: np.ndarray
    """The kind of each token (V,)."""
    next_state: np.ndarray
    """The state after each state and kind (S, G)."""


@runtime_checkable
class Table(Protocol):
    """The state after each state and token, read like an array (S, V)."""

    def __getitem__(self, place: Any) -> Any: ...

    def leading(self, state: int, safe: np.ndarray) -> np.ndarray:
        """Return the tokens (V,) that lead from a state into `safe` (S,)."""
        ...

    def states_into(self, safe: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the states (S,) from which a token among those allowed (V,) leads into `safe`."""
        ...

    def by_kind(self, max_entries: int) -> ByKind | None:
        """Return the table with a column for each kind of token, None if that is too large."""
        ...

    def arrays(self) -> Sequence[np.ndarray]:
        """Return arrays that the table follows from."""
        ...


@dataclass(frozen=True)
class DenseTable:
    """A table with an entry for each state and token."""

    array: np.ndarray

    def __getitem__(self, place: Any) -> Any:
        return self.array[place]

    def leading(self, state: int, safe: np.ndarray) -> np.ndarray:
        return safe[self.array[state]]

    def states_into(self, safe: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        columns = allowed.nonzero()[0]
        return np.array([safe[row[columns]].any() for row in self.array])

    @cached_property
    def kinds(self) -> ByKind:
        """The table with a column for each kind of token."""
        known: dict[bytes, int] = {}
        columns = np.ascontiguousarray(self.array.T)
        kind_of = np.array([known.setdefault(one.tobytes(), len(known)) for one in columns])
        _, examples = np.unique(kind_of, return_index=True)
        return ByKind(kind_of, self.array[:, examples])

    def by_kind(self, max_entries: int) -> ByKind | None:
        return self.kinds if self.kinds.next_state.size <= max_entries else None

    def arrays(self) -> Sequence[np.ndarray]:
        return self.kinds


@dataclass(frozen=True)
class Automaton:
    """A machine that reads tokens; its states tell what may follow."""

    next_state: Table
    accepts: np.ndarray
    """The states in which a text may end (S,)."""
    hangs: np.ndarray
    """The states after a forbidden word that only one more letter would make another (S,)."""
    without_sentence_end: np.ndarray
    """Each state with the ends of sentences forgotten (S,)."""
    is_boundary: np.ndarray
    """Which tokens surely continue no word: they begin with a sign or space of ASCII (V,)."""
    end_of_text: int | None
    """The token at which a text is cut, if it is."""
    start: int
    sentences: Sentences | None
    cache: dict[tuple[int, bool, bytes], np.ndarray] = field(default_factory=dict, repr=False)
    """Results of `states_before`: rows of one batch, and words that move, ask for the same."""

    @cached_property
    def forgets(self) -> bool:
        """Whether no token but that at the end of a text matters to those after it.

        The first one may have to be among some, as that of a span.
        """
        if not isinstance(self.next_state, DenseTable):
            return False
        table = self.next_state.array
        rest = np.arange(table.shape[1]) != self.end_of_text
        states = set(table[self.start, rest].tolist()) - {DEAD}
        after = states.pop() if len(states) == 1 else DEAD
        is_same = self.without_sentence_end[after] == after
        return after != DEAD and bool(is_same and (table[after, rest] == after).all())

    @property
    def allows_all(self) -> bool:
        """Whether every token may follow whatever came before, as where no word is forbidden."""
        is_free = bool((self.next_state[self.start] != DEAD).all())
        return is_free and self.forgets and self.end_of_text is None

    @cached_property
    def digest(self) -> bytes:
        """A hash of all but the start: that of an equal automaton is equal, in any process."""
        found = hashlib.blake2b(digest_size=16)
        for array in (*self.next_state.arrays(), self.accepts, self.hangs):
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(array.tobytes())
        return found.digest()

    def allowed_tokens(self, needs_boundary: bool, is_early: bool) -> np.ndarray:
        """Return the tokens (V,) for a position: after a required word, before the last one."""
        allowed = self.is_boundary.copy() if needs_boundary else np.ones_like(self.is_boundary)
        if is_early and self.end_of_text is not None:
            allowed[self.end_of_text] = False
        return allowed

    def states_before(
        self, safe: np.ndarray, token: int | None, needs_boundary: bool, is_early: bool
    ) -> np.ndarray:
        """Return the states (S,) from which this token, or any allowed one, leads into `safe`.

        A forbidden word that hangs is continued by a given token alone: a network that is left
        nothing but letters after "the" writes "theway".
        """
        key = (-1 - needs_boundary if token is None else token, is_early, safe.tobytes())
        if key not in self.cache:
            if token is not None:
                before = safe[self.next_state[:, token]]
            else:
                allowed = self.allowed_tokens(needs_boundary, is_early)
                before = self.next_state.states_into(safe, allowed) & ~self.hangs
            self.cache[key] = before[self.without_sentence_end] if is_early else before
        return self.cache[key]

    def tokens_to_end(self, limit: int) -> np.ndarray | None:
        """Return how many tokens (S,) a text still needs at least, limit + 1 if more than `limit`.

        None if a text that can be finished in some number of tokens cannot always be finished in
        one more: then no single number says where it can.
        """
        safe, needed = self.accepts, np.where(self.accepts, 0, limit + 1)
        for count in range(1, limit + 1):
            wider = self.states_before(safe, None, False, False)
            if (safe & ~wider).any():
                return None
            if (wider == safe).all():
                break
            needed[wider & ~safe] = count
            safe = wider
        return needed

    def shortest(self) -> int | None:
        """Return the least number of tokens in a text, None if there is no text at all."""
        safe, count = self.accepts, 0
        while not safe[self.start]:
            wider = safe | self.states_before(safe, None, False, False)
            if (wider == safe).all():
                return None
            safe, count = wider, count + 1
        return count


def build_automaton(
    words: Sequence[str],
    spellings: Sequence[bytes],
    *,
    prompt: bytes = b"",
    end_of_text: int | None = None,
    is_sentence: bool = False,
) -> Automaton:
    """Return the automaton that keeps words out of a text, and has it end with a sentence."""
    matcher = Matcher(tuple(words))
    table, accepts = matcher.byte_table(matcher.after_prompt(prompt))
    next_state = read_tokens(table, spellings)
    hangs = ~accepts
    sentences = None
    without_sentence_end = np.arange(len(accepts))
    if is_sentence:
        # The product of two machines: state 3 * s + e is state s with a sentence's ending e.
        sentences = sentences_of(spellings)
        moves = sentences.transitions()
        next_state = (3 * next_state[:, None] + moves[None]).reshape(-1, len(spellings))
        accepts = (accepts[:, None] & (np.arange(3) != NO_END)).ravel()
        hangs = hangs.repeat(3)
        without_sentence_end = np.arange(len(accepts)) // 3 * 3
    if end_of_text is not None:
        # After end-of-text anything may stand, for it is cut off: one more state, never left.
        over = len(accepts)
        next_state[:, end_of_text] = np.where(accepts, over, DEAD)
        next_state = np.vstack([next_state, np.full_like(next_state[:1], over)])
        accepts = np.append(accepts, True)
        hangs = np.append(hangs, False)
        without_sentence_end = np.append(without_sentence_end, over)
    return Automaton(
        DenseTable(next_state),
        accepts,
        hangs,
        without_sentence_end,
        boundaries(spellings),
        end_of_text,
        start=3 if is_sentence else 1,
        sentences=sentences,
    )


def span_automaton(
    words: Sequence[str], spellings: Sequence[bytes], *, prompt: bytes, opening: str, given: bytes
) -> Automaton:
    """Return the automaton of a span: words stay out of it, but not out of what is given behind.

    Its first token spells the opening and goes on with something else than a space.
    """
    matcher = Matcher(tuple(words))
    _, states = matcher.explore(matcher.after_prompt(prompt))
    accepts = np.array([False] + [matcher.stays_out(one, given) for one in states[1:]])
    begins = re.compile(re.escape(opening.encode()) + rb"[^ \t\n\r\f\v]")
    is_first = np.array([begins.match(spelling) is not None for spelling in spellings])
    found = build_automaton(words, spellings, prompt=prompt)
    table, start = found.next_state[:], len(accepts)  # one more state, which nothing leads to
    return replace(
        found,
        next_state=DenseTable(np.vstack([table, np.where(is_first, table[found.start], DEAD)])),
        accepts=np.append(accepts, False),
        hangs=np.append(found.hangs, False),
        without_sentence_end=np.arange(start + 1),
        start=start,
    )


def boundaries(spellings: Sequence[bytes]) -> np.ndarray:
    """Return which tokens (V,) surely continue no word."""
    return np.array([bool(s) and s[0] < 0x80 and s[0] not in WORD_BYTES for s in spellings])


def read_tokens(table: np.ndarray, spellings: Sequence[bytes]) -> np.ndarray:
    """Return the state after each state and whole token (S, V), from that after each byte."""
    lengths = np.array([len(spelling) for spelling in spellings])
    letters = np.zeros((len(spellings), max(int(lengths.max()), 1)), dtype=np.uint8)
    for row, spelling in zip(letters, spellings, strict=True):
        row[: len(spelling)] = np.frombuffer(spelling, dtype=np.uint8)
    after = np.repeat(np.arange(len(table), dtype=np.int32)[:, None], len(spellings), 1)
    for column in range(letters.shape[1]):
        longer = (lengths > column).nonzero()[0]
        after[:, longer] = table[after[:, longer], letters[longer, column]]
    return after


def is_word_char(char: str) -> bool:
    """Tell whether a character is part of a word."""
    return char.isalnum() or char == "_"


def spelling_patterns(word: str) -> list[str]:
    """Return a word with its case folded, and as it is where folding makes it longer.

    The sharp s folds to ss, so that a word with it can be written in two lengths.
    """
    folded = word.casefold()
    return [folded] if len(folded) == len(word) else [folded, word]


@lru_cache(maxsize=1)
def characters_with_long_folds() -> dict[str, list[tuple[str, bytes]]]:
    """Return the characters whose folded case is longer, as (fold, spelling) by its first one."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for char in map(chr, range(LAST_CASED)):
        fold = char.casefold()
        if len(fold) > 1:
            found.setdefault(fold[0], []).append((fold, char.encode()))
    return found


@lru_cache(maxsize=1)
def case_groups() -> dict[str, set[str]]:
    """Return the characters that have other cases, each with those that it is the same as."""
    same: dict[str, set[str]] = {}
    for char in map(chr, range(LAST_CASED)):
        for key in {char.lower()[:1], char.upper()} - {char}:
            same.setdefault(key, {key} if len(key) == 1 else set()).add(char)
    return same


@lru_cache(maxsize=1024)
def case_variants(char: str) -> tuple[bytes, ...]:
    """Return a character's spellings in bytes, in any case."""
    groups = [case_groups().get(key, set()) for key in (char.lower()[:1], char.upper())]
    return tuple(sorted(c.encode() for c in {char}.union(*groups)))
