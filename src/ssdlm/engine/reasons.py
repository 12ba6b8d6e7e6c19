"""Why a text's passes are not captured, in words that users read.  wanted -> [reasons] -> runners

Each reason names what is in the way, by its option, and after a semicolon what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssdlm.engine.requests import Request
from ssdlm.engine.wanted import PLACED
from ssdlm.engine.ways import Way
from ssdlm.guidance.padding import can_be_padded
from ssdlm.options import GenerateOptions
from ssdlm.values import show

# Why the reference loops write a text.

NO_CONTEXT = "the prompt has no tokens; begin it with an end-of-text token"
EARLY_EXIT = "early_exit looks at a whole block after every step; leave it out"
ROUNDED_TOGETHER = (
    "an encoder's roundings depend on the other texts of its batch, and deterministic forbids "
    "that; leave out deterministic"
)
SEVERAL_B = "blocks of several lengths are no program's of an encoder; give one B"
SEVERAL_ENDS = (
    "this model has several end-of-text tokens, and never_end forbids them all, of which a program "
    "can forbid one; leave out never_end"
)
ENDS_OTHERWISE = (
    "behind a description the open positions of this prompt start from another token, and only "
    "the reference loop reads them twice; begin with a word"
)
KEPT: Mapping[str, Sequence[object]] = {
    "projection": ("sampling", "greedy"),
    "rule": ("renoise",),
    "rho": (0,),
}
"""What options must be for an open position to be its latest token under fresh noise."""
TOGETHER = "uniform", "warped"
"""Grids on which all positions of a block have one level."""
AT_ONCE = *TOGETHER, "tilted"
"""Grids on which they become certain in one pass."""


def of_state(options: GenerateOptions) -> str:
    """Return which option asks more of an open position than its latest token."""
    for name, fitting in KEPT.items():
        if (value := getattr(options, name)) not in fitting:
            return (
                f"with {name}={show(value)} an open position keeps more than its latest token; use "
                f"{name}={fitting[0]}"
            )
    return ""


def likeliest_at_last(options: GenerateOptions) -> str:
    return (
        f"with returns={options.returns} and grid={options.grid} positions end one by one, and "
        "each as its likeliest token; use returns=w_0"
    )


def placed_at_last(options: GenerateOptions) -> str:
    asked = " and ".join(options.constraints)
    return f"{asked} with returns=logits is obeyed as logits, and not as tokens; use returns=w_0"


def warmed(options: GenerateOptions) -> str:
    return (
        f"temperature={options.temperature:g} is for what the network adds, and nucleus=logits "
        "cuts what comes of it; use nucleus=network"
    )


def averaged(options: GenerateOptions) -> str:
    return (
        f"reduction={options.reduction} makes the texts of a batch depend on each other; use "
        "reduction=sum"
    )


def without_rows(kind: str) -> str:
    return (
        f"programs read rows behind a cache, and this {kind} cannot; use a BlockDenoiser with "
        "evidence and without self-conditioning"
    )


def read_as_words(options: GenerateOptions) -> str:
    asked = " and ".join(name for name in options.constraints if name in PLACED)
    asked = asked if options.grid in AT_ONCE else f"grid={options.grid}"
    return (
        f"{asked} may make a block's first positions certain before others, and only the reference "
        "loop reads those as words, as an adapter has it; use grid=uniform without must and pin"
    )


def without_kernels(kind: str) -> str:
    return (
        f"there are no kernels here for this {kind}; install triton, and use a BlockDenoiser whose "
        "heads are 16, 32, 64 or 128 wide"
    )


def moved_otherwise(options: GenerateOptions) -> str:
    return (
        f"T={options.T}, B={show(options.B)} and width={options.width:g} do not move a window of "
        "one size by a position in so many passes; use one B, a multiple of it as T, and a whole "
        "width"
    )


def uneven(blocks: Sequence[int]) -> str:
    listed = ", ".join(map(str, blocks[:3])) + (" ..." if len(blocks) > 3 else "")
    return (
        f"blocks of {listed} tokens are not of one length; use one B, and a length that is a "
        "multiple of it"
    )


def beside_encoder(request: Request) -> str:
    return (
        f"an encoder's passes are captured whole, and nothing can act inside, as {actor(request)} "
        "would; leave it out"
    )


def staggered(options: GenerateOptions) -> str:
    return f"grid={options.grid} is no program's of an encoder; use grid=uniform"


def too_long(room: int | None) -> str:
    return f"prompt and text are longer than the model's {room} positions; use a shorter length"


# Why the host acts between the two halves of a pass.

ON_A_CPU = "a CPU has no CUDA graphs; use a GPU"
STATES = "candidates, guides and states of drafts need logits, which no graph keeps; leave them out"


def steered(request: Request, ways: Sequence[Way], room: int | None) -> str:
    """Return why guides are asked between the halves of a pass."""
    between = "is asked between the halves of a pass"
    if request.reads_block:
        return f"a control that sees a block alone {between}; use sees=context"
    names = [way.name for way in ways if way.guide is not None and not can_be_padded(way.guide)]
    if names:
        return (
            f"no graph can hold control {names[0]}, which {between}; use a classifier of RoBERTa's "
            "or BERT's kind"
        )
    return (
        f"control reads {room} tokens at most, and this text may have more: it {between}; use a "
        "shorter prompt or length"
    )


def held(request: Request) -> str:
    """Return why constraints are obeyed between the halves of a pass."""
    options, names = request.options, list(request.options.constraints)
    if request.placement is not None and not request.placement.is_free:
        placed, others = (
            " and ".join(name for name in names if (name in PLACED) == is_placed)
            for is_placed in (True, False)
        )
        are = "is" if placed in PLACED else "are"
        return (
            f"{placed} beside {others} {are} obeyed between the halves of a pass; leave one of "
            "them out"
        )
    what = " and ".join(names)
    if request.branch and options.has_grammar:
        return (
            f"particles weigh what {what} makes of each token, between the halves of a pass; leave "
            "out particles"
        )
    if request.reads_block:
        return (
            f"{what} beside a control that sees a block alone has its place between the halves of "
            "a pass; use sees=context"
        )
    how = f"width={options.width:g}" if options.grid == "sliding" else f"grid={options.grid}"
    return (
        f"{what} with {how} has its place between the halves of a pass; use grid=sliding and "
        "width=1"
    )


def actor(request: Request) -> str:
    """Return what acts while a text is written, by its option."""
    if request.options.streamer is not None:
        return "a streamer"
    if request.is_watched:
        return "a stream"
    return next(iter(request.options.constraints), "control")
