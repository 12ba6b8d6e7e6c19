"""From options to a text written token by token: modes that are not diffusion.

options, diffusion -> [chains] -> plain
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ssdlm.denoiser import Denoiser
from ssdlm.diffusion.autoregressive import Choice, Place, generate_chain
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.sampler import Step
from ssdlm.engine.requests import Request
from ssdlm.options import GenerateOptions
from ssdlm.tokenizer import Tokenizer


def check_mode(options: GenerateOptions, denoiser: Denoiser) -> None:
    """Raise on a mode that a model does not have."""
    if not denoiser.has_context_stream:
        raise ValueError(
            f"mode={options.mode} needs a model with a context stream (a BlockDenoiser), which "
            "predicts the next token; use mode=diffusion"
        )


def check_context(request: Request) -> None:
    """Raise on a prompt after which there is no next token."""
    if not request.context:
        raise ValueError(
            f"mode={request.options.mode} continues a text and prompt [] has no tokens; begin "
            "with an end-of-text token, or use mode=diffusion"
        )


def choice_of(options: GenerateOptions, tokenizer: Tokenizer | None) -> Choice:
    """Return how tokens are chosen; a model's own way of projecting is the diffusion's."""
    never_ends = options.never_end and not options.stop_at_end and tokenizer is not None
    return Choice(
        options.top_p,
        options.temperature,
        suppress=(tokenizer.end_of_text,) if tokenizer and never_ends else (),
        is_greedy=options.projection == "greedy" or options.top_p == 0,
    )


def chain_steps(
    denoiser: Denoiser, tokenizer: Tokenizer | None, batch: Sequence[Request]
) -> Iterator[Step]:
    """Yield the steps of requests of equal context length that go together."""
    options, device = batch[0].options, denoiser.device
    placements = [one.placement for one in batch if one.placement is not None]
    ends = options.stop_at_end and tokenizer is not None
    yield from generate_chain(
        denoiser,
        torch.tensor([one.context for one in batch], dtype=torch.long, device=device),
        choice_of(options, tokenizer),
        blocks=batch[0].blocks(),
        noise=RowNoise(torch.tensor([one.noise_seed for one in batch], device=device)),
        places=[Place(one, one.constraint.automaton.start) for one in placements],
        end_of_text=tokenizer.end_of_text if tokenizer and ends else None,
    )
