"""Every setting of a model or a run, as frozen values.  config -> everything above"""

from __future__ import annotations

import math
import operator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from ssdlm.values import require, shorten, show

MOST = 10**6
"""Tokens in a text and steps in a block: more is a slip of the hand, and would fill the memory."""
LARGEST = 2**31 - 1
"""A vocabulary, or a width."""

LIMITS = {
    "least": (operator.ge, "{:g} or more"),
    "above": (operator.gt, "more than {:g}"),
    "most": (operator.le, "at most {:g}"),
    "below": (operator.lt, "less than {:g}"),
}
"""How a value must compare with each kind of limit, and how a remedy says so."""
MOST_OF_ANY, MOST_FLOAT = 10**9, 1e38
"""Of fields that state no largest value: counts, and numbers that single precision still has."""


def ranged(default: Any, **limits: int | float) -> Any:
    """Return a field with a default and a range: `LIMITS` by their names."""
    return field(default=default, metadata=limits)


def required() -> Any:
    """Return a field that a file must have, after others of which the same is true."""
    return field()


@dataclass(frozen=True)
class EncoderConfig:
    """An EncoderDenoiser: a masked LM of `transformers`, and the simplex it was trained on."""

    backbone: dict[str, Any] = field(default_factory=dict)
    """The backbone's own configuration, as `transformers` writes it (`model_type`, sizes ...)."""
    K: float = ranged(5.0, above=0, most=MOST)
    """Simplex scale."""
    B: int = ranged(25, least=1, most=MOST)
    """Block length in training."""
    T: int = ranged(5000, least=1, most=MOST)
    """Diffusion steps in training."""

    def __post_init__(self) -> None:
        require_ranges(self)
        for name, value in self.backbone.items():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            require(is_finite, f"backbone.{name}", value, "use a number")


@dataclass(frozen=True)
class BlockConfig:
    """A BlockDenoiser: sizes, and what each part of it does; every switch can be ablated."""

    V: int = ranged(8192, most=LARGEST)
    """Vocabulary size."""
    D: int = ranged(512, most=LARGEST)
    """Width."""
    num_layers: int = ranged(8, most=MOST)
    """Transformer layers."""
    num_heads: int = ranged(8, most=LARGEST)
    """Attention heads."""
    expansion: int = ranged(4, most=MOST)
    """Width of the feed-forward layers, in multiples of D."""
    K: float = ranged(5.0, above=0, most=MOST)
    """Simplex scale."""
    B: int = ranged(25, least=1, most=MOST)
    """Block length in training."""
    T: int = ranged(5000, least=1, most=MOST)
    """Diffusion steps in training."""
    has_evidence: bool = True
    """Read softmax(log unigram + ell) and add ell to the output; else the paper's softmax(w_t)."""
    is_shifted: bool = True
    """A noisy position also reads its left neighbour, as next-token prediction does."""
    has_tied_simplex: bool = True
    """W_diff is the word embedding and a D x D map; else a V x D matrix of its own."""
    has_self_conditioning: bool = False
    """A second input channel for the previous step's belief."""
    next_token_weight: float = ranged(1.0, least=0, most=MOST)
    """Weight of the context stream's next-token loss beside the blocks' loss."""
    block_weight: float = ranged(1.0, least=0, most=MOST)
    """Weight of the blocks' loss; at 0 blocks are not even noised: an autoregressive model."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class CausalConfig:
    """A causal language model of transformers on layers of ours: sizes, and its family's parts."""

    V: int
    """Vocabulary size."""
    D: int
    """Width."""
    num_layers: int
    """Transformer layers."""
    num_heads: int
    """Attention heads."""
    num_kv_heads: int
    """Heads of keys and values, which groups of the others share."""
    head_size: int
    """Width of a head."""
    hidden: int
    """Width of the feed-forward layers."""
    max_len: int
    """Positions in which it is exact: those of its training, and of its sliding attention."""
    eps: float = 1e-6
    """Added to mean squares."""
    has_qkv_bias: bool = False
    """Queries, keys and values have biases."""
    has_out_bias: bool = False
    """So has what attention adds."""
    has_qk_norms: bool = False
    """Queries and keys are normed."""
    is_tied: bool = False
    """The output head is the word embedding."""
    theta: float = 10000.0
    """Base of rotary position embedding."""
    rope: Literal["default", "linear", "llama3"] = "default"
    """How its frequencies are scaled."""
    factor: float = 1.0
    """linear, llama3: what they are divided by."""
    low_factor: float = 1.0
    """llama3: turns over the original length up to which a frequency is divided."""
    high_factor: float = 4.0
    """llama3: turns from which it is not."""
    original_len: float = 8192.0
    """llama3: the length before scaling."""


@dataclass(frozen=True)
class AdapterConfig:
    """An AdaptedDenoiser: a causal language model, and low-rank additions for noisy rows."""

    base: str = ""
    """The language model: `smollm2`, a folder or a Hub id; `init` of a run."""
    digest: str = ""
    """What tells its weights from those of other models."""
    network: str = ""
    """What tells its settings from others with the same weights; "" in runs of earlier versions."""
    tokens: str = ""
    """What tells its tokenizer from others, where there is no copy of that beside the weights."""
    rank: int = ranged(16, least=1, most=MOST)
    """Rank of what is added to each matrix."""
    K: float = ranged(5.0, above=0, most=MOST)
    """Simplex scale."""
    B: int = ranged(16, least=1, most=MOST)
    """Block length in training."""
    T: int = ranged(5000, least=1, most=MOST)
    """Diffusion steps in training."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class DrafterConfig:
    """A Drafter: narrow layers that guess the tokens after a frozen model's newest one."""

    base: str
    """The model that it was trained with, by the name that was given."""
    digest: str
    """What tells the model's weights from others."""
    V: int = ranged(MISSING, least=1, most=MOST)
    D: int = ranged(MISSING, least=1, most=MOST)
    """Width, which is the model's."""
    num_heads: int = ranged(MISSING, least=1, most=MOST)
    """Queries of a layer; the keys are the model's."""
    head_size: int = ranged(MISSING, least=1, most=MOST)
    reads: tuple[int, ...] = required()
    """The layer of the model whose keys and values each layer reads."""
    hidden: int = ranged(MISSING, least=1, most=MOST)
    """Width of the feed-forward parts."""
    rank: int = ranged(256, least=1, most=MOST)
    """Width of what a guess hands on to the next."""
    num_guesses: int = ranged(7, least=1, most=15)
    """Guesses written at once."""

    def __post_init__(self) -> None:
        require_ranges(self)


@dataclass(frozen=True)
class DataConfig:
    """How token streams become training sequences."""

    max_len: int = ranged(200, least=2, most=MOST)
    """Tokens in a sequence."""
    weights: tuple[float, ...] = ()
    """Share of each folder of `--data` in a mixture; empty: in proportion to their sizes."""
    shift: bool = True
    """Cut the stream at another offset in every epoch, so that blocks fall on other tokens."""

    def __post_init__(self) -> None:
        require_ranges(self, "data")
        require(
            all(0 < w < math.inf for w in self.weights),
            "data.weights",
            show(self.weights),
            "use numbers above 0",
        )


@dataclass(frozen=True)
class TrainConfig:
    """A training run: objective, noise levels, optimiser, learning rate, processes, log."""

    steps: int = ranged(1000, least=1)
    """Optimiser steps."""
    seconds: float = ranged(0.0, least=0)
    """End sooner, after so many seconds of training, the learning rate at 0; 0: no limit."""
    batch: int = ranged(256, least=1, most=MOST)
    """Sequences in an optimiser step, over all processes."""
    micro_batch: int = ranged(0, least=0)
    """Sequences in one forward pass of one process; 0: all of its share at once."""
    seed: int = ranged(0, least=0, below=2**63)
    """Decides windows, noise levels, context lengths, noise and dropout."""

    objective: Literal["all_blocks", "one_block"] = "all_blocks"
    """Denoise every block of a sequence in one pass, or one block after a random context."""
    share_c: int = ranged(1, least=1)
    """one_block: how many consecutive sequences share a context length (the authors: 24)."""
    block_lengths: tuple[int, ...] = ()
    """all_blocks: each step cuts its sequences into blocks of one of these; empty: model.B."""
    context_share: float = ranged(0.0, least=0, most=1)
    """all_blocks: share of the run, its beginning, that trains the context stream alone."""
    loss: Literal["cross_entropy", "l2"] = "cross_entropy"
    """Of a noised token: -log p(token), or the squared distance of p from the token's one-hot."""
    reduction: Literal["sum", "mean"] = "mean"
    """one_block: add the loss over a block (the paper) or average it (the authors' code)."""
    levels: Literal["uniform", "band"] = "band"
    """Where noise levels are drawn: everywhere, or mostly where tokens are decided."""
    stratify: bool = True
    """Spread the levels of a batch evenly instead of drawing each independently."""
    own_share: float = ranged(0.0, least=0, most=1)
    """band: share of blocks in which every position has a level of its own."""
    ramp_share: float = ranged(0.0, least=0, most=1)
    """band: share of blocks whose levels rise from left to right."""
    noise_share: float = ranged(0.0, least=0, most=1)
    """band: share of blocks that are noise alone."""
    gap_share: float = ranged(0.0, least=0, most=1)
    """band: share of blocks that are clean on both sides of a gap, at one level or on a ramp."""
    widest_ramp: float = ranged(2.0, above=0)
    """band: the widest such ramp, in blocks; widths are drawn evenly in their logarithm."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """Update rule; muon moves hidden matrices, AdamW the rest."""
    lr: float = ranged(1e-3, least=0)
    """Peak learning rate (of AdamW)."""
    muon_lr: float = ranged(0.02, least=0)
    """Peak learning rate of the matrices that Muon moves."""
    beta1: float = ranged(0.9, least=0, below=1)
    """Decay of AdamW's first moment."""
    beta2: float = ranged(0.95, least=0, below=1)
    """Decay of AdamW's second moment."""
    eps: float = ranged(1e-8, above=0)
    """Added to the root of AdamW's second moment."""
    weight_decay: float = ranged(0.1, least=0)
    """Decoupled weight decay."""
    decay_rule: Literal["matrices", "authors"] = "matrices"
    """What is decayed: matrices, or all but names with `bias` or `LayerNorm.weight`."""
    clip: float = ranged(1.0, least=0)
    """Largest gradient norm; 0: no clipping."""
    spike: float = ranged(0.0, least=0)
    """Skip steps whose gradient norm is so many times its mean, or not finite; 0: never."""
    ema: float = ranged(0.0, least=0, below=1)
    """Decay of the weights' moving average, which is then what a run exports; 0: none."""

    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    """How the learning rate falls after the warm-up; wsd: constant, then linear at the end."""
    warmup: int = ranged(100, least=0)
    """Steps over which the learning rate rises from 0 to its peak."""
    rewarmup: int = ranged(50, least=0)
    """The same, instead of `warmup`, when `init` is an SSD-LM checkpoint."""
    cooldown: float = ranged(0.2, least=0, most=1)
    """wsd: the share of all steps over which the learning rate falls."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the network; weights, moments and the loss stay in fp32."""
    compile: bool = False
    """Compile the training step with torch.compile; not on a CPU, where that takes minutes."""
    recompute: bool = False
    """Recompute layers in the backward pass instead of storing them (gradient checkpointing)."""
    sharding: Literal["ddp", "fsdp"] = "ddp"
    """Several processes: each has the whole model, or each a shard of it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: an accelerator when there is one; cpu; or cuda, and no other."""

    init: str = ""
    """Start from a checkpoint's folder or, for an encoder or an adapter, a language model."""
    init_from: Literal["ema", "raw"] = "ema"
    """Which weights of a training checkpoint `init` reads; ema falls back to raw."""

    log_every: int = ranged(10, least=1)
    """Steps between lines of log.jsonl."""
    validate_every: int = ranged(500, least=0)
    """Steps between validations on the hold-out; 0: only at the end."""
    validate_sequences: int = ranged(64, least=0)
    """Hold-out sequences a validation reads; 0: no validation."""
    validate_points: int = ranged(16, least=1, most=MOST)
    """Noise levels at which a validation measures the loss and adds up the bound."""
    save_every: int = ranged(1000, least=0)
    """Steps between checkpoints; 0: only by the clock and at the end."""
    save_seconds: float = ranged(0.0, least=0)
    """Seconds between checkpoints; 0: only by steps."""
    async_save: bool = True
    """Train on while a checkpoint is written, from a copy of all tensors in main memory."""
    keep: int = ranged(2, least=1)
    """Checkpoints kept."""
    keep_every: int = ranged(0, least=0)
    """Also keep checkpoints whose step is a multiple of this; 0: none."""
    tensorboard: bool = True
    """Also write TensorBoard events when tensorboard is installed."""
    tracker: Literal["none", "wandb", "trackio", "mlflow"] = "none"
    """Also send the log to this service."""
    decode_T: int = ranged(200, least=1, most=MOST)
    """Diffusion steps per block of the exported model, where a request gives no other number."""

    def __post_init__(self) -> None:
        require_ranges(self, "train")
        lengths = self.block_lengths
        require(
            all(1 <= length <= MOST for length in lengths),
            "train.block_lengths",
            show(lengths),
            "use numbers from 1",
        )


RETIRED: dict[str, dict[str, Any]] = {
    "BlockConfig": {"has_time": True, "has_tied_head": False},
    "TrainConfig": {"lr_end": 0.0},
}
"""Fields that configs of earlier versions have, and the one value that is still possible."""


@dataclass(frozen=True)
class Config:
    """A whole run: what is trained, on what, and how."""

    model: EncoderConfig | BlockConfig | AdapterConfig = field(default_factory=BlockConfig)
    """The denoiser."""
    data: DataConfig = field(default_factory=DataConfig)
    """The sequences."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The run."""


def require_ranges(config: Any, section: str = "") -> None:
    """Refuse a config with a field outside its range; `section` is its name on a command line."""
    for item in fields(config):
        value = getattr(config, item.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        most, own = MOST_OF_ANY if isinstance(value, int) else MOST_FLOAT, dict(item.metadata)
        if not own.keys() & {"least", "above"}:
            own["least"] = -most
        if not own.keys() & {"most", "below"}:
            own["most"] = most
        limits = [(*LIMITS[name], limit) for name, limit in own.items()]
        # Each comparison must hold, so that NaN, for which none does, is refused.
        is_within = all(compare(value, limit) for compare, _, limit in limits)
        remedy = " and ".join(words.format(limit) for _, words, limit in limits)
        name = f"{section}.{item.name}" if section else item.name
        require(is_within, name, shorten(str(value)), f"use {remedy}")
