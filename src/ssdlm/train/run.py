"""A run and what belongs to it: objective, processes, optimiser, moving average, data.

initial_weights, windows, objective -> [run] -> resume, loop
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint as recomputed

from ssdlm.config import BlockConfig, Config, EncoderConfig
from ssdlm.data.shards import TokenStore
from ssdlm.data.windows import Windows, held_out
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.shapes import Tokens
from ssdlm.train import distributed
from ssdlm.train.background import Background
from ssdlm.train.initial_weights import find_init, is_denoiser
from ssdlm.train.learning_rate import Clock
from ssdlm.train.levels import LevelSampler
from ssdlm.train.objective import AllBlocks, OneBlock
from ssdlm.train.optimizer import Ema, MuonAdamW, make_optimizer
from ssdlm.train.spikes import Spikes

WEIGHTS, STEP, DROPOUT, HELD_OUT = range(4)
"""What a run's seed is used for."""
EXAMPLES = 2**32
"""The use of it that gives examples their seeds; small numbers order the windows."""


@dataclass
class Run:
    """The state of a run: what stays the same, and what every step changes."""

    config: Config
    accelerator: Any
    out: Path
    stores: list[TokenStore]
    denoiser: DenoiserModule
    objective: AllBlocks | OneBlock
    """The loss, around the denoiser."""
    module: Any
    """The same as every process calls it: replicated or in shards."""
    optimizer: MuonAdamW
    ema: Ema | None
    windows: Windows
    validation_rows: Tokens
    """Rows of the hold-out; there may be none."""
    bytes_per_token: float
    """Of the hold-out."""
    group: Any = None
    """All processes, for what they tell each other about checkpoints; None where each has all."""
    tracker: Any = None
    """The run of a service that receives the figures, in the main process."""
    writing: Background = field(default_factory=Background)
    step: int = 0
    """Optimiser steps done."""
    clock: Clock = field(default_factory=Clock)
    spikes: Spikes = field(default_factory=Spikes)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run: as many as asked for, or as the clock leaves."""
        return self.clock.end or self.config.train.steps

    @property
    def context_steps(self) -> int:
        """How many steps, the first ones, train the context stream alone."""
        return round(self.config.train.context_share * self.steps)

    @property
    def is_context_only(self) -> bool:
        """Whether the coming step trains the context stream alone."""
        return self.step < self.context_steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step reads, over all processes."""
        return self.config.train.batch * self.config.data.max_len

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the denoiser have the averaged weights for a while, where an average is kept."""
        if self.ema is None:
            yield
            return
        own = {name: value.detach().clone() for name, value in self.denoiser.state_dict().items()}
        self.ema.copy_to(self.denoiser)
        try:
            yield
        finally:
            self.denoiser.load_state_dict(own)


def resolve(config: Config, stores: list[TokenStore]) -> Config:
    """Return the config with what the data and `init` decide; refuse what cannot be trained."""
    model, train = config.model, config.train
    sizes = sorted({store.V for store in stores})
    if len(sizes) != 1:
        raise ValueError(f"the data folders have vocabularies of {sizes}; prepare them alike")
    if isinstance(model, EncoderConfig) and (train.objective, train.optimizer) != (
        "one_block",
        "adamw",
    ):
        raise ValueError(
            f"train.objective={train.objective} with train.optimizer={train.optimizer} needs a "
            "BlockDenoiser; an encoder has one_block and adamw"
        )
    if train.objective == "one_block" and config.data.max_len <= model.B:
        raise ValueError(
            f"data.max_len={config.data.max_len} has no room for a context and a block of "
            f"model.B={model.B}; raise data.max_len"
        )
    if train.objective == "one_block" and train.context_share > 0:
        raise ValueError(
            f"train.context_share={train.context_share:g} is of objective=all_blocks; "
            "with one_block use 0"
        )
    if isinstance(model, BlockConfig) and model.V == 0:
        model = replace(model, V=sizes[0])
    if isinstance(model, EncoderConfig) and model.backbone.get("vocab_size") == 0:
        model = replace(model, backbone=model.backbone | {"vocab_size": sizes[0]})
    if is_denoiser(find_init(train.init)):
        train = replace(train, warmup=train.rewarmup)
    return replace(config, model=model, train=train)


def assemble(
    config: Config,
    accelerator: Any,
    out: Path,
    stores: list[TokenStore],
    denoiser: DenoiserModule,
    *,
    is_sharded: bool,
    fill: Callable[[], None] | None = None,
) -> Run:
    """Return a run around a denoiser, at its first step; `fill` gives one in shards its weights."""
    train, data = config.train, config.data
    if train.batch % accelerator.num_processes:
        raise ValueError(
            f"train.batch={train.batch} does not divide by {accelerator.num_processes} processes; "
            "change one of them"
        )
    windows = Windows(stores, data.max_len, train.seed, data.weights, data.shift)
    objective = make_objective(config, denoiser, accelerator.device)
    module = distributed.distribute(
        accelerator,
        objective,
        is_sharded=is_sharded,
        layers=denoiser.transformer_layers(),
    )
    if fill is not None:
        fill()
    holdouts = [TokenStore.open(store.dir, "holdout") for store in stores]
    return Run(
        config=config,
        accelerator=accelerator,
        out=out,
        stores=stores,
        denoiser=denoiser,
        objective=objective,
        module=module,
        optimizer=make_optimizer(denoiser, train),
        ema=Ema(denoiser, decay=train.ema) if train.ema > 0 else None,
        windows=windows,
        validation_rows=read_validation_rows(config, holdouts),
        group=distributed.new_group() if is_sharded else None,
        bytes_per_token=sum(s.num_bytes for s in holdouts) / max(1, sum(map(len, holdouts))),
    )


def is_compiled(config: Config, denoiser: DenoiserModule, device: torch.device) -> bool:
    """Tell whether the network is compiled: as asked, but not on a CPU, where it takes minutes."""
    train = config.train
    # Single blocks come after contexts of many lengths, which fail in a compiled BlockDenoiser.
    can_be = train.objective == "all_blocks" or not isinstance(denoiser, BlockDenoiser)
    return train.compile and can_be and device.type != "cpu"


def make_objective(
    config: Config, denoiser: DenoiserModule, device: torch.device
) -> AllBlocks | OneBlock:
    """Return what is minimised, around a denoiser that is compiled or recomputed as asked."""
    train = config.train
    if train.recompute:
        for layer in denoiser.transformer_layers():
            layer.forward = partial(recomputed, layer.forward, use_reentrant=False)
    if is_compiled(config, denoiser, device):
        denoiser.compile_layers()
    level_sampler = LevelSampler.of(train, config.model.T)
    if train.objective == "all_blocks":
        denoiser = cast(BlockDenoiser, denoiser)  # `resolve` refuses this objective for others
        lengths = train.block_lengths
        return AllBlocks(denoiser, level_sampler, loss=train.loss, block_lengths=lengths)
    # For every length of context cuDNN would plan its attention anew, a tenth of a second each.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return OneBlock(
        denoiser,
        level_sampler,
        share_c=train.share_c,
        reduction=train.reduction,
        loss=train.loss,
    )


def read_validation_rows(config: Config, holdouts: list[TokenStore]) -> Tokens:
    """Return the rows a validation reads: shorter ones where the hold-out is short, or none."""
    least = config.model.B + 1 if isinstance(config.model, EncoderConfig) else 2
    length = min(config.data.max_len, max(map(len, holdouts)))
    count = config.train.validate_sequences if length >= least else 0
    return held_out(holdouts, max(length, 1), count)
