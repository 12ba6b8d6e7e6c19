"""From options to a text written token by token: modes that are not diffusion.

options, diffusion -> [chains] -> plain
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch

from ssdlm.diffusion.autoregressive import Choice, Place, generate_chain
from ssdlm.diffusion.denoiser import Denoiser, RowDenoiser, reads_rows
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.sampler import Step
from ssdlm.engine.ending import end_token, unwritten
from ssdlm.engine.requests import Request
from ssdlm.engine.strategy import bias_of
from ssdlm.options import GenerateOptions
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote


def check_stream(denoiser: Denoiser, given: str, remedy: str) -> None:
    """Raise on an option that a model cannot follow which is no language model."""
    if not reads_rows(denoiser):
        raise ValueError(
            f"{given} needs a model with a context stream (a BlockDenoiser), which {remedy}"
        )


def check_context(request: Request, denoiser: Denoiser) -> None:
    """Raise on a prompt after which there is no next token."""
    context, options = request.context, request.options
    if denoiser.num_given == 0:
        if options.mode != "diffusion" and not context:
            raise ValueError(
                f"mode={options.mode} continues a text and prompt [] has no tokens; begin with an "
                "end-of-text token, or use mode=diffusion"
            )
    elif not context:
        raise ValueError(
            f"prompt {quote(request.prompt)} has no tokens, and this model knows none to begin "
            "with; write a word"
        )


def check_room(request: Request, denoiser: Denoiser) -> None:
    """Raise on a text for which a language model has no room behind its prompt."""
    num_given = max(len(request.context), len(request.described))
    num_new = sum(request.blocks())
    room, length = denoiser.max_len, request.options.length
    if denoiser.num_given > 0 and room is not None and num_given + num_new > room:
        suffix = f" and a suffix of {num_new - length}" if num_new > length else ""
        behind = " behind its description" if request.described else ""
        raise ValueError(
            f"a prompt of {num_given} tokens{behind} and length={length}{suffix} are more than the "
            f"model's {room} positions; shorten one of them"
        )
    width = request.options.width
    if room is not None and request.slides and width > room:
        raise ValueError(f"width={width:g} is more than the model's {room} positions; lower it")


def choice_of(options: GenerateOptions, tokenizer: Tokenizer | None) -> Choice:
    """Return how tokens are chosen; a model's own way of projecting is the diffusion's."""
    return Choice(
        options.top_p,
        options.temperature,
        suppress=unwritten(options, tokenizer),
        is_greedy=options.projection == "greedy" or options.top_p == 0,
        top_k=options.top_k,
        min_p=options.min_p,
        bias=bias_of(options),
    )


class Chains:
    """Texts of one model, token by token, by the reference loop."""

    def __init__(self, denoiser: Denoiser, tokenizer: Tokenizer | None) -> None:
        self.denoiser, self.tokenizer = cast(RowDenoiser, denoiser), tokenizer  # see `check_stream`

    def steps(self, batch: Sequence[Request]) -> Iterator[Step]:
        """Return the steps of requests of equal context length."""
        options, device = batch[0].options, self.denoiser.device
        context = torch.tensor([one.context for one in batch], dtype=torch.long, device=device)
        placements = [one.placement for one in batch if one.placement is not None]
        return generate_chain(
            self.denoiser,
            context,
            choice_of(options, self.tokenizer),
            blocks=batch[0].blocks(),
            noise=RowNoise(torch.tensor([one.noise_seed for one in batch], device=device)),
            places=[Place(one, one.constraint.automaton.start) for one in placements],
            end_of_text=end_token(options, self.tokenizer),
        )
