"""Generative perplexity: how surprised a judge is by a continuation, given its prompt.

samples, judge -> [perplexity] -> run

The authors' rules. A sample's surprise is NLL(prompt + text) - NLL(prompt), both retokenised by the
judge, over the difference of their token counts. Micro perplexity divides all surprise by all
tokens; macro is the mean of the samples' own perplexities, leaving out those of 1e4 and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ssdlm.evaluate.cache import NO_CACHE, Arrays, JudgeCache
from ssdlm.evaluate.judge import Judge
from ssdlm.evaluate.samples import Pool
from ssdlm.progress import without_bars

ABSURD = 1e4
"""Macro perplexity leaves out samples at or above this."""

TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 32768}
"""Padded tokens judged at once: a float32 logit for each of 50k entries is 200 kB per token."""

Observe = Callable[[int, int], None]
"""Takes how many texts are done, and of how many."""


def ignore(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Surprise:
    """Nats and judge tokens of each sample, and the index of the prompt it belongs to."""

    nll: np.ndarray
    tokens: np.ndarray
    prompt_index: np.ndarray

    def micro(self, weights: np.ndarray) -> float:
        """Return the perplexity of all tokens together; `weights` counts each prompt."""
        each = weights[self.prompt_index]
        tokens = each @ self.tokens
        with np.errstate(over="ignore"):  # infinite, and reported as no number
            return float(np.exp(each @ self.nll / tokens)) if tokens > 0 else float("nan")

    def macro(self, weights: np.ndarray) -> float:
        """Return the mean of the samples' perplexities below 1e4; `weights` counts each prompt."""
        kept = self.kept
        each = weights[self.prompt_index][kept]
        if not each.sum():
            return float("nan")
        return float(each @ self.perplexities[kept] / each.sum())

    @property
    def kept(self) -> np.ndarray:
        """Return which samples enter the macro mean: those with tokens to judge, and not absurd."""
        return (self.tokens > 0) & (self.perplexities < ABSURD)

    @property
    def perplexities(self) -> np.ndarray:
        """Return each sample's perplexity."""
        # A perplexity beyond e^700 is absurd anyway; the cap keeps exp from overflowing.
        return np.exp(np.minimum(self.nll / np.maximum(self.tokens, 1), 700.0))


def surprise(
    pools: Sequence[Pool],
    judge: Judge,
    observe: Observe = ignore,
    cache: JudgeCache = NO_CACHE,
) -> Surprise:
    """Return how surprised the judge is by every sample of every pool."""
    texts = [[pool.prompt, *(sample.text for sample in pool.samples)] for pool in pools]
    arrays = cache.get("nats", judge, texts, lambda: nats(pools, judge, observe))
    prompt_index = [index for index, pool in enumerate(pools) for _ in pool.samples]
    return Surprise(arrays["nll"], arrays["tokens"], np.array(prompt_index))


@without_bars()
def nats(pools: Sequence[Pool], judge: Judge, observe: Observe) -> Arrays:
    """Return the nats and the judge tokens of every sample, its prompt's taken off."""
    prompts = encode_whole(judge, [pool.prompt for pool in pools])
    texts = [pool.prompt + sample.text for pool in pools for sample in pool.samples]
    full = encode_whole(judge, texts)
    own_prompt = [ids for ids, pool in zip(prompts, pools, strict=True) for _ in pool.samples]
    # Where the boundary survives retokenising, the prompt's part is read off the whole; only where
    # it is torn is the prompt judged on its own.
    torn = [row for row, prompt in enumerate(own_prompt) if full[row][: len(prompt)] != prompt]
    nlls = token_nlls(judge, full + [own_prompt[row] for row in torn], observe)
    whole, alone = nlls[: len(full)], nlls[len(full) :]
    pairs = zip(whole, own_prompt, strict=True)
    spent = [float(nll[num_scored(prompt) :].sum()) for nll, prompt in pairs]
    for row, prompt_nll in zip(torn, alone, strict=True):
        spent[row] = float(whole[row].sum() - prompt_nll.sum())
    counts = [
        num_scored(ids) - num_scored(prompt) for ids, prompt in zip(full, own_prompt, strict=True)
    ]
    return {"nll": np.array(spent), "tokens": np.array(counts)}


@torch.no_grad()
def token_nlls(
    judge: Judge, sequences: Sequence[Sequence[int]], observe: Observe = ignore
) -> list[torch.Tensor]:
    """Return the nats of every token but the first of each sequence, as float64 on the CPU.

    Sequences are padded on the right under a causal mask, so a neighbour changes nothing.
    """
    nlls: list[torch.Tensor] = [torch.zeros(0, dtype=torch.float64)] * len(sequences)
    done = 0
    for batch in batches(sequences, TOKENS_PER_BATCH.get(judge.device.type, 2048)):
        ids, mask = pad([sequences[index] for index in batch], judge.device)
        logits = judge.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits, targets = logits[:, :-1].float(), ids[:, 1:]
        # Not cross_entropy, whose float32 exponentials lose 4e-5 nats per token on some processors.
        nll = logits.logsumexp(-1) - logits.gather(-1, targets[..., None]).squeeze(-1)
        nll = nll.double().cpu()
        for row, index in enumerate(batch):
            nlls[index] = nll[row, : len(sequences[index]) - 1]
        done += len(batch)
        observe(done, len(sequences))
    if not all(torch.isfinite(nll).all() for nll in nlls):
        raise ValueError(f"the judge {judge.name} gives a loss that is not finite; use another")
    return nlls


def batches(sequences: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Yield indices of sequences of similar length, at most `budget` padded tokens together."""
    batch: list[int] = []
    longest_first = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    for index in longest_first:
        if len(sequences[index]) < 1:
            break
        if batch and (len(batch) + 1) * len(sequences[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids padded on the right, and the mask that tells padding apart."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    return ids.to(device), mask.to(device)


def num_scored(ids: Sequence[int]) -> int:
    """Return how many tokens of a sequence have something to their left to be predicted from."""
    return max(len(ids) - 1, 0)


def encode_whole(judge: Judge, texts: Sequence[str]) -> list[list[int]]:
    """Return the judge's ids of texts, none of which may be longer than it reads."""
    encoded = judge.encode(texts)
    for text, ids in zip(texts, encoded, strict=True):
        if judge.max_len is not None and len(ids) > judge.max_len:
            raise ValueError(
                f"{text[:40]!r}... is {len(ids)} tokens to the judge {judge.name}, which reads at "
                f"most {judge.max_len}, and cutting it would change the figure; use another judge"
            )
    return encoded
