"""Which requests a lane can take, and the lanes there are.  lanes -> [fleet] -> plain

Lanes are for what most texts are on a GPU: a window that slides a position a pass, maybe steered by
classifiers or held to a grammar, blocks of any other path, and chains. Everything else goes through
the plain loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion.speculative import tree_of
from ssdlm.engine.chains import Chains
from ssdlm.engine.controls import Controls
from ssdlm.engine.encoder_lane import EncoderLane
from ssdlm.engine.ending import unwritten
from ssdlm.engine.guided_lane import GuidedLane
from ssdlm.engine.lanes import ChainLane, Lane, Row, SlidingLane, steady_levels
from ssdlm.engine.requests import Request, noise_seeds
from ssdlm.engine.schedule import Berths
from ssdlm.engine.strategy import strategy_of
from ssdlm.engine.tree_lane import SpeculativeLane
from ssdlm.engine.window_lane import WindowLane
from ssdlm.options import GenerateOptions

FIXED_SLOTS = 32
"""Slots of every lane where texts must not depend on how many there are."""
LEAST_CAPACITY = 128
MOST_GUESSED = 1 << 14
"""Guesses are found among so many tokens at most; a larger vocabulary takes the plain way."""
MOST_LANES = 4
"""Lanes that are kept for requests of the same kind."""
MEMORY_SHARE = 0.5
"""The share of a GPU's free memory that a lane may take."""


class Kind(NamedTuple):
    """What requests of one lane have in common."""

    mode: str
    width: float
    """Of the diffusion's window; of a chain's tree, its guesses."""
    capacity: int
    settings: Hashable = ()
    """What else decides their passes: guides and how they are heard; of whole blocks, the path."""
    is_held: bool = False
    """Whether a grammar has to be read after every pass."""


class Fleet:
    """The lanes of one model."""

    def __init__(self, chains: Chains, controls: Controls, *, is_deterministic: bool) -> None:
        self.chains, self.denoiser, self.tokenizer = chains, chains.denoiser, chains.tokenizer
        self.controls = controls
        self.is_deterministic = is_deterministic
        denoiser = self.denoiser
        self.is_used = denoiser.has_slots and Slots.has_kernels(cast(Any, denoiser))
        """Whether there are lanes at all: on a CPU rows go one by one."""
        self.has_blocks = PaddedEncoder.takes(denoiser) and not is_deterministic
        """Whether there are lanes for whole blocks; their roundings depend on who is there."""
        self.tell: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Shows a few words while something lasts: in a lane's first turn kernels are compiled."""
        self.idle: OrderedDict[tuple[Kind, int], Lane] = OrderedDict()
        """Lanes without texts, by kind and number of slots, the latest last."""

    def kind_of(self, request: Request) -> Kind | None:
        """Return the kind of a request that a lane can take."""
        options, is_held = request.options, request.placement is not None
        if not request.context or not is_plain(request):
            return None
        if self.has_blocks:
            return None if is_held else self.encoder_kind(request)
        if not self.is_used:
            return None
        if options.mode == "diffusion":
            W = len(steady_levels(options.width))
            if not has_lane(options):
                return None if is_held else self.window_kind(request)
            if is_held and W > 1:
                return None
            control = self.control_of(request, W + 1)
            if control is None:
                return None
            capacity = self.capacity(request, W + 1)
            return Kind(options.mode, options.width, capacity, control, is_held)
        nodes = options.draft_nodes if options.mode == "speculative" else 0
        if nodes and (is_held or self.denoiser.V > MOST_GUESSED):
            if not self.is_deterministic:
                return None
            nodes = 0  # the same text, without guesses
        tree = tree_of(nodes)
        margin = len(tree.parents) * (1 + tree.m)
        return Kind("chain", nodes, self.capacity(request, margin), is_held=is_held)

    def encoder_kind(self, request: Request) -> Kind | None:
        """Return the kind of a request whose blocks settle as a whole, if a lane can take it."""
        options, room = request.options, self.denoiser.max_len
        needed = len(request.context) + options.length
        if not has_encoder_lane(options) or (room is not None and needed > room):
            return None
        path = options.B[0], options.T, options.grid, options.returns
        capacity = self.capacity(request, 0)
        return Kind("encoder", 0, capacity if room is None else min(capacity, room), path)

    def window_kind(self, request: Request) -> Kind | None:
        """Return the kind of a request whose blocks are all of one length, if a lane takes it."""
        options, (B, *others) = request.options, request.blocks()
        if not has_window_lane(options) or any(other != B for other in others):
            return None
        path = B, options.T, options.grid
        return Kind("window", options.width, self.capacity(request, B + 1), path)

    def control_of(self, request: Request, margin: int) -> Hashable | None:
        """Return what steers a request, None where its guides cannot read it in a lane."""
        options = request.options
        if not options.control:
            return ()
        room = self.controls.room(options)
        if room is not None and len(request.context) + options.length + margin > room:
            return None
        return self.controls.lane_key(options)

    def capacity(self, request: Request, margin: int) -> int:
        """Return how many tokens a slot must hold, in steps of a factor of two.

        A pass writes `margin` rows behind a text, most of which are not there to stay.
        """
        needed = len(request.context) + request.options.length + margin
        capacity = LEAST_CAPACITY
        while capacity < needed:
            capacity *= 2
        return capacity

    def rows(self, requests: Sequence[Request]) -> list[Row]:
        """Return requests as a lane takes them."""
        seeds = noise_seeds(requests)
        return [self.row(one, seed) for one, seed in zip(requests, seeds, strict=True)]

    def row(self, request: Request, seed: int) -> Row:
        """Return a request as a lane takes it, its text's seed being known."""
        options = request.options
        top_p = 0.0 if options.projection == "greedy" else options.top_p
        never, heat = next(iter(unwritten(options, self.tokenizer)), -1), options.temperature
        return Row(request.context, seed, top_p, heat, never, options.length, request.placement)

    def make(self, request: Request, count: int) -> Berths:
        """Return a lane for some requests of one kind, an idle one if there is.

        It is theirs alone until it is idle again. One whose texts were left in the middle never is.
        """
        kind = self.kind_of(request)
        assert kind is not None
        key = kind, self.num_slots(kind, min(count, request.options.batch_size))
        lane, first = self.idle.pop(key, None), nullcontext
        if lane is None:
            first = partial(self.tell, f"getting the GPU ready for {key[1]} texts at a time ...")
            lane = self.build(*key, request.options)
        release = partial(self.release, key, lane)
        return Berths(lane, self.rows, release, first, one_by_one=self.is_deterministic)

    def release(self, key: tuple[Kind, int], lane: Lane) -> None:
        """Keep an idle lane for the next requests of its kind."""
        self.idle[key] = lane
        while len(self.idle) > MOST_LANES:
            self.idle.popitem(last=False)

    def num_slots(self, kind: Kind, wanted: int) -> int:
        """Return a power of two that has room for the requests, if the memory has."""
        # Rows of blocks are so many that their products' roundings depend on the slot. Chains have
        # products whose rows do not depend on each other.
        is_fixed = self.is_deterministic and kind.mode != "chain"
        num = FIXED_SLOTS if is_fixed and kind.mode != "window" else 1
        if not is_fixed:
            while num < wanted:
                num *= 2
        one = self.num_bytes(kind)
        free, _ = torch.cuda.mem_get_info(self.denoiser.device)
        while num > 1 and num * one > MEMORY_SHARE * free and not is_fixed:
            num //= 2
        return num

    def num_bytes(self, kind: Kind) -> int:
        """Return about what a slot of a lane takes."""
        own = Slots.num_bytes(cast(Any, self.denoiser), kind.capacity) if self.is_used else 0
        if kind.mode not in ("encoder", "window"):
            return own
        (B, *_), V = cast(tuple[int, ...], kind.settings), self.denoiser.V
        return (
            own + (8 if kind.mode == "encoder" else 20) * B * V
        )  # weights of all words, and logits

    def build(self, kind: Kind, num_slots: int, options: GenerateOptions) -> Lane:
        """Return a new lane; its passes are recorded when it first runs."""
        sizes = {"num_slots": num_slots, "capacity": kind.capacity}
        if kind.mode == "encoder":
            (B,) = options.B
            return EncoderLane(
                cast(EncoderDenoiser, self.denoiser),
                strategy_of(options, self.denoiser).grid(B),
                B=B,
                returns_logits=options.returns == "logits",
                **sizes,
            )
        denoiser, held = cast(BlockDenoiser, self.denoiser), {"is_held": kind.is_held}
        if kind.mode == "window":
            B = options.blocks()[0]
            return WindowLane(denoiser, strategy_of(options, denoiser).grid(B), B=B, **sizes)
        if kind.settings:
            steering = partial(self.controls.steer_padded, options)
            room = self.controls.room(options)
            return GuidedLane(denoiser, steering, room=room, width=kind.width, **sizes, **held)
        if kind.mode == "diffusion":
            return SlidingLane(denoiser, width=kind.width, **sizes, **held)
        exact = {"is_invariant": self.is_deterministic}
        if not kind.width:
            return ChainLane(denoiser, **sizes, **held, **exact)
        nodes, pairs = int(kind.width), self.chains.pairs
        return SpeculativeLane(denoiser, draft_nodes=nodes, pairs=pairs, **sizes, **exact)


def is_plain(request: Request) -> bool:
    """Tell whether nothing but the network and a grammar decide a text, and nobody watches."""
    if request.is_watched or request.options.streamer is not None:
        return False
    if request.placement is None:
        return True
    # Other constraints replace what was drawn, and what particles are worth is not known here.
    return request.options.has_grammar and request.placement.is_free and not request.branch


def has_lane(options: GenerateOptions) -> bool:
    """Tell whether a lane writes what the plain loop of the diffusion would."""
    if options.grid != "sliding" or any(options.T != B for B in options.B):
        return False
    if len(steady_levels(options.width)) == 1:  # no position keeps a state
        return is_drawn(options) or options.projection == "greedy"
    return keeps_tokens(options)


def has_window_lane(options: GenerateOptions) -> bool:
    """Tell whether a lane for blocks of our denoiser writes what the plain loop would."""
    is_free = not options.control and not options.early_exit
    return options.grid != "sliding" and is_free and keeps_tokens(options)


def keeps_tokens(options: GenerateOptions) -> bool:
    """Tell whether a state is its latest tokens, drawn from a nucleus, and fresh noise."""
    is_cut = options.nucleus == "network" and options.top_p > 0
    return is_drawn(options) and is_cut and has_fresh_noise(options)


def is_drawn(options: GenerateOptions) -> bool:
    """Tell whether a block ends as the tokens that were drawn last."""
    return options.projection == "sampling" and options.returns == "w_0"


def has_fresh_noise(options: GenerateOptions) -> bool:
    """Tell whether a step forgets its state (Eq. 18)."""
    return options.rule == "renoise" and options.rho == 0


def has_encoder_lane(options: GenerateOptions) -> bool:
    """Tell whether a lane for whole blocks of an encoder writes what the plain loop would."""
    is_whole = options.grid in ("uniform", "warped") and not options.early_exit
    is_drawn = options.projection in ("sampling", "greedy") and not options.control
    return (
        options.mode == "diffusion"
        and is_whole
        and has_fresh_noise(options)
        and is_drawn
        and len(options.B) == 1
    )
