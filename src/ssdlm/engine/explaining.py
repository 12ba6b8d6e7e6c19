"""How a text would be written, told before it is.  plain -> [explaining] -> api, server

What it says of programs is what `Generation.written` says afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.drafter import base_of
from ssdlm.engine.controls import one_each
from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Request, Written
from ssdlm.engine.runners import is_single
from ssdlm.engine.strategy import bias_of, strategy_of_text
from ssdlm.engine.ways import explained

PROGRAMS = {
    "chain": "a token a pass, by the context stream",
    "drafted": "a drafter's chain of guesses that each pass checks",
    "window": "a window of noise behind what is decided",
    "guided": "a window of noise, with its guides in the graph",
    "encoder": "whole blocks of an encoder",
    "reference": "the reference loop, step by step in Python",
}
CONSTRAINED = {
    "must": "the words have places in the text, which is planned before it is written",
    "must_not": "a token that would complete a forbidden word cannot be drawn",
    "suffix": "it is given, and the passes go to the gap before it",
    "pin": "the text is given at its position, and the network sees it from the start",
    "end_at_sentence": "the text is cut at its last end of a sentence, and is sure to have one",
    "regex": "a token after which the text could not match in time cannot be drawn",
    "json_schema": "a token after which the text could not follow it in time cannot be drawn",
    "grammar": "a token after which the text could not follow it in time cannot be drawn; rules "
    "that contain themselves do so 16 deep at most",
}
"""What each constraint does."""
WEIGHED = "{} particles are weighed by how likely their tokens are without the grammar"
PENALISED = "penalties count tokens that are decided; positions open at once do not see each other"
AIMED = "target {:g}: this share of the texts seeks {}, the others avoid it"
COMPETING = "{} texts are written for each that is kept, and the context stream rates them"
UNGUESSED = (
    "mode=speculative guesses nothing beside biases or penalties, and in a stream: the text is "
    "written token by token"
)
DRAFTLESS = (
    "mode=speculative guesses nothing, for there is no drafter beside the model: the text is "
    "written token by token, as by mode=autoregressive; {}"
)
UNPAID = (
    "mode=speculative guesses nothing on a CPU for this model, which checks guesses more slowly "
    "than it writes: the text is written token by token"
)
TRAIN_ONE = "`ssdlm train-drafter` trains one"
NONE_FITS = "a drafter reads only a BlockDenoiser or a model on layers of ours"
DRAFTED = "guesses are made for one text at a time; several together go token by token"


@dataclass(frozen=True)
class Explanation:
    """How a text would be written; as a string, line by line in plain words."""

    model: str
    written: Written
    passes_per_token: float
    """Network passes of a text of full length over its tokens; about, where candidates compete."""
    is_most: bool
    """Whether it may take fewer: guesses come true, and blocks may be left early."""
    controls: Sequence[Mapping[str, object]]
    """How each control steers, by what, and why so."""
    constraints: Mapping[str, str]
    """What each constraint does, by its option."""
    notes: Sequence[str]

    def json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        how, most = self.written, "at most " if self.is_most else ""
        captured = "yes: passes are CUDA graphs" if how.is_captured else f"no: {how.why}"
        return "\n".join(
            [
                f"model: {self.model}",
                f"device: {how.device}",
                f"program: {how.program}, {PROGRAMS[how.program]}",
                f"captured: {captured}",
                f"passes per token: {most}{self.passes_per_token:.3g}",
                *(f"control {explained(one)}" for one in self.controls),
                *(f"{name}: {said}" for name, said in self.constraints.items()),
                *self.notes,
            ]
        )


def explain(engine: Engine, requests: Sequence[Request]) -> Explanation:
    """Return how a prompt's text would be written; the requests are one for each length tried."""
    first, controls = requests[0], engine.controls
    options, count, written = first.options, engine.num_particles(first), engine.written(first)
    ways = controls.ways(options) if options.mode == "diffusion" else ()
    notes = []
    for way, share in zip(ways, one_each("target", options.target, ways), strict=True):
        if share is not None:
            notes.append(AIMED.format(share, way.name))
    if count > 1 and not ways:
        notes.append(WEIGHED.format(count))
    sees_all = options.mode != "diffusion" or is_single(first)
    if bias_of(options).has_penalties and not sees_all:
        notes.append(PENALISED)
    if first.num_candidates > 1:
        notes.append(COMPETING.format(first.num_candidates))
    if options.mode == "speculative" and written.program != "drafted":
        remedy = NONE_FITS if base_of(engine.denoiser) is None else TRAIN_ONE
        if engine.drafter is None:
            notes.append(DRAFTLESS.format(remedy))
        else:
            notes.append(UNGUESSED if engine.runners.most_guesses else UNPAID)
    if written.program == "drafted":
        notes.append(DRAFTED)
    return Explanation(
        about(engine),
        written,
        passes_per_token(engine, requests, written),
        is_most=options.early_exit or written.program == "drafted",
        controls=(*(way.json(options, count) for way in ways), *described_by(first)),
        constraints={name: CONSTRAINED[name] for name in options.constraints},
        notes=tuple(notes),
    )


def described_by(request: Request) -> list[dict[str, object]]:
    """Return how a description steers, if there is one, as `Way.json` does."""
    if not request.described:
        return []
    options = request.options
    why = "its logits behind the description lead those without it, a pass more for each token"
    by: dict[str, object] = {"control": options.control_by, "way": "description", "why": why}
    return [by | {"led_by": options.control_by_weight}]


def about(engine: Engine) -> str:
    """Return what kind of model it is, and how large."""
    denoiser = engine.denoiser
    said = f"{type(denoiser).__name__}, V={denoiser.V}"
    if isinstance(denoiser, DenoiserModule):
        parameters = list(denoiser.parameters())
        number = sum(weight.numel() for weight in parameters)
        size = f"{number / 1e6:.1f}M" if number > 1e5 else str(number)
        said += f", {size} parameters in {str(parameters[0].dtype).removeprefix('torch.')}"
    return said


def passes_per_token(engine: Engine, requests: Sequence[Request], written: Written) -> float:
    """Return how many passes a text of full length takes over its tokens, with candidates."""
    first, found = requests[0], [num_passes(engine, one, written) for one in requests]
    length = max(sum(one.blocks()) for one in requests)
    if first.num_candidates == 1:
        return found[0] / length
    return first.options.best_of * sum(passes + 1 for passes in found) / length  # rated by a pass


def num_passes(engine: Engine, request: Request, written: Written) -> int:
    """Return the passes of one text of full length, by all of its particles."""
    options, blocks = request.options, request.blocks()
    is_by_token = options.mode != "diffusion" or request.slides
    if options.mode != "diffusion":
        passes = sum(blocks)
    elif request.slides:
        whole = (options.whole_block(number) for number in range(len(blocks)))
        passes = sum(
            max(1, math.ceil(options.T * size / B)) for size, B in zip(blocks, whole, strict=True)
        )
    else:
        grid = strategy_of_text(request, engine.denoiser).grid
        passes = sum(grid(B).T + engine.denoiser.num_context_passes for B in blocks)
    # On a GPU a program reads the prompt by itself; elsewhere it goes with the first pass.
    is_read_apart = written.device != "cpu" and written.program != "reference" and is_by_token
    passes += is_read_apart and len(request.context) > 1
    return passes * engine.num_particles(request) * request.num_copies
