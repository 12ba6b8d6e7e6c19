"""A text as HTML, for a notebook: how sure each word is, and how it settled.  requests -> [showing]

It needs nothing but itself, takes the colours of the page around it, and stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, groupby
from typing import NamedTuple

from ssdlm.tokenizer import HALF

MOST_PIECES, MOST_LETTERS = 600, 20_000
"""Tokens that tell how sure they are, and letters that are shown at all."""
MOST_FRAMES, MOST_FRAME_LETTERS = 60, 2_000
"""Steps that are shown, and letters of each: the newest."""
SECONDS_PER_FRAME, SECONDS_AT_THE_END = 0.14, 5.0
OPEN = ((0.9, "c"), (0.4, "b"), (0.0, "a"))
"""The class of a token that is being denoised by its probability, from the surest down."""
DECIDED = ((0.3, "c"), (0.03, "b"), (0.0, "a"))
"""The same of a token that is decided: few words are certain in view of those before them alone."""
GIVEN, NOISE = "p", "n"

STYLE = """
.ssdlm{display:grid;max-width:50em;line-height:1.6}
.ssdlm>*{grid-area:1/1;white-space:pre-wrap;overflow-wrap:anywhere}
.ssdlm>small{grid-area:2/1;opacity:.7}
.ssdlm .p{color:#3b82c4}.ssdlm .b{opacity:.75}.ssdlm .a{opacity:.55;border-bottom:1px dotted}
.ssdlm .n{opacity:.25}.ssdlm .f :is(.a,.b,.c){color:#c2549a;border:0}
"""


class Piece(NamedTuple):
    """What a token adds to a text, and what is known of it."""

    text: str
    certainty: float | None = None
    """The probability of the token; None where nobody knows."""
    noise: float = 0.0
    """1 is noise, 0 is decided."""


@dataclass(frozen=True)
class Timing:
    """When the frames of an animation are seen: each in its turn, the last one for longer."""

    count: int

    @property
    def style(self) -> str:
        """The rules for frames of the class f, and e for the last one, which stands alone still."""
        before = SECONDS_PER_FRAME * (self.count - 1)
        total = before + SECONDS_AT_THE_END
        f, e = f"f{self.count}", f"e{self.count}"
        return (
            f".{f}{{visibility:hidden;animation:{f} {total:.2f}s step-end infinite}}"
            f".{e}{{animation:{e} {total:.2f}s step-end infinite}}"
            f"@keyframes {f}{{0%{{visibility:visible}}"
            f"{100 * SECONDS_PER_FRAME / total:.3f}%{{visibility:hidden}}}}"
            f"@keyframes {e}{{0%{{visibility:hidden}}"
            f"{100 * before / total:.3f}%{{visibility:visible}}}}"
            f"@media(prefers-reduced-motion){{.{f},.{e}{{animation:none}}}}\n"
        )

    def attributes(self, index: int) -> str:
        """Return what an element needs to be frame `index`."""
        if index == self.count - 1:
            return f'class="e e{self.count}"'
        delay = index * SECONDS_PER_FRAME
        return f'class="f f{self.count}" style="animation-delay:{delay:.2f}s"'


def as_noise(word: str) -> str:
    """Return a word of noise as it can be shown: no line ends, no halves of letters."""
    return word if word.isprintable() and HALF not in word else " ."


def shade(certainty: float | None, shades: Sequence[tuple[float, str]]) -> str:
    """Return the class of a token that is as sure as this."""
    return next(name for least, name in shades if (certainty or 0.0) >= least)


def as_html(
    prompt: str, pieces: Sequence[Piece], steps: Sequence[Sequence[Piece]], caption: str
) -> str:
    """Return a text whose words tell how sure they are; before it, in turn, its steps."""
    chosen = list(chosen_of(steps))
    timing = Timing(len(chosen) + 1)
    given, near = (span(prompt[-most:], GIVEN) for most in (MOST_LETTERS, MOST_FRAME_LETTERS))
    frames = [
        f"<div {timing.attributes(index)} aria-hidden=true>{near}{frame(step)}</div>"
        for index, step in enumerate(chosen)
    ]
    last = timing.attributes(len(chosen)) if chosen else 'class="e"'
    style = STYLE + (timing.style if chosen else "")
    return (
        f'<div class="ssdlm"><style>{style}</style>{"".join(frames)}'
        f"<div {last}>{given}{whole(pieces)}</div><small>{escape(caption)}</small></div>"
    )


def chosen_of(steps: Sequence[Sequence[Piece]]) -> Iterator[Sequence[Piece]]:
    """Yield as many of the steps as are shown; the last one is the text itself."""
    every = -(-len(steps) // MOST_FRAMES) or 1
    return (step for index, step in enumerate(steps[:-1]) if index % every == 0)


def frame(step: Sequence[Piece]) -> str:
    """Return a step: what is decided, open or noise, each run of a kind together."""
    shown, room = [], MOST_FRAME_LETTERS
    for piece in reversed(step):
        text = as_noise(piece.text) if piece.noise == 1 else piece.text
        kind = NOISE if piece.noise == 1 else shade(piece.certainty, OPEN) if piece.noise else ""
        shown.append((kind, text))
        room -= len(text)
        if room < 0:
            break
    runs = groupby(reversed(shown), key=lambda one: one[0])
    return "".join(span("".join(text for _, text in run), kind) for kind, run in runs)


def whole(pieces: Sequence[Piece]) -> str:
    """Return a text, its first words with how sure they are; far too long ones end early."""
    shown = [
        span(text, shade(certainty, DECIDED), f"{certainty:.1%}")
        if certainty is not None and number < MOST_PIECES
        else escape(text)
        for number, (text, certainty, _) in enumerate(within(pieces, MOST_LETTERS))
    ]
    left = sum(len(piece.text) for piece in pieces) - MOST_LETTERS
    return "".join(shown) + (f" ... ({left} more letters)" if left > 0 else "")


def within(pieces: Sequence[Piece], room: int) -> list[Piece]:
    """Return the first pieces of a text, so many letters of them."""
    ends = list(accumulate(len(piece.text) for piece in pieces))
    return [
        piece._replace(
            text=piece.text[: room - end + len(piece.text)] if end > room else piece.text
        )
        for piece, end in zip(pieces, ends, strict=True)
        if end - len(piece.text) < room
    ]


def span(text: str, kind: str, title: str = "") -> str:
    """Return a text of a kind."""
    if not text or not kind:
        return escape(text)
    told = f' title="{title}"' if title else ""
    return f'<span class="{kind}"{told}>{escape(text)}</span>'
