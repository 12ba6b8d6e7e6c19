"""From tokens and seeds to a loss: what an optimiser step draws, and what it minimises with it.

    windows -> [objective: levels, contexts, noise] -> loss -> train

Every draw is a function of an example's own seed, or of the step's seed and the example's place in
the step's batch; so a batch may be cut into any pieces, for any number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import nn

from ssdlm.config import TrainConfig
from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.block import BlockDenoiser, Earlier
from ssdlm.denoiser.kernels.fusing import fused
from ssdlm.denoiser.kernels.padding import padded
from ssdlm.diffusion import noise, schedule
from ssdlm.diffusion.loss import (
    all_blocks_loss,
    draw_splits,
    draw_steps,
    one_block_loss,
    split_rows,
)
from ssdlm.shapes import Seeds, Tensor, Tokens
from ssdlm.train import levels

NOISE, LEVEL, SHAPE, WIDTH, OWN, SPLIT, BEFORE, FRESH = range(8)
"""What a row's seed is used for; each has random numbers of its own."""


Loss = Literal["cross_entropy", "l2"]


class Parts(NamedTuple):
    """Mean losses in nats a token: what is minimised, the blocks', the context stream's."""

    total: Tensor
    block: Tensor
    next_token: Tensor


@dataclass(frozen=True)
class Examples:
    """Some examples of an optimiser step."""

    tokens: Tokens
    seeds: Seeds
    """One for each example, the same in whatever batch it comes."""
    places: Tensor
    """Where each example stands in the step's whole batch, (N,)."""
    step_seed: int
    """One for the step, whichever examples these are."""
    is_context_alone: bool = False
    """Whether no block is noised in this step."""

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device, sent so that nobody waits for it."""
        tokens, seeds, places = (
            send(part, device) for part in (self.tokens, self.seeds, self.places)
        )
        return replace(self, tokens=tokens, seeds=seeds, places=places)


@dataclass(frozen=True)
class Levels:
    """How noise levels are drawn: the settings of `TrainConfig` by those names."""

    levels: str
    stratify: bool
    own_share: float
    ramp_share: float
    T: int
    widest_ramp: float = 2.0

    @classmethod
    def of(cls, train: TrainConfig, T: int) -> Levels:
        """Pick the settings out of a run's."""
        shares = (train.own_share, train.ramp_share)
        return cls(train.levels, train.stratify, *shares, T, train.widest_ramp)

    def draw(self, examples: Examples, blocks: Tensor) -> Tensor:
        """Return the progress t/T of every position (N, L); `blocks` is on the CPU."""
        count, length = int(blocks[-1]) + 1, len(blocks)
        blocks = send(blocks, examples.seeds.device)
        u = self.uniforms(examples, count)
        if self.levels == "uniform":
            return (draw_steps(u, T=self.T) / self.T)[:, blocks]
        if self.own_share == self.ramp_share == 0:
            return levels.shared(u, blocks)
        # However many blocks, one number a position: a single shape, compiled once.
        shape, width, own = (draw(examples.seeds, use, length) for use in (SHAPE, WIDTH, OWN))
        shape, width = shape[:, :count], width[:, :count]
        return levels.mixed(
            torch.stack((shape, u, width)),
            own,
            blocks,
            own_share=self.own_share,
            ramp_share=self.ramp_share,
            widest=self.widest_ramp,
        )

    def uniforms(self, examples: Examples, count: int) -> Tensor:
        """Return a uniform for each block (N, count), spread evenly over the whole batch if so."""
        if not self.stratify:
            return draw(examples.seeds, LEVEL, count)
        places = examples.places.view(-1, 1)
        first = draw(torch.full_like(places[:1, 0], examples.step_seed), LEVEL, 1)
        column = torch.arange(count, device=places.device)
        return levels.spread(first, places * count + column)


class AllBlocks(nn.Module):
    """Every block of every sequence at once: a BlockDenoiser's objective."""

    def __init__(
        self,
        denoiser: BlockDenoiser,
        draws: Levels,
        *,
        loss: Loss = "cross_entropy",
        block_lengths: tuple[int, ...] = (),
    ):
        super().__init__()
        self.denoiser, self.draws = denoiser, draws
        self.loss: Loss = loss
        self.block_lengths = block_lengths or (denoiser.B,)
        if not denoiser.denoises_blocks:
            denoiser.freeze_blocks()

    def forward(self, examples: Examples) -> Parts:
        """Return the losses of some examples, noised as their seeds say."""
        config, examples = self.denoiser.config, examples.to(self.denoiser.device)
        if not self.denoiser.denoises_blocks or examples.is_context_alone:
            next_token = self.denoiser.context_loss(examples.tokens)
            total = config.next_token_weight * next_token
            if self.denoiser.denoises_blocks:
                total = total + self.denoiser.no_blocks()
            return Parts(total, torch.zeros_like(total).detach(), next_token.detach())
        length = examples.tokens.shape[1]
        blocks = self.blocks(length, examples.step_seed)
        progress = self.draws.draw(examples, blocks)
        z = normals(examples.seeds, length, self.denoiser.V)
        losses = all_blocks_loss(
            self.denoiser,
            examples.tokens,
            progress,
            z=z,
            blocks=blocks,
            earlier=self.earlier(examples, progress, z),
            next_token_weight=config.next_token_weight,
            block_weight=config.block_weight,
            loss=self.loss,
        )
        return Parts(losses.total, losses.block.detach(), losses.next_token.detach())

    def earlier(self, examples: Examples, progress: Tensor, z: Tensor) -> Earlier | None:
        """Return what a network with self-conditioning sees first, in every other step.

        The same path of noise, when its signal-to-noise ratio was a share of what it is now.
        """
        if not self.denoiser.has_memory or examples.step_seed % 2:
            return None
        share = draw(examples.seeds, BEFORE, 1).expand_as(progress)
        before = schedule.progress_of_snr(share * schedule.snr(progress)).to(progress)
        fresh = normals(examples.seeds, progress.shape[1], self.denoiser.V, use=FRESH)
        return Earlier(before, levels.earlier_noise(z, fresh, share))

    def blocks(self, length: int, step_seed: int) -> Tensor:
        """Return each position's block in one step; lengths and cuts change from step to step."""
        B = self.block_lengths[noise.mix(step_seed, SHAPE) % len(self.block_lengths)]
        return levels.block_index(length, B=B, offset=step_seed % B)


class OneBlock(nn.Module):
    """One block of each sequence after a context of random length: the paper's objective."""

    def __init__(
        self,
        denoiser: Denoiser,
        draws: Levels,
        *,
        share_c: int,
        reduction: Literal["sum", "mean"] = "mean",
        loss: Loss = "cross_entropy",
    ):
        super().__init__()
        self.denoiser, self.draws = denoiser, draws
        self.share_c = share_c
        self.reduction: Literal["sum", "mean"] = reduction
        self.loss: Loss = loss

    def forward(self, examples: Examples) -> Parts:
        """Return the losses of some examples; those with one context length go together."""
        B, device = self.denoiser.B, self.denoiser.device
        progress = self.draws.draw(examples, torch.zeros(1, dtype=torch.int64)).squeeze(1)
        z = normals(send(examples.seeds, device), B, self.denoiser.V)
        total = torch.zeros((), device=device)
        for rows, context, block in split_rows(examples.tokens, self.splits(examples), B=B):
            level = send(progress[rows], device)
            loss = one_block_loss(
                self.denoiser,
                send(context, device),
                send(block, device),
                level,
                z=z if len(rows) == len(z) else z[send(rows, device)],
                reduction=self.reduction,
                loss=self.loss,
            )
            total = total + loss * (len(rows) / len(examples.tokens))
        return Parts(total, total.detach(), torch.zeros_like(total).detach())

    def splits(self, examples: Examples) -> Tensor:
        """Return the context length c of each example; neighbours in the batch may share one."""
        groups = [
            noise.mix(examples.step_seed, p // self.share_c) for p in examples.places.tolist()
        ]
        u = draw(torch.tensor(groups), SPLIT, 1).squeeze(1)
        max_len = examples.tokens.shape[1]
        return draw_splits(u, max_len=max_len, B=self.denoiser.B, shared=False)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from pinned memory, as any other copy would wait for the GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def draw(seeds: Seeds, use: int, count: int) -> Tensor:
    """Return uniforms (N, count) for one use of the rows' seeds."""
    if not seeds.is_cuda:
        return noise.uniform(seeds, block=use, step=0, B=count)
    position = torch.arange(count, device=seeds.device)
    stream = torch.full_like(position[:1], use * noise.NUM_STREAMS + noise.UNIFORM)
    return one_uniform(seeds.unsqueeze(1), position, torch.zeros_like(stream), stream)


@fused
def one_uniform(seeds: Tensor, position: Tensor, zero: Tensor, stream: Tensor) -> Tensor:
    """Return `noise.uniform` (N, count) from counters that come from outside, as for normals."""
    key = seeds & noise.WORD, (seeds >> 32) & noise.WORD
    word, *_ = noise.philox((zero, position, zero, stream), key)
    return noise.to_unit(word)


def normals(seeds: Seeds, count: int, V: int, *, use: int = NOISE) -> Tensor:
    """Return the rows' noise (N, count, V); on a GPU in bf16, which halves what is kept.

    There it is also wider, as matrix units like it; the rest of a row belongs to no token.
    """
    if not seeds.is_cuda:
        return noise.normal(seeds, block=use, step=0, B=count, V=V)
    # Counters come from outside: inductor counts in 32 bits and cannot multiply those by 2^31.
    column = torch.arange(padded(V) // 4, device=seeds.device).view(1, 1, -1)
    position = torch.arange(count, device=seeds.device).view(1, -1, 1)
    stream = torch.full_like(seeds[0], use * noise.NUM_STREAMS + noise.NORMAL)
    four = four_normals(seeds, column, position, torch.zeros_like(stream), stream)
    return four.view(torch.bfloat16)


@fused
def four_normals(
    seeds: Seeds, column: Tensor, position: Tensor, zero: Tensor, stream: Tensor
) -> Tensor:
    """Return the normals of each counter's four words, as bf16 side by side in one int64.

    So they leave one kernel in the order of `noise.normal`, and Philox runs once for all four.
    """
    key = (seeds & noise.WORD).view(-1, 1, 1), ((seeds >> 32) & noise.WORD).view(-1, 1, 1)
    a, b, c, d = noise.philox((column, position, zero, stream), key)
    four = (*noise.box_muller(a, b), *noise.box_muller(c, d))
    bits = [x.to(torch.bfloat16).view(torch.int16).long() & 0xFFFF for x in four]
    return bits[0] | (bits[1] << 16) | (bits[2] << 32) | (bits[3] << 48)
