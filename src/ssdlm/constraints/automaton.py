"""Which texts are allowed, token by token: no forbidden word, and an end of a sentence if asked.

    words, spellings -> [automaton] -> constraint

Forbidden words are looked for in bytes, since a token need not be a whole character, and one text
can be cut into tokens in many ways. A state is the set of words that may be under way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

WORD_BYTES = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
"""What continues a forbidden word. No byte of another alphabet does: better a match too many."""
LAST_CASED = 0x1E944
"""No character beyond has another case."""
DEAD = 0
"""The state of a text that breaks a rule, or of one that can no longer end well."""
SENTENCE_END = re.compile(r"[.!?]['\")\]\u2019\u201d]*(\s*)\Z")
CLOSERS = re.compile(r"['\")\]\u2019\u201d]*")
NONE, AWAITED, SEEN = 0, 1, 2
"""Whether a sentence ended: it did if a space, or the text's end, follows its full stop."""

Item = tuple[int, int, bytes]
"""A word under way: its form's number, the place in that after the character being read, and the
bytes of this still to come."""
Items = frozenset[Item]


@dataclass(frozen=True)
class Matcher:
    """Finds words in any case, between characters that continue no word."""

    words: tuple[str, ...]

    @cached_property
    def forms(self) -> list[tuple[str, str]]:
        """What is looked for, each with the word that it is a form of."""
        return [(form, word) for word in self.words for form in forms(word)]

    def at(self, number: int, index: int) -> list[Item]:
        """Return what a form waits for at one of its characters, or after its last."""
        form, _ = self.forms[number]
        if index == len(form):
            return [(number, index, b"")]
        items = [(number, index + 1, spelling) for spelling in cases(form[index])]
        for fold, spelling in unfolded().get(form[index], []):
            if form.startswith(fold, index):
                items.append((number, index + len(fold), spelling))
        return items

    def step(self, items: Items, byte: int) -> tuple[Items, bool]:
        """Return the words under way after one more byte, and whether one has been completed."""
        is_inside, has_match = byte in WORD_BYTES, False
        after: set[Item] = set(begun(self, is_inside))
        for number, index, awaited in items:
            form, word = self.forms[number]
            if not awaited:
                has_match = has_match or not is_inside
            elif awaited[0] == byte:
                reached = [(number, index, awaited[1:])]
                if len(awaited) == 1:
                    reached = self.at(number, index)
                    has_match = has_match or (index == len(form) and ends_anywhere(word))
                after.update(reached)
        return frozenset(after), has_match

    def after(self, text: bytes) -> Items:
        """Return what a prompt leaves under way, and what may begin where it ends."""
        items = begun(self, False)
        longest = max((len(form.encode()) for form, _ in self.forms), default=0)
        for byte in text[-4 * longest - 1 :]:
            items, _ = self.step(items, byte)
        # A word complete in the prompt is the prompt's own; a text also stands for itself.
        return frozenset(i for i in items if i[2]) | begun(self, False)

    def find(self, text: bytes) -> str | None:
        """Return a word that occurs on its own in a text, as far as the text tells."""
        for number, word in enumerate(self.words):
            alone = Matcher(self.words[number : number + 1])
            items = begun(alone, False)
            for byte in text:
                items, has_match = alone.step(items, byte)
                if has_match:
                    return word
        return None

    def spellings(self) -> set[bytes]:
        """Return the spellings of all characters that any form waits for."""
        places = [(n, i) for n, (form, _) in enumerate(self.forms) for i in range(len(form))]
        return {spelling for place in places for _, _, spelling in self.at(*place)}

    def table(self, start: Items) -> tuple[np.ndarray, np.ndarray]:
        """Return the next state for each state and byte, and which states a text may end in.

        State 0 is DEAD and state 1 is the start.
        """
        known = {frozenset([(-1, -1, b"")]): DEAD, start: 1}
        rows, queue = [[DEAD] * 256], [start]
        telling = {byte for spelling in self.spellings() for byte in spelling}
        for items in queue:  # grows as states are found
            reached: dict[int, int] = {}
            row = []
            for byte in range(256):
                kind = byte if byte in telling else -1 - (byte in WORD_BYTES)
                if kind not in reached:
                    after, has_match = self.step(items, byte)
                    if not has_match and after not in known:
                        known[after] = len(known)
                        queue.append(after)
                    reached[kind] = DEAD if has_match else known[after]
                row.append(reached[kind])
            rows.append(row)
        accepts = [False] + [all(awaited for _, _, awaited in items) for items in queue]
        return np.array(rows, dtype=np.int32), np.array(accepts)


@lru_cache(maxsize=64)
def begun(matcher: Matcher, is_inside: bool) -> Items:
    """Return the words that may begin here; inside a word only those that begin with a sign."""
    return frozenset(
        item
        for number, (_, word) in enumerate(matcher.forms)
        if not (is_inside and continues_word(word[0]))
        for item in matcher.at(number, 0)
    )


@dataclass(frozen=True)
class Sentences:
    """What each token does to the sentence it is in; all are (V,)."""

    ends: np.ndarray
    """NONE, AWAITED if a space has yet to follow, SEEN if the token holds it."""
    opens: np.ndarray
    """It begins with a space."""
    keeps: np.ndarray
    """It only closes quotes or brackets."""

    def follow(self) -> np.ndarray:
        """Return (3, V): NONE, AWAITED or SEEN after a token, given which it was before."""
        rest = [np.where(self.keeps, before, NONE) for before in (NONE, AWAITED)]
        none, awaited = (np.where(self.ends > 0, self.ends, other) for other in rest)
        awaited = np.where(self.opens, SEEN, awaited)
        return np.stack([none, awaited, np.full_like(none, SEEN)])

    def cut(self, tokens: Sequence[int]) -> int:
        """Return how many tokens there are up to the last end of a sentence, 0 without one."""
        end = awaited = 0
        for count, token in enumerate(tokens, start=1):
            if awaited and self.opens[token]:
                end, awaited = awaited, 0
            if self.ends[token] == SEEN:
                end = count
            has_end = self.ends[token] > 0 or (awaited and self.keeps[token])
            awaited = count if has_end else 0
        return awaited or end


@dataclass(frozen=True)
class Automaton:
    """A machine that reads tokens; its states say what may follow."""

    following: np.ndarray
    """The state after each state and token (S, V)."""
    accepts: np.ndarray
    """The states in which a text may end (S,)."""
    restart: np.ndarray
    """Each state with the ends of sentences forgotten (S,)."""
    breaks: np.ndarray
    """Which tokens surely continue no word: they begin with a sign or space of ASCII (V,)."""
    end_of_text: int | None
    """The token at which a text is cut, if it is."""
    start: int
    sentences: Sentences | None
    seen: dict[tuple[int, bool, bytes], np.ndarray] = field(default_factory=dict, repr=False)

    def allowed(self, is_break: bool, is_early: bool) -> np.ndarray:
        """Return the tokens (V,) that may stand after a word, and before all demands are met."""
        allowed = self.breaks.copy() if is_break else np.ones_like(self.breaks)
        if is_early and self.end_of_text is not None:
            allowed[self.end_of_text] = False
        return allowed

    def before(self, safe: np.ndarray, slot: int, is_break: bool, is_early: bool) -> np.ndarray:
        """Return the states from which some token for a slot, or its own one, leads into `safe`."""
        key = (-1 - is_break if slot < 0 else slot, is_early, safe.tobytes())
        if key not in self.seen:
            if slot >= 0:
                good = safe[self.following[:, slot]]
            else:
                columns = self.allowed(is_break, is_early).nonzero()[0]
                good = np.array([safe[row[columns]].any() for row in self.following])
            self.seen[key] = good[self.restart] if is_early else good
        return self.seen[key]


def automaton(
    words: Sequence[str],
    spellings: Sequence[bytes],
    *,
    prompt: bytes = b"",
    end_of_text: int | None = None,
    is_sentence: bool = False,
) -> Automaton:
    """Return the machine that keeps words out of a text, and wants it to end a sentence."""
    matcher = Matcher(tuple(words))
    table, accepts = matcher.table(matcher.after(prompt))
    following = over_tokens(table, spellings)
    sentences = None
    restart = np.arange(len(accepts))
    if is_sentence:
        sentences = sentences_of(spellings)
        moves = sentences.follow()
        following = (3 * following[:, None] + moves[None]).reshape(-1, len(spellings))
        accepts = (accepts[:, None] & (np.arange(3) != NONE)).ravel()
        restart = np.arange(len(accepts)) // 3 * 3
    if end_of_text is not None:
        over = len(accepts)
        following[:, end_of_text] = np.where(accepts, over, DEAD)
        following = np.vstack([following, np.full_like(following[:1], over)])
        accepts, restart = np.append(accepts, True), np.append(restart, over)
    breaks = np.array([bool(s) and s[0] < 0x80 and s[0] not in WORD_BYTES for s in spellings])
    start = 3 if is_sentence else 1
    return Automaton(following, accepts, restart, breaks, end_of_text, start, sentences)


def over_tokens(table: np.ndarray, spellings: Sequence[bytes]) -> np.ndarray:
    """Return the state after each state and whole token (S, V), from that after each byte."""
    lengths = np.array([len(spelling) for spelling in spellings])
    letters = np.zeros((len(spellings), max(int(lengths.max()), 1)), dtype=np.uint8)
    for row, spelling in zip(letters, spellings, strict=True):
        row[: len(spelling)] = np.frombuffer(spelling, dtype=np.uint8)
    after = np.repeat(np.arange(len(table), dtype=np.int32)[:, None], len(spellings), 1)
    for column in range(letters.shape[1]):
        going = (lengths > column).nonzero()[0]
        after[:, going] = table[after[:, going], letters[going, column]]
    return after


def sentences_of(spellings: Sequence[bytes]) -> Sentences:
    """Return what each token does to a sentence, from its spelling."""
    texts = [spelling.decode(errors="replace") for spelling in spellings]
    found = [SENTENCE_END.search(text) for text in texts]
    ends = [NONE if match is None else SEEN if match[1] else AWAITED for match in found]
    opens = [text[:1].isspace() for text in texts]
    keeps = [CLOSERS.fullmatch(text) is not None for text in texts]
    return Sentences(np.array(ends, dtype=np.int32), np.array(opens), np.array(keeps))


def continues_word(char: str) -> bool:
    """Tell whether a character is part of a word."""
    return char.isalnum() or char == "_"


def ends_anywhere(word: str) -> bool:
    """Tell whether a word is complete whatever follows: it ends in a sign."""
    return not continues_word(word[-1])


def forms(word: str) -> list[str]:
    """Return a word with its case folded, and as it is where folding makes it longer."""
    folded = word.casefold()
    return [folded] if len(folded) == len(word) else [folded, word]


@lru_cache(maxsize=1)
def unfolded() -> dict[str, list[tuple[str, bytes]]]:
    """Return what characters fold to, and their spellings, by the first of several characters."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for char in map(chr, range(LAST_CASED)):
        fold = char.casefold()
        if len(fold) > 1:
            found.setdefault(fold[0], []).append((fold, char.encode()))
    return found


@lru_cache(maxsize=1)
def cased() -> dict[str, set[str]]:
    """Return the characters that have other cases, each with those that it is the same as."""
    same: dict[str, set[str]] = {}
    for char in map(chr, range(LAST_CASED)):
        for key in {char.lower()[:1], char.upper()} - {char}:
            same.setdefault(key, {key} if len(key) == 1 else set()).add(char)
    return same


@lru_cache(maxsize=1024)
def cases(char: str) -> tuple[bytes, ...]:
    """Return a character's spellings in bytes, in any case."""
    groups = [cased().get(key, set()) for key in (char.lower()[:1], char.upper())]
    return tuple(sorted(c.encode() for c in {char}.union(*groups)))
