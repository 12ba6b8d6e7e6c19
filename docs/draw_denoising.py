"""Draw a text settling out of noise, as an animated SVG: python docs/draw_denoising.py

Every frame is a step of a real `SSDLM.stream`; nothing is made up. Without animation, or where
motion is not wanted, the finished text stands still.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from ssdlm import SSDLM
from ssdlm.cli.live import as_noise

PICTURE = Path(__file__).parent / "denoising.svg"
COLUMNS, FONT, LINE, MARGIN = 78, 14, 22, 18
SECONDS_A_FRAME, SECONDS_AT_THE_END = 0.13, 4.0
PROMPT, DECIDED, OPEN, NOISE = "p", "d", "o", "n"

STYLE = """
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
rect{fill:#fff;stroke:#d0d7de}.p{fill:#0969da}.d{fill:#1f2328}.o{fill:#bf3989;font-weight:bold}
.n{fill:#b4bcc4}.s{fill:#6e7781;font-size:12px}
@media(prefers-color-scheme:dark){rect{fill:#0d1117;stroke:#30363d}.p{fill:#58a6ff}.d{fill:#e6edf3}
.o{fill:#ff7bd5}.n{fill:#48505a}.s{fill:#8b949e}}
.f{visibility:hidden;animation:f %.2fs step-end infinite}
.e{animation:e %.2fs step-end infinite}
@keyframes f{0%%{visibility:visible}%.3f%%{visibility:hidden}}
@keyframes e{0%%{visibility:hidden}%.3f%%{visibility:visible}}
@media(prefers-reduced-motion){.f,.e{animation:none}}
"""


class Piece(NamedTuple):
    """Some text, and what it is: the prompt, decided, open, or noise."""

    text: str
    kind: str


def frames(
    model: SSDLM, prompt: str, *, every: int, seed: int
) -> Iterator[tuple[list[Piece], str]]:
    """Yield pictures of a run, one in `every` steps and the last of each block, with a caption."""
    words = model.spellings()
    for draft in model.stream(prompt, seed=seed):
        if draft.t % every and not draft.step.is_last:
            continue
        tokens, at = draft.step.tokens[0].tolist(), draft.step.window
        noise = "".join(as_noise(words[token]) for token in tokens[at.stop :])
        parts = (
            Piece(prompt, PROMPT),
            Piece(draft.settled + model.text(tokens[: at.start]), DECIDED),
            Piece(model.text(tokens[at]), DECIDED if draft.step.is_last else OPEN),
            Piece(noise, NOISE),
        )
        caption = f"block {draft.block + 1}, {draft.t} steps left"
        yield [Piece(" ".join(part.text.split("\n")), part.kind) for part in parts], caption


def wrapped(pieces: list[Piece]) -> list[list[Piece]]:
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


def group(lines: list[list[Piece]], caption: str, bottom: int, attributes: str) -> str:
    """Return one frame."""
    rows = []
    for number, line in enumerate(lines, start=1):
        spans = "".join(f'<tspan class="{kind}">{escape(text)}</tspan>' for text, kind in line)
        rows.append(f'<text x="{MARGIN}" y="{MARGIN + number * LINE - 6}">{spans}</text>')
    told = f'<text x="{MARGIN}" y="{bottom}" class="s">{caption}</text>'
    return f"<g {attributes}>{''.join(rows)}{told}</g>"


def drawing(shots: list[tuple[list[Piece], str]]) -> str:
    """Return the SVG: every frame is shown at its time, the last one for longer."""
    pages = [(wrapped(pieces), caption) for pieces, caption in shots]
    height = max(len(lines) for lines, _ in pages) * LINE + 2 * MARGIN + LINE
    width = round(COLUMNS * FONT * 0.602) + 2 * MARGIN
    before = SECONDS_A_FRAME * (len(pages) - 1)
    total = before + SECONDS_AT_THE_END
    share = 100 * SECONDS_A_FRAME / total
    style = STYLE % (FONT, total, total, share, 100 * before / total)
    body = []
    for index, (lines, caption) in enumerate(pages):
        is_last = index == len(pages) - 1
        delay = f'class="f" style="animation-delay:{index * SECONDS_A_FRAME:.2f}s"'
        body.append(group(lines, caption, height - MARGIN, 'class="e"' if is_last else delay))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
        f"<title>A text settling out of noise</title><style>{style}</style>"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
        + "\n".join(body)
        + "</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="builtin:mini", help="folder or Hub id")
    parser.add_argument("--prompt", default="The movie was")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=2, help="draw one in so many steps")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    model = SSDLM.from_pretrained(given.model)
    shots = list(frames(model, given.prompt, every=given.every, seed=given.seed))
    given.out.write_text(drawing(shots), encoding="utf-8")
    print(f"wrote {given.out}: {len(shots)} frames, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
