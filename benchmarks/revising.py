"""All positions at once, then revised: what does each way of revising give, at equal passes?

    python benchmarks/revising.py reviews.jsonl --device cuda

A block is drafted by all positions at once in some passes; those that are left redraw positions
from pure noise, given all others. `reviews.jsonl` has a "prompt" per line. For each way the table
has the context stream's own loss of the texts, and how many different words and pairs of words they
have together: a loss that falls because words repeat is no gain.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from ssdlm import SSDLM
from ssdlm.denoiser import remember
from ssdlm.diffusion.likelihood import next_token_nll
from ssdlm.diffusion.simplex import to_logits
from ssdlm.ops.nucleus import nucleus, suppress
from ssdlm.shapes import Block, Context, Simplex, Tensor

B, PASSES, NUM_CONTEXT, CRITIC_ROUNDS = 25, 64, 40, 19
Choose = Callable[[int, Context, Block], Tensor]
"""From the number of a round, the context and a draft to the positions (N, B) to redraw."""


class Reviser:
    """Drafts blocks with one model, and redraws positions of them."""

    def __init__(self, model: SSDLM, *, top_p: float) -> None:
        self.model, self.denoiser, self.top_p = model, model.denoiser, top_p
        assert model.tokenizer is not None
        self.end = model.tokenizer.end_of_text

    def draft(self, context: Context, passes: int) -> Block:
        """Return a block after each context, all positions at once."""
        texts = self.model.generate(
            context.tolist(), length=B, B=B, T=passes, grid="warped", top_p=self.top_p,
            never_end=True, batch_size=len(context), seed=context.shape[1],
        )  # fmt: skip
        return torch.tensor([text.tokens for text in texts], device=context.device)

    def revise(self, context: Context, *, passes: int, rounds: int, choose: Choose) -> Block:
        """Return drafts of some passes, with positions redrawn in some rounds."""
        block = self.draft(context, passes)
        cache = remember(self.denoiser, None, context, B=B)
        for number in range(rounds):
            is_open = choose(number, context, block)
            block = torch.where(is_open, self.redraw(cache, block, is_open), block)
        return block

    def redraw(self, cache: object, block: Block, is_open: Tensor) -> Block:
        """Return a draw for each position, open ones from pure noise and given all others."""
        clean = to_logits(block, V=self.denoiser.V, K=self.denoiser.K)
        noise = self.denoiser.K * torch.randn_like(clean)
        w_t = torch.where(is_open.unsqueeze(-1), noise, clean)
        logits = suppress(self.denoiser.denoise(cache, w_t, is_open.float()), (self.end,)).float()
        logits = logits.masked_fill(~nucleus(logits, self.top_p), -torch.inf)
        return torch.distributions.Categorical(logits=logits).sample()

    def next_logits(self, context: Context, block: Block) -> Simplex:
        """Return the context stream's logits for each token of a block."""
        cache = self.denoiser.prefill(context[:, :-1])
        return self.denoiser.next_logits(cache, torch.cat((context[:, -1:], block[:, :-1]), 1))


def in_order(count: int) -> Choose:
    """Redraw `count` positions a round, far apart, each round those to the right of the last."""
    step = -(-B // count)

    def choose(number: int, context: Context, block: Block) -> Tensor:
        del context
        is_open = torch.zeros_like(block, dtype=torch.bool)
        is_open[:, number % step :: step] = True
        return is_open

    return choose


def at_random(count: int) -> Choose:
    """Redraw `count` positions a round, anywhere."""

    def choose(number: int, context: Context, block: Block) -> Tensor:
        del number, context
        return greatest(torch.rand(block.shape, device=block.device), count)

    return choose


def unlikely(reviser: Reviser, count: int) -> Choose:
    """Redraw the positions whose tokens surprise the context stream most, for their entropy.

    They are `count` on average, fewer with each round, which takes a pass more than others.
    """

    def choose(number: int, context: Context, block: Block) -> Tensor:
        log_probs = reviser.next_logits(context, block).float().log_softmax(-1)
        nll = -log_probs.gather(-1, block.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        here = max(1, round(2 * count * (1 - number / CRITIC_ROUNDS)))
        return greatest(nll - entropy, here)

    return choose


def greatest(scores: Tensor, count: int) -> Tensor:
    """Return where the `count` greatest scores of each row are."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(count).indices, True)


def distinct(texts: list[list[int]], n: int) -> float:
    """Return the share of different n-grams among all of several texts."""
    grams = [tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1)]
    return len(set(grams)) / len(grams)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="builtin:mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", type=int, default=200, help="prompts to continue")
    parser.add_argument("--top-p", type=float, default=0.9)
    asked = parser.parse_args()
    model = SSDLM.from_pretrained(asked.model, device=asked.device, dtype="float32")
    reviser = Reviser(model, top_p=asked.top_p)
    assert model.tokenizer is not None
    lines = asked.prompts.read_text(encoding="utf-8").splitlines()[: asked.count]
    prompts = [model.tokenizer.encode(json.loads(line)["prompt"])[-NUM_CONTEXT:] for line in lines]
    rows = [prompt for prompt in prompts if len(prompt) == NUM_CONTEXT]
    context = torch.tensor(rows, device=model.denoiser.device)
    ways: dict[str, tuple[int, int, Choose]] = {"no revision": (PASSES, 0, in_order(1))}
    for passes in (40, 26, 16, 8):
        for count in (1, 2, 3):
            way = passes, PASSES - passes, in_order(count)
            ways[f"{passes} passes, then {count} at a time from left to right"] = way
    ways["26 passes, then 1 at a time anywhere"] = 26, 38, at_random(1)
    for count in (2, 4):
        way = 26, CRITIC_ROUNDS, unlikely(reviser, count)
        ways[f"26 passes, then the {count} least likely to the context stream"] = way
    print(f"| {PASSES} passes per {B} tokens | own loss | distinct-1 | distinct-2 |")
    print("|---|---|---|---|")
    for name, (passes, rounds, choose) in ways.items():
        torch.manual_seed(0)
        text = context
        for _ in range(2):
            block = reviser.revise(text, passes=passes, rounds=rounds, choose=choose)
            text = torch.cat((text, block), 1)
        nll = next_token_nll(model.denoiser, text)[:, NUM_CONTEXT - 1 :].mean().item()
        tokens = text[:, NUM_CONTEXT:].tolist()
        print(
            f"| {name} | {nll:.2f} | {distinct(tokens, 1):.3f} | {distinct(tokens, 2):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
