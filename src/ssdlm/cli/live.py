"""A block settling out of noise, in a terminal: the view of `ssdlm generate`.  api -> [live]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ssdlm.tokenizer import HALF

if TYPE_CHECKING:
    from rich.text import Text

    from ssdlm.diffusion.sampler import Step
    from ssdlm.engine.requests import Draft

FRAMES_PER_SECOND = 12
SHADES = ((0.9, "bold magenta"), (0.3, "magenta"), (0.0, "dim magenta"))
"""Style of an open token by its probability, from the surest down."""
DECIDED, NOISE = "default", "bright_black"


def watch(prompt: str, drafts: Iterable[Draft], decode: list[str]) -> str:
    """Show drafts as they come and return the last one's text; `decode` spells each token."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    text = ""
    with Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True) as live:
        for draft in drafts:
            text = draft.text
            live.update(picture(prompt, draft, decode))
    return text


def picture(prompt: str, draft: Draft, decode: list[str]) -> Text:
    """Return one frame: the prompt, what is settled, and the block, its tokens shaded by trust."""
    from rich.text import Text

    frame = Text().append(prompt, style="cyan").append(draft.settled, style=DECIDED)
    for token, style in zip(draft.step.tokens[0].tolist(), styles(draft.step), strict=True):
        word = decode[token] if token < len(decode) else f" {token}"
        frame.append(as_noise(word) if style == NOISE else word, style=style)
    frame.append(f"\n[block {draft.block + 1}, {draft.t} steps left]", style="dim italic")
    return frame


def as_noise(word: str) -> str:
    """Return a word of noise as a terminal can show it: no line ends, no halves of letters."""
    return word if word.isprintable() and HALF not in word else " ."


def styles(step: Step) -> list[str]:
    """Return a style for each token of a block: decided, more or less sure, or still noise."""
    trusts = step.logits[0].float().softmax(-1).amax(-1).tolist()
    shades = [next(style for least, style in SHADES if trust >= least) for trust in trusts]
    num_noise = step.tokens.shape[1] - step.window.stop
    return [DECIDED] * step.window.start + shades + [NOISE] * num_noise
