"""What a step minimises: the loss of examples under the noise that is drawn for them.

    windows -> examples -> [objective: draw -> noise -> denoise -> loss] -> loop

`draw` chooses blocks, levels and noise; `forward` is the part with a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn

from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.block import BlockDenoiser, Earlier
from ssdlm.diffusion import noise, schedule
from ssdlm.diffusion.loss import Losses, draw_splits, split_rows
from ssdlm.shapes import Tensor, Tokens
from ssdlm.train import levels
from ssdlm.train.examples import BEFORE, FRESH, SHAPE, SPLIT, Examples, normals, send, uniforms
from ssdlm.train.levels import LevelSampler

Loss = Literal["cross_entropy", "l2"]


@dataclass(frozen=True)
class Noising:
    """How the tokens of some sequences are noised."""

    blocks: Tensor
    """Each position's block, (L,), on the CPU."""
    progress: Tensor
    """Each position's noise level t/T, (N, L)."""
    z: Tensor
    """Standard normal noise, (N, L, V)."""
    earlier: Earlier | None
    """What a network with self-conditioning sees first."""


@dataclass(frozen=True)
class AllBlocksDraws:
    """Sequences for `AllBlocks`, and the noise drawn for them."""

    tokens: Tokens
    noising: Noising | None
    """None where the context stream is trained alone."""


class AllBlocks(nn.Module):
    """Every block of every sequence at once: a BlockDenoiser's objective."""

    def __init__(
        self,
        denoiser: BlockDenoiser | AdaptedDenoiser,
        level_sampler: LevelSampler,
        *,
        loss: Loss = "cross_entropy",
        block_lengths: tuple[int, ...] = (),
    ):
        super().__init__()
        self.denoiser, self.level_sampler = denoiser, level_sampler
        self.loss: Loss = loss
        self.block_lengths = block_lengths or (denoiser.B,)
        if not denoiser.denoises_blocks:
            cast(BlockDenoiser, denoiser).freeze_blocks()

    def draw(self, examples: Examples) -> AllBlocksDraws:
        """Return examples on the network's device with blocks, levels and noise, by their seeds."""
        examples = examples.to(self.denoiser.device)
        if not self.denoiser.denoises_blocks or examples.is_context_only:
            return AllBlocksDraws(examples.tokens, None)
        length = examples.tokens.shape[1] - self.denoiser.num_given
        blocks = self.draw_blocks(length, examples.step_seed)
        progress = self.level_sampler.draw(examples, blocks)
        z = normals(examples.seeds, length, self.denoiser.V)
        earlier = self.draw_earlier(examples, progress, z)
        return AllBlocksDraws(examples.tokens, Noising(blocks, progress, z, earlier))

    def forward(self, draws: AllBlocksDraws) -> Losses:
        """Return the losses of sequences: noise their blocks, denoise them all in one pass."""
        noising = draws.noising
        if noising is None:
            return cast(BlockDenoiser, self.denoiser).context_losses(draws.tokens)
        return self.denoiser(
            draws.tokens,
            noising.progress,
            z=noising.z,
            blocks=noising.blocks,
            earlier=noising.earlier,
            loss=self.loss,
        )

    def draw_blocks(self, length: int, step_seed: int) -> Tensor:
        """Return each position's block in one step; lengths and cuts change from step to step."""
        B = self.block_lengths[noise.mix(step_seed, SHAPE) % len(self.block_lengths)]
        return levels.block_index(length, B=B, offset=step_seed % B)

    def draw_earlier(self, examples: Examples, progress: Tensor, z: Tensor) -> Earlier | None:
        """Return what a network with self-conditioning sees first, in every other step.

        The same path of noise, when its signal-to-noise ratio was a share of what it is now.
        """
        if not self.denoiser.has_memory or examples.step_seed % 2:
            return None
        share = uniforms(examples.seeds, BEFORE, 1).expand_as(progress)
        before = schedule.progress_of_snr(share * schedule.snr(progress)).to(progress)
        fresh = normals(examples.seeds, progress.shape[1], self.denoiser.V, use=FRESH)
        return Earlier(before, levels.earlier_noise(z, fresh, share))


@dataclass(frozen=True)
class OneBlockDraws:
    """Sequences for `OneBlock`, and what is drawn for them."""

    tokens: Tokens
    c: Tensor
    """Each one's context length, (N,)."""
    progress: Tensor
    """The noise level t/T of its block, (N,)."""
    z: Tensor
    """Standard normal noise, (N, B, V), on the network's device."""


class OneBlock(nn.Module):
    """One block of each sequence after a context of random length: the paper's objective."""

    def __init__(
        self,
        denoiser: Denoiser,
        level_sampler: LevelSampler,
        *,
        share_c: int,
        reduction: Literal["sum", "mean"] = "mean",
        loss: Loss = "cross_entropy",
    ):
        super().__init__()
        self.denoiser, self.level_sampler = denoiser, level_sampler
        self.share_c = share_c
        self.reduction: Literal["sum", "mean"] = reduction
        self.loss: Loss = loss

    def draw(self, examples: Examples) -> OneBlockDraws:
        """Return examples with context lengths, levels and noise, by their seeds."""
        one_block = torch.zeros(1, dtype=torch.int64)
        progress = self.level_sampler.draw(examples, one_block).squeeze(1)
        seeds = send(examples.seeds, self.denoiser.device)
        z = normals(seeds, self.denoiser.B, self.denoiser.V)
        return OneBlockDraws(examples.tokens, self.draw_splits(examples), progress, z)

    def forward(self, draws: OneBlockDraws) -> Losses:
        """Return the losses of sequences; those with one context length are denoised together."""
        device, z = self.denoiser.device, draws.z
        total = torch.zeros((), device=device)
        for rows, context, block in split_rows(draws.tokens, draws.c, B=self.denoiser.B):
            loss = self.denoiser.one_block(
                send(context, device),
                send(block, device),
                send(draws.progress[rows], device),
                z=z if len(rows) == len(z) else z[send(rows, device)],
                loss=self.loss,
            )
            # The paper adds over a block, the authors' code averages.
            loss = loss * block.shape[1] if self.reduction == "sum" else loss
            total = total + loss * (len(rows) / len(draws.tokens))
        return Losses(total, total.detach(), torch.zeros_like(total).detach())

    def draw_splits(self, examples: Examples) -> Tensor:
        """Return the context length c of each example; neighbours in the batch may share one."""
        groups = [
            noise.mix(examples.step_seed, i // self.share_c) for i in examples.indices.tolist()
        ]
        u = uniforms(torch.tensor(groups), SPLIT, 1).squeeze(1)
        max_len = examples.tokens.shape[1]
        return draw_splits(u, max_len=max_len, B=self.denoiser.B)
