"""A block settling out of noise, in a terminal: the view of `ssdlm generate`.  api -> [live]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from ssdlm.api import Draft

FRAMES_PER_SECOND = 12
SHADES = ((0.9, "bold"), (0.5, "default"), (0.0, "dim"))
"""Style of a token by its probability, from the surest down."""


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

    frame = Text(prompt, style="cyan")
    frame.append(draft.settled, style="default")
    probs = draft.step.logits[0].float().softmax(-1)
    for token, trust in zip(draft.step.tokens[0].tolist(), probs.amax(-1).tolist(), strict=True):
        style = next(style for least, style in SHADES if trust >= least)
        frame.append(decode[token] if token < len(decode) else f" {token}", style=style)
    frame.append(f"\n[block {draft.block + 1}, {draft.t} steps left]", style="dim italic")
    return frame
