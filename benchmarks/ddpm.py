"""Why fresh noise and not DDPM: both, run with an exact denoiser.  python benchmarks/ddpm.py

A toy language of 64 words is a Markov chain, so the best possible denoiser can be computed instead
of trained, and every block has an exact likelihood. What is left to blame is the step rule. Prints
how one block settles, a table, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from ssdlm import SSDLM
from ssdlm.denoiser import Denoiser
from ssdlm.diffusion import schedule
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.noise import RowNoise, mix
from ssdlm.diffusion.projection import Projection, greedy, mean, sampling
from ssdlm.diffusion.sampler import Strategy, denoise_block
from ssdlm.diffusion.steps import Ddpm, Renoise, StepRule

WORDS = {
    "det": "the a one this every some",
    "adj": "old small cold quiet long bright dark green",
    "noun": "river house road child bird tree wind city "
    "ship garden dog mountain book winter stranger fire",
    "verb": "sees follows finds carries crosses hears keeps leaves",
    "intr": "sleeps sings waits burns falls shines",
    "prep": "in near under over behind beyond",
    "adv": "slowly often again never softly today",
    "conj": "and but while when",
    "pron": "he she",
    "comma": ",",
    "stop": ".",
}
GRAMMAR: dict[str, dict[str, float]] = {
    "stop": {"det": 0.65, "pron": 0.25, "adv": 0.1},
    "det": {"adj": 0.35, "noun": 0.65},
    "adj": {"adj": 0.1, "noun": 0.9},
    "noun": {"verb": 0.35, "intr": 0.25, "prep": 0.2, "stop": 0.12, "conj": 0.08},
    "verb": {"det": 0.95, "adj": 0.05},
    "intr": {"adv": 0.3, "prep": 0.4, "stop": 0.2, "conj": 0.1},
    "prep": {"det": 0.9, "adj": 0.1},
    "adv": {"stop": 0.5, "prep": 0.2, "conj": 0.2, "comma": 0.1},
    "conj": {"det": 0.6, "pron": 0.4},
    "comma": {"conj": 0.5, "det": 0.5},
    "pron": {"verb": 0.5, "intr": 0.3, "adv": 0.2},
}
"""Which kind of word follows which, and how often."""
SPELLING = [word for words in WORDS.values() for word in words.split()]
SLIP = 1e-3
"""The share of transitions that keep to no rule, so that no block is impossible."""


def transitions() -> Tensor:
    """Return P[i, j], the chance that word j follows word i: grammar, and each word's taste."""
    kinds = [kind for kind, words in WORDS.items() for _ in words.split()]
    taste = torch.randn(len(kinds), len(kinds), generator=torch.Generator().manual_seed(0))
    taste = (1.5 * taste).exp().double()
    P = torch.zeros_like(taste)
    for kind in WORDS:
        columns = [index for index, other in enumerate(kinds) if other == kind]
        share = torch.tensor([GRAMMAR[row].get(kind, 0.0) for row in kinds]).double()
        within = taste[:, columns] / taste[:, columns].sum(-1, keepdim=True)
        P[:, columns] = share.unsqueeze(-1) * within
    return (1 - SLIP) * P + SLIP / len(kinds)


@dataclass(frozen=True)
class Seen:
    """The context; the chain remembers its last word only."""

    context: Tensor


class Chain(Denoiser):
    """The exact denoiser of a Markov chain: forward-backward over each position's evidence.

    The noise is independent across positions, so a noisy position says log p(w_t | word) =
    2 sqrt(a) / (K (1 - a)) w_t and no more; the posterior of the whole block follows from P.
    """

    max_len = None
    K = 5.0

    def __init__(self, P: Tensor) -> None:
        self.P, self.V = P, len(P)
        self.first = torch.linalg.matrix_power(P, 200)[
            0
        ]  # before any context: how common words are

    @property
    def device(self) -> torch.device:
        return self.P.device

    def prefill(self, context: Tensor) -> Seen:
        return Seen(context)

    def extend(self, cache: Seen, block: Tensor) -> Seen:
        return Seen(torch.cat((cache.context, block), 1))

    def denoise(self, cache: Seen, w_t: Tensor, progress: Tensor) -> Tensor:
        snr = schedule.snr(progress)
        scale = 2 * snr / schedule.cosine(progress).sqrt() / self.K
        ell = scale * w_t.double()
        seen = (ell - ell.amax(-1, keepdim=True)).exp()  # (N, B, V)
        prior = self.first.expand(len(w_t), -1)
        if cache.context.shape[1]:
            prior = self.P[cache.context[:, -1]]
        left, right = [prior], [torch.ones_like(prior)]
        for j in range(w_t.shape[1] - 1):
            left.append(normalized(left[-1] * seen[:, j]) @ self.P)
        for j in range(w_t.shape[1] - 1, 0, -1):
            right.append(normalized((right[-1] * seen[:, j]) @ self.P.T))
        posterior = torch.stack(left, 1).log() + torch.stack(right[::-1], 1).log() + ell
        return posterior.log_softmax(-1).float()

    def nll(self, blocks: Tensor) -> Tensor:
        """Return -log p of each block, in nats per token (N,)."""
        follow = self.P[blocks[:, :-1], blocks[:, 1:]]
        chances = torch.cat((self.first[blocks[:, :1]], follow), 1)
        return -chances.log().mean(1)

    def samples(self, N: int, B: int, seed: int) -> Tensor:
        """Return blocks drawn from the chain itself."""
        generator = torch.Generator().manual_seed(seed)
        words = [torch.multinomial(self.first.expand(N, -1), 1, generator=generator)]
        for _ in range(B - 1):
            words.append(torch.multinomial(self.P[words[-1][:, 0]], 1, generator=generator))
        return torch.cat(words, 1)


def normalized(weights: Tensor) -> Tensor:
    """Return weights scaled to sum to one: only their ratios matter, and they would underflow."""
    return weights / weights.sum(-1, keepdim=True)


RULES: dict[str, StepRule] = {
    "fresh noise (Eq. 18)": Renoise(0.0),
    "DDPM with its noise (rho = 1)": Renoise(1.0),
    "DDPM without (Eq. 21)": Ddpm(),
    "DDPM simplified (Eq. 22)": Ddpm(simplified=True),
}


@dataclass(frozen=True)
class Result:
    """What one way of decoding gave, over N blocks."""

    projection: str
    rule: str
    T: int
    nll: float
    """Nats per token under the true chain; the truth's own is the entropy, less is too safe."""
    distinct: int
    """How many of the N blocks differ."""
    agreement: float
    """The chance that two blocks have the same word at a position."""
    changes: float
    """How often a position's word changed on the way."""
    kept: float
    """Share of the final words that stood at t/T = 0.5 already."""


def score(chain: Chain, history: Tensor, **names: str | int) -> Result:
    """Return the measures of blocks (N, B), given as the course of their words (T, N, B)."""
    blocks = history[-1]
    N = len(blocks)
    counts = torch.zeros(blocks.shape[1], chain.V).scatter_add_(
        1, blocks.T, torch.ones(blocks.T.shape)
    )
    pairs = (counts.square().sum(-1) - N) / (N * (N - 1))
    return Result(
        **names,
        nll=chain.nll(blocks).mean().item(),
        distinct=len(blocks.unique(dim=0)),
        agreement=pairs.mean().item(),
        changes=(history[1:] != history[:-1]).float().sum(0).mean().item(),
        kept=(history[len(history) // 2] == blocks).float().mean().item(),
    )


def decode(chain: Chain, strategy: Strategy, *, N: int, B: int, seed: int) -> Tensor:
    """Return the words a block would end as after each step (T, N, B)."""
    noise = RowNoise(torch.tensor([mix(seed, row) for row in range(N)]))
    cache = chain.prefill(torch.zeros(N, 0, dtype=torch.long))
    steps = denoise_block(chain, cache, strategy, B=B, noise=noise)
    return torch.stack([step.tokens for step in steps])


def compare(chain: Chain, *, N: int, B: int, T: list[int], top_p: float, seed: int) -> list[Result]:
    """Decode with every rule, projection and number of steps, after blocks of the chain itself."""
    projections: dict[str, Projection] = {
        "sampling": sampling(chain.K, top_p),
        "greedy": greedy(chain.K),
        "mean": mean(chain.K, top_p),
    }
    truth = chain.samples(N, B, seed).unsqueeze(0)
    results = [score(chain, truth, projection="", rule="the language itself", T=0)]
    for steps in T:
        for projection, project in projections.items():
            for name, rule in RULES.items():
                history = decode(
                    chain, Strategy(Uniform(steps), project, rule), N=N, B=B, seed=seed
                )
                results.append(score(chain, history, projection=projection, rule=name, T=steps))
    return results


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    names = [item.name for item in fields(Result)]
    rows = [names, ["---"] * len(names)]
    for result in results:
        values = asdict(result).values()
        rows.append(
            [f"{value:.3f}" if isinstance(value, float) else str(value) for value in values]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def trajectory(chain: Chain, *, B: int, T: int, seed: int, prompt: str = "the") -> str:
    """Return how one block settles, like the paper's last table: network's words, state's."""
    model = SSDLM(chain)
    drafts = model.stream([SPELLING.index(prompt)], length=B, B=B, T=T, seed=seed)
    rows = [
        f"| t | most probable under the logits, after {prompt!r} | largest entry of w_t |",
        "|---|---|---|",
    ]
    for draft in drafts:
        if draft.t * 10 % T == 0:
            words = (
                " ".join(SPELLING[i] for i in w[0].argmax(-1))
                for w in (draft.step.logits, draft.step.w_t)
            )
            rows.append(f"| {draft.t} | {' | '.join(words)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--N", type=int, default=256, help="blocks for each row of the table")
    parser.add_argument("--B", type=int, default=24, help="words in a block")
    parser.add_argument("--T", type=int, nargs="+", default=[20, 100], help="diffusion steps")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus of sampling and mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="a few short blocks, to see it run")
    given = parser.parse_args()
    if given.tiny:
        given.N, given.B, given.T = 4, 5, [6]
    torch.set_num_threads(1)  # matrices this small are slower on several
    chain, start = Chain(transitions()), time.perf_counter()
    print(trajectory(chain, B=min(given.B, 12), T=given.T[-1], seed=given.seed))
    results = compare(chain, N=given.N, B=given.B, T=given.T, top_p=given.top_p, seed=given.seed)
    print(f"\n{table(results)}\n")
    settings = {key: value for key, value in vars(given).items() if key != "tiny"}
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps(settings | {"seconds": seconds, "results": [asdict(r) for r in results]}))


if __name__ == "__main__":
    main()
