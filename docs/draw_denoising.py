"""Draw a text settling out of noise, as an animated SVG: python docs/draw_denoising.py

Every frame is a step of a real `SSDLM.stream`; nothing is made up. Without animation, or where
motion is not wanted, the finished text stands still.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from ssdlm import SSDLM
from ssdlm.engine.showing import OPEN, Timing, as_noise, shade

PICTURE = Path(__file__).parent / "denoising.svg"
PROMPT_TEXT = "The old man"
OPTIONS = {"length": 25, "grid": "staggered", "width": 25, "T": 500, "top_p": 0.85, "seed": 53}
"""A window as wide as the block: in the middle of the run all 25 positions settle together."""
EVERY = 9
COLUMNS, FONT, LINE, MARGIN = 76, 15, 26, 20
PROMPT, DECIDED, NOISE = "p", "d", "n"

STYLE = """
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
rect{fill:#fff;stroke:#d0d7de}.p{fill:#0969da}.d{fill:#1f2328}.c{fill:#a3136f;font-weight:bold}
.b{fill:#c85a9e}.a{fill:#dfa3c6}.n{fill:#b4bcc4}.s{fill:#59636e;font-size:11px}
@media(prefers-color-scheme:dark){rect{fill:#0d1117;stroke:#30363d}.p{fill:#58a6ff}.d{fill:#e6edf3}
.c{fill:#ff8fdc}.b{fill:#c0619f}.a{fill:#7d4569}.n{fill:#48505a}.s{fill:#9198a1}}
"""


class Piece(NamedTuple):
    """Some text, and what it is: the prompt, decided, open, or noise."""

    text: str
    kind: str


class Frame(NamedTuple):
    """What is seen at one step, and the line below it."""

    pieces: list[Piece]
    caption: str


def frames(model: SSDLM, prompt: str, *, every: int, **options: Any) -> Iterator[Frame]:
    """Yield pictures of a run, one in `every` steps and the last of each block."""
    words = model.spellings()
    for draft in model.stream(prompt, states=True, **options):
        if draft.t % every and not draft.step.is_last:
            continue
        tokens, at = draft.step.tokens[0].tolist(), draft.step.window
        trusts = draft.step.logits[0].float().softmax(-1).amax(-1).tolist()
        pieces = [Piece(prompt, PROMPT)]
        if draft.step.is_last:
            pieces.append(Piece(draft.settled + model.text(tokens), DECIDED))
        else:
            pieces.append(Piece(draft.settled + model.text(tokens[: at.start]), DECIDED))
            for token, trust in zip(tokens[at], trusts, strict=True):
                pieces.append(Piece(as_noise(words[token]), shade(trust, OPEN)))
            pieces += [Piece(as_noise(words[token]), NOISE) for token in tokens[at.stop :]]
        steps = f"{draft.t} step{'s' if draft.t != 1 else ''} left"
        told = [Piece(" ".join(piece.text.split("\n")), piece.kind) for piece in pieces]
        yield Frame(told, f"block {draft.block + 1}, {steps}")


def wrapped(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Return pieces cut into lines, each of at most COLUMNS letters, between words."""
    lines: list[list[Piece]] = [[]]
    room = COLUMNS
    for text, kind in pieces:
        for word in text.replace(" ", "\0 ").split("\0"):
            if len(word) > room:
                lines.append([])
                word, room = word.lstrip(), COLUMNS
            last = lines[-1][-1] if lines[-1] else Piece("", "")
            if last.kind == kind:
                lines[-1][-1] = Piece(last.text + word, kind)
            elif word:
                lines[-1].append(Piece(word, kind))
            room -= len(word)
    return lines


def group(lines: list[list[Piece]], caption: str, y: int, attributes: str) -> str:
    """Return one frame."""
    rows = []
    for number, line in enumerate(lines, start=1):
        spans = "".join(f'<tspan class="{kind}">{escape(text)}</tspan>' for text, kind in line)
        rows.append(f'<text x="{MARGIN}" y="{MARGIN + number * LINE - 8}">{spans}</text>')
    told = f'<text x="{MARGIN}" y="{y}" class="s">{caption}</text>'
    return f"<g {attributes}>{''.join(rows)}{told}</g>"


def drawing(shots: Sequence[Frame], command: str) -> str:
    """Return the SVG: every frame is shown at its time, the last one for longer."""
    pages = [(wrapped(shot.pieces), shot.caption) for shot in shots]
    height = max(len(lines) for lines, _ in pages) * LINE + 2 * MARGIN + 44
    width = round(COLUMNS * FONT * 0.602) + 2 * MARGIN
    timing = Timing(len(pages))
    style = STYLE % FONT + timing.style
    body = [
        group(lines, caption, height - 42, timing.attributes(index))
        for index, (lines, caption) in enumerate(pages)
    ]
    text = "".join(piece.text for piece in shots[-1].pieces).strip()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="{width}" '
        f'viewBox="0 0 {width} {height}">'
        f"<title>A text settling out of noise: {escape(text)}</title><style>{style}</style>"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
        + "\n".join(body)
        + f'<text x="{MARGIN}" y="{height - 18}" class="s">{escape(command)}</text></svg>\n'
    )


def command_of(prompt: str, options: dict[str, Any]) -> str:
    """Return the command line that writes the same text."""
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    return " ".join(["ssdlm generate", shlex.quote(prompt).replace("'", '"'), *flags])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:mini", help="folder or Hub id")
    parser.add_argument("--prompt", default=PROMPT_TEXT)
    for name, value in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--every", type=int, default=EVERY, help="draw one in so many steps")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    model = SSDLM.from_pretrained(given.model, device="cpu")
    options = {name: getattr(given, name) for name in OPTIONS}
    shots = list(frames(model, given.prompt, every=given.every, **options))
    picture = drawing(shots, command_of(given.prompt, options))
    given.out.write_text(picture, encoding="utf-8")
    print(f"wrote {given.out}: {len(shots)} frames, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
