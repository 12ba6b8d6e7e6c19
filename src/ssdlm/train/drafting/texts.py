"""Texts that a model writes itself, to train a drafter on and to count its right guesses.

engine.programs.chain -> [texts] -> loop
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ssdlm.denoiser.drafter import BaseNetwork, Drafter, read_texts
from ssdlm.diffusion.noise import RowNoise, mix
from ssdlm.engine.batch import Entry
from ssdlm.engine.chat import chat_text, said
from ssdlm.engine.programs.chain import Chain
from ssdlm.progress import bar
from ssdlm.shapes import Tensor
from ssdlm.storage.jsonl import parse_jsonl
from ssdlm.storage.lines import file_lines
from ssdlm.tokenizer import Tokenizer

AT_ONCE = 512
"""Texts that are written side by side on a GPU."""
FEW = 8
"""The same on a CPU."""
PROMPTS = "prompt", "question", "text"
"""What a line of a file of prompts may have."""
MOST_CHARACTERS = 20
"""Characters of a text that are looked at for each token of it."""


@dataclass(frozen=True)
class OwnText:
    """A text that a model wrote token by token, under the noise of a seed."""

    tokens: tuple[int, ...]
    """With the prompt."""
    num_given: int
    seed: int


def write_texts(
    network: BaseNetwork,
    prompts: Sequence[Sequence[int]],
    length: int,
    *,
    seed: int,
    top_p: float = 0.9,
    ends: frozenset[int] = frozenset(),
    is_shown: bool = False,
) -> list[OwnText]:
    """Return how a model goes on after prompts, at temperature 1, until a text ends."""
    found: list[OwnText] = []
    if not prompts:
        return found
    size = min(len(prompts), AT_ONCE if network.device.type == "cuda" else FEW)
    capacity = max(map(len, prompts)) + length + 64  # a graph reads runs of this length
    chain = Chain(network, num_slots=size, capacity=capacity)
    with bar("writing texts", len(prompts), is_shown=is_shown) as show:
        for first in range(0, len(prompts), size):
            some = [tuple(one) for one in prompts[first : first + size]]
            seeds = [mix(seed, first + n) for n in range(len(some))]
            entries = [
                Entry(one, own, top_p, 1.0, suppressed=-1, length=length)
                for one, own in zip(some, seeds, strict=True)
            ]
            slots = list(range(len(some)))
            chain.join(entries, slots)
            chain.run(length)
            texts = chain.texts()
            chain.leave(slots)
            for slot, (prompt, own) in enumerate(zip(some, seeds, strict=True)):
                tokens = until(texts[slot].tokens, ends)
                found.append(OwnText((*prompt, *tokens), len(prompt), own))
            show(len(found))
    return found


def read_prompts(path: Path, tokenizer: Tokenizer, given: int = 50) -> list[list[int]]:
    """Return the prompts of a file of JSON lines, as ids.

    A "prompt" is taken as it is, a "question" is asked by the tokenizer's chat template, and of a
    "text" the first `given` tokens are taken, if there are so many.
    """
    found = []
    for line in parse_jsonl(file_lines(path), source=str(path)):
        name = next((name for name in PROMPTS if isinstance(line.value.get(name), str)), "")
        if not name:
            raise ValueError(f"{line.where} has none of {', '.join(PROMPTS)}; give it one")
        text: str = line.value[name]
        if name == "question":
            text = chat_text(tokenizer, said(text))
        elif name == "text":
            text = text[: MOST_CHARACTERS * given]
        ids = list(tokenizer.encode_prompt(text))
        if name != "text":
            found.append(ids)
        elif len(ids) >= given:
            found.append(ids[:given])
    return found


def until(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Return tokens up to the first that ends a text."""
    last = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: last + 1]


class OwnStream:
    """Texts one after the other, as `data.windows` reads them."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, length: int) -> np.ndarray:
        return self.tokens[start : start + length]

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        return self.tokens[starts[:, None] + np.arange(length)]


@torch.no_grad()
def right_guesses(drafter: Drafter, text: OwnText) -> Tensor:
    """Return how many guesses in a row are right after each token of a text (n, G), as 0 and 1.

    A guess is right as decoding has it: its logits and the noise of its position give the token. A
    place beyond the text's end is -1.
    """
    network, count = drafter.network, drafter.config.num_guesses
    tokens = torch.tensor([text.tokens], device=network.device)
    length = tokens.shape[1] - text.num_given
    anchors = torch.arange(text.num_given, tokens.shape[1] - 1, device=network.device)
    # What lies beyond the end is there for the shapes alone.
    padded = torch.cat((tokens, tokens[:, :1].expand(1, count)), 1)
    texts = read_texts(network, padded, drafter.config.reads)
    rows = drafter(padded, texts, anchors)[0]
    noise = RowNoise(torch.tensor([text.seed], device=network.device))
    g = noise.gumbel(position=0, V=drafter.config.V, count=length + count)[0]
    right = []
    for k in range(count):
        place = anchors + k + 1
        guess = (drafter.logits(rows[:, k]) + g[place - text.num_given]).argmax(-1)
        is_right = (guess == padded[0, place]).long()
        right.append(torch.where(place < tokens.shape[1], is_right, -1))
    return torch.stack(right, 1)


def acceptance(drafter: Drafter, texts: Sequence[OwnText]) -> list[float]:
    """Return how often each guess is right where all before it are, by position."""
    G = drafter.config.num_guesses
    tried, right = torch.zeros(G), torch.zeros(G)
    for text in texts:
        if len(text.tokens) < text.num_given + 2:
            continue
        table = right_guesses(drafter, text).cpu()
        before = torch.cat(
            (torch.ones_like(table[:, :1]), (table > 0).long().cumprod(1)[:, :-1]), 1
        )
        is_tried = (before > 0) & (table >= 0)
        tried += is_tried.sum(0)
        right += ((table > 0) & is_tried).sum(0)
    return (right / tried.clamp(min=1)).tolist()


def tokens_per_check(shares: Sequence[float]) -> float:
    """Return how many tokens a check of a chain of guesses makes certain on average."""
    total, alive = 1.0, 1.0
    for share in shares:
        alive *= share
        total += alive
    return total
