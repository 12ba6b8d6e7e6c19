"""A block settling out of noise, in a terminal: the view of `ssdlm generate`.  api -> [live]"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ssdlm.engine.showing import as_noise

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ssdlm.engine.requests import Draft

FRAMES_PER_SECOND = 12
SHADES = ((0.9, "bold magenta"), (0.3, "magenta"), (0.0, "dim magenta"))
"""Style of an open token by its probability, from the surest down."""
DECIDED, NOISE = "default", "bright_black"


@contextmanager
def told(words: str) -> Iterator[None]:
    """Show a few words on a terminal for as long as something takes."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        print(words, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def watch(prompt: str, drafts: Iterable[Draft], decode: list[str], num_blocks: int = 0) -> str:
    """Show drafts as they come and return the last one's text; `decode` spells each token.

    Interrupted, it prints the prompt and what is decided of the text.
    """
    from rich.console import Console
    from rich.live import Live

    console, draft = Console(stderr=True), None
    try:
        with Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True) as live:
            for draft in drafts:
                frame = picture(prompt, draft, decode, num_blocks)
                live.update(newest_lines(frame, console))
    except KeyboardInterrupt:
        if draft is not None:
            print(prompt + decided(draft, decode), flush=True)
        raise
    return "" if draft is None else draft.text


def decided(draft: Draft, decode: list[str]) -> str:
    """Return the part of a text that no later step changes: left of the window, in its block."""
    if draft.step.is_last:
        return draft.text
    tokens = draft.step.tokens[0, : draft.step.window.start].tolist()
    return draft.settled + "".join(spelled(token, decode) for token in tokens)


def newest_lines(frame: Text, console: Console) -> Text:
    """Return as much of the end of a frame as the screen has room for."""
    from rich.text import Text

    lines = frame.wrap(console, console.width)
    return Text("\n").join(lines[-max(1, console.height - 1) :])


def spelled(token: int, decode: list[str]) -> str:
    """Return a token's own text; its number where the model has no tokenizer."""
    return decode[token] if token < len(decode) else f" {token}"


def picture(prompt: str, draft: Draft, decode: list[str], num_blocks: int = 0) -> Text:
    """Return one frame: the prompt, what is settled, and the block, its tokens shaded by trust."""
    from rich.text import Text

    frame = Text().append(prompt, style="cyan").append(draft.settled, style=DECIDED)
    for token, style in zip(draft.tokens, styles(draft), strict=True):
        word = spelled(token, decode)
        frame.append(as_noise(word) if style == NOISE else word, style=style)
    block = f"block {draft.block + 1}" + (f" of {num_blocks}" if num_blocks else "")
    frame.append(f"\n[{block}, {draft.t} steps left]", style="dim italic")
    return frame


def styles(draft: Draft) -> list[str]:
    """Return a style for each token of a block: decided, more or less sure, or still noise."""
    window = draft.step.window
    shades = [next(style for least, style in SHADES if own >= least) for own in draft.confidence]
    return [DECIDED] * window.start + shades + [NOISE] * (len(draft.tokens) - window.stop)
