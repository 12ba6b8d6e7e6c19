"""What a run would take: memory on each GPU, days, money.  costs -> [estimate]

Memory is counted (`costs`). Speed is the FLOPs of a run over what a GPU can do at best, times the
utilisation that was measured with the model most alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssdlm.config import AdapterConfig, BlockConfig, Config, EncoderConfig
from ssdlm.train.costs import Memory, language_model, memory_of, sequence_flops
from ssdlm.values import require

DEFAULT_V = 8192
"""The vocabulary of `builtin:mini`, where a recipe leaves it to the data."""
SPARE = 2 * 2**30
"""Bytes of a GPU that training does not get: the driver's, and what lies between tensors."""


@dataclass(frozen=True)
class Gpu:
    """What a GPU has, as its maker says."""

    memory: float
    """In bytes."""
    flops: float
    """A second, of dense products in 16 bits."""


GPUS = {
    "t4": Gpu(16e9, 65e12),
    "v100": Gpu(32e9, 125e12),
    "l4": Gpu(24e9, 121e12),
    "l40s": Gpu(48e9, 362e12),
    "rtx4090": Gpu(24e9, 165e12),
    "a100": Gpu(80e9, 312e12),
    "h100": Gpu(80e9, 989e12),
    "h200": Gpu(141e9, 989e12),
    "b200": Gpu(180e9, 2250e12),
}

BACKBONES = {
    "roberta-base": ("roberta", 50265, 768, 12, 514),
    "roberta-large": ("roberta", 50265, 1024, 24, 514),
    "bert-base-uncased": ("bert", 30522, 768, 12, 512),
    "bert-large-uncased": ("bert", 30522, 1024, 24, 512),
}
"""Sizes of masked LMs that `train.init` may name: kind, vocabulary, width, layers, positions."""


@dataclass(frozen=True)
class Measured:
    """How much of an H200 training made use of (docs/log.md, 2026-11-15)."""

    what: str
    objective: str
    D: int
    micro_batch: int
    utilisation: float


MEASURED = (
    Measured("recipe mini", "all_blocks", 512, 256, 0.281),
    Measured("RoBERTa-large's size, all blocks", "all_blocks", 1024, 192, 0.415),
    Measured("RoBERTa-large's size, the paper's recipe", "one_block", 1024, 256, 0.352),
)


@dataclass(frozen=True)
class Estimate:
    """What a run would take."""

    config: Config
    num_gpus: int
    gpu: Gpu
    memory: Memory
    measured: Measured
    price_per_gpu_hour: float | None = None

    @property
    def fits(self) -> bool:
        """Whether each GPU has the memory."""
        return self.memory.total + SPARE <= self.gpu.memory

    @property
    def sequences_per_s(self) -> float:
        """Of all GPUs; exchange between them is not counted. NaN in float32, never measured."""
        train = self.config.train
        if train.precision == "fp32":
            return math.nan
        # Layers that are run again cost a third more, which is no use.
        share = self.measured.utilisation * (0.75 if train.recompute else 1.0)
        return self.num_gpus * self.gpu.flops * share / sequence_flops(self.config)

    @property
    def tokens_per_s(self) -> float:
        """Tokens that are read, as log.jsonl counts them."""
        return self.sequences_per_s * self.config.data.max_len

    @property
    def days(self) -> float:
        """Of the whole run."""
        train = self.config.train
        return train.steps * train.batch / self.sequences_per_s / 86400

    @property
    def cost(self) -> float | None:
        """Of all GPUs for the whole run, where a price is known."""
        if self.price_per_gpu_hour is None:
            return None
        return self.days * 24 * self.num_gpus * self.price_per_gpu_hour

    def __str__(self) -> str:
        gib, train = 2**30, self.config.train
        parts = {name: size for name, size in self.memory.parts.items() if size > 0}
        listed = ", ".join(f"{name} {size / gib:.1f}" for name, size in parts.items())
        lines = [
            f"memory: {self.memory.total / gib:.1f} GiB of {self.gpu.memory / gib:.1f} on each of "
            f"{self.num_gpus} GPUs {self.memory.moment} ({listed})"
        ]
        if not self.fits:
            lines.append(
                "it does not fit: use a smaller micro_batch, then recompute=true, "
                "then sharding=fsdp"
            )
        if train.precision == "fp32":
            return "\n".join([*lines, "speed: not known in fp32; give precision=bf16"])
        lines.append(
            f"speed: {self.sequences_per_s:,.0f} sequences/s, {self.tokens_per_s:,.0f} tokens/s"
        )
        lines.append(f"time: {self.days:.2f} days for {train.steps:,} steps of {train.batch:,}")
        if (cost := self.cost) is not None:
            lines.append(f"cost: {cost:,.2f} at {self.price_per_gpu_hour:g} per GPU and hour")
        return "\n".join([*lines, *self.reservations()])

    def reservations(self) -> list[str]:
        """Return where the speed comes from, and what may make it less."""
        train, measured = self.config.train, self.measured
        lines = [
            f"utilisation: {measured.utilisation:.1%}, measured on one H200 with {measured.what} "
            f"(bf16, compiled, {measured.micro_batch} sequences in a pass; docs/log.md)"
        ]
        share = train.micro_batch or train.batch // self.num_gpus
        if share < measured.micro_batch / 2:
            lines.append(f"slower than that: only {share} sequences in a pass; raise micro_batch")
        if not train.compile:
            lines.append("slower than that: not compiled; give compile=true")
        if self.num_gpus > 1:
            lines.append("not counted: the exchange between GPUs")
        return lines


def estimate(
    config: Config, *, num_gpus: int, gpu: Gpu, price_per_gpu_hour: float | None = None
) -> Estimate:
    """Return what a run would take on so many GPUs."""
    require(1 <= num_gpus <= 10**6, "gpus", num_gpus, "use 1 to 1000000")
    if price_per_gpu_hour is not None:
        is_price = 0 <= price_per_gpu_hour < math.inf
        require(is_price, "price_per_gpu_hour", price_per_gpu_hour, "use 0 or more")
    if config.train.batch % num_gpus:
        raise ValueError(
            f"train.batch={config.train.batch} does not divide by {num_gpus} GPUs; change one"
        )
    config = with_sizes(config)
    model = config.model
    if isinstance(model, EncoderConfig):
        width = model.backbone["hidden_size"]
    else:
        width = (language_model(model) if isinstance(model, AdapterConfig) else model).D
    alike = [case for case in MEASURED if case.objective == config.train.objective]
    nearest = min(alike, key=lambda case: abs(math.log(case.D / width)))
    memory = memory_of(config, num_gpus=num_gpus)
    return Estimate(config, num_gpus, gpu, memory, nearest, price_per_gpu_hour)


def find_gpu(name: str | None, memory: float | None, tflops: float | None) -> Gpu:
    """Return a GPU by its name, or by its memory in GB and its TFLOP/s in 16 bits."""
    given: Sequence[float | None] = (memory, tflops)
    if any(value is not None and not 0 < value < math.inf for value in given):
        raise ValueError(f"gpu_memory={memory}, gpu_tflops={tflops}: use numbers above 0")
    if name is not None and name.lower() not in GPUS:
        raise ValueError(
            f"gpu={name} is unknown; choose one of {', '.join(GPUS)}, or give --gpu-memory (GB) "
            "and --gpu-tflops (dense, 16 bits) instead"
        )
    known = GPUS[name.lower()] if name is not None else None
    if known is None and (memory is None or tflops is None):
        raise ValueError(
            f"no GPU is given; use --gpu with one of {', '.join(GPUS)}, or both --gpu-memory (GB) "
            "and --gpu-tflops (dense, 16 bits)"
        )
    known = known or Gpu(math.nan, math.nan)
    return Gpu(
        known.memory if memory is None else memory * 1e9,
        known.flops if tflops is None else tflops * 1e12,
    )


def with_sizes(config: Config) -> Config:
    """Return a config whose model has all its sizes, which data and `init` decide in a run."""
    model = config.model
    if isinstance(model, AdapterConfig):
        return config
    if isinstance(model, BlockConfig):
        return replace(config, model=replace(model, V=model.V or DEFAULT_V))
    backbone = dict(model.backbone)
    if not backbone:
        if config.train.init not in BACKBONES:
            raise ValueError(
                f"train.init={config.train.init!r}: its sizes are not known here; give init as one "
                f"of {', '.join(BACKBONES)}, or a checkpoint's folder"
            )
        kind, V, D, num_layers, positions = BACKBONES[config.train.init]
        backbone = {
            "model_type": kind,
            "vocab_size": V,
            "hidden_size": D,
            "num_hidden_layers": num_layers,
            "num_attention_heads": D // 64,
            "intermediate_size": 4 * D,
            "max_position_embeddings": positions,
            "type_vocab_size": 1 if kind == "roberta" else 2,
            "pad_token_id": 1 if kind == "roberta" else 0,
        }
    backbone["vocab_size"] = backbone.get("vocab_size") or DEFAULT_V
    return replace(config, model=EncoderConfig(backbone, model.K, model.B, model.T))
