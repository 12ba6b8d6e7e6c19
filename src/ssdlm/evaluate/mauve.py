"""MAUVE: the gap between generated and human text, seen through a model's features.

samples, judge -> [mauve] -> run

The score is mauve-text's, with the authors' settings: the text is prompt and continuation, cut to
256 tokens. Features are ours, batched: the last token's hidden state, as mauve-text takes it of any
model, or the mean over tokens of MiniLM, which was trained so. The score's spread over prompts
keeps one set of buckets and weighs them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ssdlm.evaluate.bootstrap import Statistic
from ssdlm.evaluate.cache import NO_CACHE, Arrays, JudgeCache
from ssdlm.evaluate.judge import MINILM, Judge, is_encoder
from ssdlm.evaluate.perplexity import Observe, batches, ignore, pad
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.extras import lacking
from ssdlm.progress import without_bars, without_native_lines

MAX_TEXT_TOKENS = 256
SCALE = 5.0
CURVE_POINTS = 25
SEED = 25
FEW_TEXTS = 1000
"""Below this many texts on a side the score is mostly an artefact of its buckets."""

TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 65536}


@dataclass(frozen=True)
class Mauve:
    """The score, and what its spread is computed from: bucket counts of each prompt."""

    score: float
    num_buckets: int
    num_cut: int
    """Texts of more tokens than `limit`."""
    limit: int
    human: np.ndarray
    machine: np.ndarray

    def resampled(self, weights: np.ndarray) -> float:
        """Return the score of weighted prompts in the fixed buckets."""
        return area(weights @ self.human, weights @ self.machine)


def mauve(
    pools: Sequence[Pool],
    gold: Sequence[Pool],
    model: Judge,
    observe: Observe = ignore,
    cache: JudgeCache = NO_CACHE,
) -> Mauve:
    """Return MAUVE of all samples against the gold continuations of the same prompts."""
    try:
        from mauve import compute_mauve
    except ImportError:
        raise lacking("mauve", "MAUVE") from None
    human, human_cut = features_of(gold, model, observe, cache)
    machine, machine_cut = features_of(pools, model, observe, cache)
    with without_native_lines():  # of faiss; few texts are noted in the report
        result = compute_mauve(p_features=human, q_features=machine, seed=SEED, verbose=False)
        buckets = quantise(human, machine, result.num_buckets)
    prompt_index = np.repeat(np.arange(len(pools)), [len(pool.samples) for pool in pools])
    return Mauve(
        score=float(result.mauve),
        num_buckets=int(result.num_buckets),
        num_cut=human_cut + machine_cut,
        limit=limit_of(model),
        human=bucket_counts(np.arange(len(gold)), buckets[: len(human)], result.num_buckets),
        machine=bucket_counts(prompt_index, buckets[len(human) :], result.num_buckets),
    )


def features_of(
    pools: Sequence[Pool], model: Judge, observe: Observe, cache: JudgeCache
) -> tuple[np.ndarray, int]:
    """Return the features of prompts with continuations, cached, and how many texts were cut."""
    texts = [pool.prompt + sample.text for pool in pools for sample in pool.samples]

    def compute() -> Arrays:
        rows, num_cut = features(texts, model, observe)
        return {"rows": rows, "cut": np.array(num_cut)}

    # Caches written before encoders gave their last token have means under "features".
    is_usual = takes_mean(model) or not is_encoder(model)
    arrays = cache.get("features" if is_usual else "last", model, texts, compute)
    return arrays["rows"], int(arrays["cut"])


def mauve_to_texts(
    pools: Sequence[Pool],
    human: Sequence[str],
    model: Judge,
    observe: Observe = ignore,
    cache: JudgeCache = NO_CACHE,
) -> Statistic:
    """Return MAUVE of samples against texts that share no prompts with them, in fixed buckets."""
    gold = [Pool("", tuple(Sample(text, None) for text in human))]
    texts = features_of(gold, model, observe, cache)[0]
    machine = features_of(pools, model, observe, cache)[0]
    num_buckets = max(2, min(len(texts), len(machine)) // 10)
    try:
        with without_native_lines():
            buckets = quantise(texts, machine, num_buckets)
    except ImportError:
        raise lacking("mauve", "MAUVE") from None
    index = np.repeat(np.arange(len(pools)), [len(pool.samples) for pool in pools])
    theirs = np.bincount(buckets[: len(texts)], minlength=num_buckets)
    ours = bucket_counts(index, buckets[len(texts) :], num_buckets)
    return lambda weights: area(theirs, weights @ ours)


@without_bars()
@torch.no_grad()
def features(
    texts: Sequence[str], model: Judge, observe: Observe = ignore
) -> tuple[np.ndarray, int]:
    """Return one vector for each text, and how many texts were cut to the limit."""
    encoded, limit = model.encode(texts), limit_of(model)
    long = [index for index, ids in enumerate(encoded) if len(ids) > limit]
    for index in long:  # by the tokenizer, which keeps an end that it adds
        encoded[index] = model.tokenizer.encode(texts[index], truncation=True, max_length=limit)
    if not all(encoded):
        raise ValueError("MAUVE has no features of an empty prompt with an empty text; remove it")
    trunk = model.model.base_model
    rows = np.zeros((len(texts), trunk.config.hidden_size), dtype=np.float32)
    done = 0
    for batch in batches(encoded, TOKENS_PER_BATCH.get(model.device.type, 4096)):
        ids, mask = pad([encoded[index] for index in batch], model.device)
        states = trunk(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        rows[batch] = pool_states(states, mask, mean=takes_mean(model)).cpu().numpy()
        done += len(batch)
        observe(done, len(texts))
    return rows, len(long)


def takes_mean(model: Judge) -> bool:
    """Tell whether the mean over tokens stands for a text; MiniLM alone was trained so."""
    return model.name == MINILM


def limit_of(model: Judge) -> int:
    """Return how many tokens of a text are read at most."""
    return min(MAX_TEXT_TOKENS, model.max_len or MAX_TEXT_TOKENS)


def pool_states(states: torch.Tensor, mask: torch.Tensor, *, mean: bool) -> torch.Tensor:
    """Return one vector per row: the mean over its tokens, or its last token's state."""
    if mean:
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return states[torch.arange(len(states)), mask.sum(1) - 1]


def quantise(human: np.ndarray, machine: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return a bucket for each text, human first: k-means on directions with 90 % of variance."""
    import faiss
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    rows = normalize(np.vstack([human, machine]), axis=1)
    reduced = PCA(n_components=0.9, svd_solver="full").fit_transform(rows).astype(np.float32)
    kmeans = faiss.Kmeans(reduced.shape[1], num_buckets, niter=100, nredo=1, seed=SEED)
    kmeans.train(reduced)
    _, nearest = kmeans.index.search(reduced, 1)
    return nearest[:, 0]


def area(human: np.ndarray, machine: np.ndarray) -> float:
    """Return MAUVE of two histograms: the area under their divergence curve (Pillutla, 2021)."""
    p, q = human / human.sum(), machine / machine.sum()
    mixing = np.linspace(1e-6, 1 - 1e-6, CURVE_POINTS)
    mixtures = mixing[:, None] * p + (1 - mixing[:, None]) * q
    x = np.concatenate([[1.0], np.exp(-SCALE * divergences(q, mixtures)), [0.0]])
    y = np.concatenate([[0.0], np.exp(-SCALE * divergences(p, mixtures)), [1.0]])
    return 0.5 * (area_under(x, y) + area_under(y, x))


def divergences(p: np.ndarray, mixtures: np.ndarray) -> np.ndarray:
    """Return KL(p || m) for each of several mixtures m."""
    is_used = p > 0
    return (p[is_used] * np.log(p[is_used] / mixtures[:, is_used])).sum(1)


def area_under(x: np.ndarray, y: np.ndarray) -> float:
    """Return the area below a curve of ordered points; a step straight up adds nothing."""
    return abs(float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum()))


def bucket_counts(prompt_index: np.ndarray, buckets: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return how many texts of each prompt, one per row, are in each bucket."""
    counts = np.zeros((prompt_index.max() + 1, num_buckets))
    np.add.at(counts, (prompt_index, buckets), 1)
    return counts
