"""The log-likelihood of continuations: exact, by the context stream, or the bound of the blocks.

api, likelihood -> [scoring] -> adapter
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ssdlm.api import SSDLM
from ssdlm.denoiser import RowDenoiser
from ssdlm.diffusion import likelihood, noise
from ssdlm.ops import counters
from ssdlm.tokenizer import Tokenizer

LIKELIHOODS = ("auto", "exact", "bound")
WIDE = 2**27
"""V-wide numbers that one pass may have."""

Pair = tuple[list[int], list[int]]
"""A context, never empty, and what follows it."""


@dataclass(frozen=True)
class Score:
    """The log-likelihood of a continuation."""

    log_prob: float
    """In nats; a lower bound where it is not exact."""
    is_greedy: bool
    """The model, always taking the likeliest, would have written it."""


@dataclass(frozen=True)
class Scorer:
    """Scores and continues token ids with one model."""

    model: SSDLM
    likelihood: str = "auto"
    """exact: by the context stream. bound: by the blocks. auto: exact where it can be had."""
    points: int = 16
    """bound: noise levels, placed by Gauss and Legendre."""
    samples: int = 1
    """bound: draws of noise at each level; the same for all texts, so that they compare."""
    seed: int = 0
    max_length: int = 0
    """Most tokens of context and continuation; 0: as many as the model takes."""
    batch_size: int = 16
    greedy_T: int = 32
    """bound: steps of the greedy decoding that tells what the model would have written."""

    def __post_init__(self) -> None:
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(
                f"likelihood={self.likelihood!r} is unknown; use {', '.join(LIKELIHOODS)}"
            )
        if self.likelihood == "exact" and not isinstance(self.model.denoiser, RowDenoiser):
            raise ValueError("this model has no context stream; use likelihood=bound")
        for name in ("points", "samples", "batch_size", "greedy_T"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is out of range; use 1 or more")
        if self.model.tokenizer is None:
            raise ValueError(
                "this checkpoint has no tokenizer, and tasks are text; give one with it"
            )

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    @property
    def B(self) -> int:
        """Return the block length that a model was trained with; without blocks, its options'."""
        denoiser = self.model.denoiser
        return self.model.options.B[-1] if denoiser.most_open else denoiser.B

    @property
    def room(self) -> int | None:
        """Return how many tokens are read at once at most; None: any number."""
        limits = [limit for limit in (self.max_length, self.model.denoiser.max_len) if limit]
        return min(limits, default=None)

    def scores(
        self, pairs: Sequence[Pair], *, tells_greedy: bool = True
    ) -> Iterator[tuple[int, Score]]:
        """Yield the number and the score of each pair, as they get done.

        By the bound, whether a continuation is the greedy one costs a decoding of it.
        """
        is_exact = self.likelihood == "exact" or (
            self.likelihood == "auto" and isinstance(self.model.denoiser, RowDenoiser)
        )
        cut = [self.fit(context, continuation) for context, continuation in pairs]
        if not is_exact:
            for index, pair in enumerate(cut):
                is_greedy = tells_greedy and self.writes(*pair)
                yield index, Score(self.bound(*pair), is_greedy)
            return
        for indices in self.batches(cut):
            yield from zip(indices, self.exact([cut[index] for index in indices]), strict=True)

    def fit(self, context: list[int], continuation: list[int]) -> Pair:
        """Return a pair with the latest context that there is room for."""
        if self.room is None:
            return context, continuation
        keep = self.room - len(continuation)
        if keep < 1:
            raise ValueError(
                f"a continuation of {len(continuation)} tokens leaves no context in {self.room}; "
                "give a larger max_length, or a model that reads more"
            )
        return context[-keep:], continuation

    def batches(self, pairs: Sequence[Pair]) -> Iterator[list[int]]:
        """Yield the numbers of pairs that go together, long ones first."""
        order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
        while order:
            width = sum(map(len, pairs[order[0]])) * self.model.denoiser.V
            size = max(1, min(self.batch_size, WIDE // width))
            yield order[:size]
            del order[:size]

    @torch.no_grad()
    def exact(self, pairs: Sequence[Pair]) -> list[Score]:
        """Score pairs by the context stream; padding is on the right, which no token sees."""
        denoiser = self.model.engine.chains.denoiser
        width = max(len(context) + len(continuation) for context, continuation in pairs)
        rows = [[*context, *continuation] for context, continuation in pairs]
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        ids = torch.tensor(padded, device=denoiser.device)
        logits = denoiser.next_logits(denoiser.prefill(ids[:, :0]), ids[:, :-1])
        found = []
        for row, (context, continuation) in zip(logits, pairs, strict=True):
            part = row[len(context) - 1 : len(context) + len(continuation) - 1]
            targets = torch.tensor(continuation, device=part.device)
            nll = likelihood.errors_of(part.unsqueeze(0), targets.unsqueeze(0)).nll
            is_greedy = bool((part.argmax(-1) == targets).all())
            found.append(Score(-float(nll.double().sum()), is_greedy))
        return found

    def bound(self, context: list[int], continuation: list[int]) -> float:
        """Return a lower bound on log q, block by block, each after all that comes before it."""
        total, seen = 0.0, list(context)
        for start in range(0, len(continuation), self.B):
            block = continuation[start : start + self.B]
            total -= self.block_bound(seen, block, start // self.B)
            seen += block
        return total

    def block_bound(self, context: list[int], block: list[int], number: int) -> float:
        """Return the bound on a block's -log q, its mean over the draws."""
        denoiser = self.model.denoiser
        seeds = [noise.mix(self.seed, sample) for sample in range(self.samples)]
        shape = {"block": number, "B": len(block), "V": denoiser.V}
        at = torch.tensor(seeds, device=denoiser.device)
        rows = [
            torch.tensor([ids] * self.samples, device=denoiser.device) for ids in (context, block)
        ]
        measure = likelihood.one_block(
            denoiser, *rows, noise=lambda k: counters.normal(at, step=k, **shape)
        )
        rule = likelihood.gauss_legendre(self.points)
        return float(likelihood.bound(measure, likelihood.parallel(), rule).sum(1).mean())

    def writes(self, context: list[int], continuation: list[int]) -> bool:
        """Tell whether greedy decoding continues a context so."""
        if not continuation:
            return True
        asked = {"length": len(continuation), "B": self.B, "T": self.greedy_T}
        greedy = {"projection": "greedy", "top_p": 0.0, "seed": self.seed}
        (found,) = self.model.generate([context], **asked, **greedy)
        return found.tokens == continuation

    def pair(self, context: str, continuation: str) -> Pair:
        """Return the ids of a context and of what follows it.

        Both are read as one text, its spaces belonging to what follows; where a token spans the
        two it counts as context. Before an empty context stands an end-of-text token.
        """
        bare = context.rstrip()
        continuation, context = context[len(bare) :] + continuation, bare
        if not context:
            return self.beginning, self.tokenizer.encode(continuation)
        count = len(self.tokenizer.encode(context))
        whole = self.tokenizer.encode(context + continuation)
        return [*self.tokenizer.begin, *whole[:count]], whole[count:]

    def pieces(self, text: str) -> list[Pair]:
        """Return a text as pairs in which every token follows once, with half the room before."""
        ids, before = self.tokenizer.encode(text), self.beginning
        size = max(1, len(ids)) if self.room is None else max(1, self.room // 2)
        starts = range(0, len(ids), size)
        return [([*before, *ids[:start]], ids[start : start + size]) for start in starts]

    @property
    def beginning(self) -> list[int]:
        """Return what stands before a text."""
        return self.tokenizer.start or [self.tokenizer.end_of_text]
