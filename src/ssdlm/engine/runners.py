"""Which program writes a request's text, and the decode batches there are.

    programs -> [runners] -> plain

What no program can do is written by the reference loops of `diffusion`; `Runners.why_not` says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion.grid import Grid, Sliding
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.simplex import to_ids
from ssdlm.engine import reasons
from ssdlm.engine.batch import PLAIN, DecodeBatch, Entry, Traits
from ssdlm.engine.ending import end_token, unwritten
from ssdlm.engine.path import Path, num_open
from ssdlm.engine.programs.chain import Chain
from ssdlm.engine.programs.drafted import Drafted
from ssdlm.engine.programs.encoder import EncoderWindow
from ssdlm.engine.programs.guided import GuidedWindow
from ssdlm.engine.programs.window import Window
from ssdlm.engine.requests import Request, Written, noise_seeds
from ssdlm.engine.strategy import bias_of, strategy_of_text
from ssdlm.engine.views import BlockView, SlidingView, TokenView, View
from ssdlm.guidance.gradient import guided
from ssdlm.options import GenerateOptions

if TYPE_CHECKING:
    from ssdlm.engine.plain import Engine

FIXED_SLOTS = 32
"""Slots of a sliding window's batch where texts must not depend on how many there are."""
LEAST_CAPACITY = 128
MOST_DRAFTED = 1
"""Texts at a time up to which a drafter guesses: of several, rows to check cost what they save."""
FREE_ROWS = 3
"""Rows that cost a CPU about as much as one, of matrices in rows; in columns two cost twice."""
MOST_GUESSES = 4
"""Guesses that are checked at once, of those that a drafter has."""
ROW_STEP = 16
"""Rows of a block with a right side are a multiple of this on a GPU: lengths share a recording."""
MOST_IDLE = 4
"""Batches that are kept for requests of the same kind."""
MEMORY_SHARE = 0.5
"""The share of a GPU's free memory that a batch may take."""
MOST_SHARED = 1024
"""Tokens up to which slots grow on a CPU; longer texts have batches of their own."""
CPU_MEMORY = 2 << 30
"""Bytes that the slots of a batch take at most on a CPU, unless it has only one."""
CPU_SLOTS = 16
"""Texts that a CPU writes side by side: with two positions each, more would gain little."""


class Key(NamedTuple):
    """What the requests of one decode batch have in common."""

    program: str
    """chain, drafted, window, guided or encoder."""
    path: Hashable = ()
    """What decides the levels of a window."""
    B: int = 0
    """The positions of a block, which may be more than a text has; 0 where nothing has blocks."""
    num_guesses: int = 0
    """Guesses that a pass checks, of a chain with a drafter."""
    pace: int = 0
    """Passes in which a window that slides moves on by a position."""
    guides: Hashable = ()
    """The guides within the graph, and how they are heard."""
    capacity: int = 0
    """Tokens that a slot holds; 0 on a CPU where slots grow."""
    traits: Traits = PLAIN
    """What they have in common beside that."""
    has_choosers: bool = False
    """Whether the host acts between the halves of a pass; on a CPU every text may have that."""


class Runners:
    """The decode batches of one model."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.controls = engine, engine.controls
        self.denoiser, self.tokenizer = engine.denoiser, engine.tokenizer
        self.network: Any = self.denoiser
        """The same, for a program, which is made only where `why_not` says nothing."""
        self.device = self.denoiser.device.type
        self.is_gpu = self.device != "cpu"
        self.tell: Callable[[str], AbstractContextManager[object]] = nullcontext
        """Shows a few words while something lasts: in a batch's first turn kernels are compiled."""
        self.known: tuple[GenerateOptions | None, dict[Hashable, Key | None]] = (None, {})
        """The options that were asked about last, and keys of requests with these."""
        self.idle: OrderedDict[tuple[Key, int], DecodeBatch] = OrderedDict()
        """Batches without texts, by key and number of slots, the latest last."""

    def written(self, request: Request, key: Key | None) -> Written:
        """Return how a text is written that has no particles, its key being known."""
        if key is None:
            return Written(self.device, "reference", why=self.why_not(request))
        if not self.is_gpu:
            return Written(self.device, key.program, why=reasons.ON_A_CPU)
        why = self.why_chosen(request) if key.has_choosers else ""
        why = self.why_steered(request) if key.traits.has_guides else why
        return Written(self.device, key.program, not why, why)

    def why_not(self, request: Request) -> str:
        """Return why no program writes a text; nothing where one does."""
        denoiser, options, blocks = self.denoiser, request.options, request.blocks()
        if not request.context:
            return reasons.NO_CONTEXT
        if options.mode == "diffusion" and options.early_exit:
            return reasons.EARLY_EXIT
        if options.mode == "diffusion" and options.reduction != "sum":
            return reasons.averaged(options)
        if len(unwritten(options, self.tokenizer)) > 1:
            return reasons.SEVERAL_ENDS
        if PaddedEncoder.takes(denoiser):
            return self.why_no_encoder(request)
        if not Slots.takes(denoiser):
            return reasons.without_rows(type(denoiser).__name__)
        if self.is_gpu and not Slots.has_kernels(denoiser):
            return reasons.without_kernels(type(denoiser).__name__)
        if options.mode != "diffusion":
            return ""
        if request.slides and pace_of(options) == 0:
            return reasons.moved_otherwise(options)
        if not request.slides and any(B != blocks[0] for B in blocks):
            return reasons.uneven(blocks)
        if request.described and not is_single(request) and not request.ends_alike:
            return reasons.ENDS_OTHERWISE
        if denoiser.is_exact and may_be_certain(request):
            return reasons.read_as_words(options)
        if not is_single(request) and (why := reasons.of_state(options)):
            return why
        if ends_likely(request) and (request.slides or options.grid not in reasons.AT_ONCE):
            return reasons.likeliest_at_last(options)
        if options.returns == "logits" and request.placement is not None and not is_single(request):
            return reasons.placed_at_last(options)
        return (
            reasons.warmed(options) if cuts_evidence(request) and options.temperature != 1 else ""
        )

    def why_no_encoder(self, request: Request) -> str:
        """Return why no program writes a text of an encoder; nothing where one does."""
        options, room = request.options, self.denoiser.max_len
        if self.engine.is_deterministic:
            return reasons.ROUNDED_TOGETHER
        if request.placement is not None or options.control or request.is_watched:
            return reasons.beside_encoder(request)
        if options.grid not in reasons.TOGETHER:
            return reasons.staggered(options)
        if len(options.B) > 1:
            return reasons.SEVERAL_B
        if why := reasons.of_state(options):
            return why
        is_long = room is not None and len(request.context) + options.length > room
        return reasons.too_long(room) if is_long else ""

    def key_of(self, request: Request) -> Key | None:
        """Return what a request has in common with those of its batch; None for a plain loop."""
        if request.placement is not None or request.described or request.branch:
            return self.find_key(request)
        # Of the texts of one call, which are many, few are of another kind.
        asked, keys = self.known
        if asked is not request.options:
            keys = {}
            self.known = request.options, keys
        looks = request.is_watched, request.keeps_states
        own = len(request.context), request.reads_block, *looks
        if own not in keys:
            keys[own] = self.find_key(request)
        return keys[own]

    def find_key(self, request: Request) -> Key | None:
        """Return the same by looking at all that decides it."""
        if self.why_not(request):
            return None
        options, has_chooser = request.options, bool(self.why_chosen(request))
        traits = self.traits(request, has_chooser=has_chooser)
        if PaddedEncoder.takes(self.denoiser):
            path, capacity = (options.T, options.grid), self.capacity(request, 0)
            capacity = min(capacity, self.denoiser.max_len or capacity)
            return Key("encoder", path, request.blocks()[0], capacity=capacity, traits=traits)
        if options.mode != "diffusion":
            return self.chain_key(request, traits)
        program, guides = "window", ()
        if self.is_gpu and self.is_steered(request):
            program, guides = "guided", self.controls.graph_key(options)
        rest = {"guides": guides, "traits": traits, "has_choosers": has_chooser and self.is_gpu}
        if not request.slides:
            B, given = request.blocks()[0], request.num_given
            if traits.has_sizes:
                B, given = B + -(B + 1) % ROW_STEP, 0
            # Before what is given a window moves as fast as it would slide, which B says.
            gap = given and (options.length, options.whole_block(0))
            path, room = (options.T, options.grid, options.width, gap), B + 1
            return Key(program, path, B, capacity=self.capacity(request, room), **rest)
        pace = pace_of(options)
        capacity = self.capacity(request, num_open(options.width, pace) + 1)
        return Key(program, options.width, pace=pace, capacity=capacity, **rest)

    def traits(self, request: Request, *, has_chooser: bool) -> Traits:
        """Return the traits of the texts that a request may share a batch with."""
        options, is_chain = request.options, request.options.mode != "diffusion"
        is_held = request.placement is not None and not has_chooser
        has_places = is_held and not (request.slides or is_chain)
        is_masked = is_held and not has_places
        return Traits(
            is_masked=is_masked,
            is_strict=is_masked and options.has_grammar and not is_chain,
            is_biased=bool(bias_of(options)) and not has_chooser,  # whose loop does it
            is_cut=options.is_cut and not has_chooser,
            is_described=bool(request.described),
            is_watched=self.is_gpu and request.is_watched,
            is_invariant=self.engine.is_deterministic and is_chain,
            cuts_evidence=cuts_evidence(request) and not is_chain,
            ends_likely=ends_likely(request) and not is_chain,
            has_places=has_places,
            has_sizes=self.is_padded(request),
            has_guides=self.is_gpu and bool(self.why_steered(request)),
        )

    def chain_key(self, request: Request, traits: Traits) -> Key:
        """Return the key of a text token by token; guesses do not change it."""
        options = request.options
        is_plain = request.is_watched or traits.is_biased
        is_guessed = options.mode == "speculative" and not is_plain and self.most_guesses > 0
        if is_guessed and (drafter := self.engine.drafter) is not None:
            count = min(drafter.config.num_guesses, self.most_guesses)
            capacity = self.capacity(request, 2 * (1 + count))
            return Key("drafted", num_guesses=count, capacity=capacity, traits=traits)
        return Key("chain", capacity=self.capacity(request, 2), traits=traits)

    @property
    def most_guesses(self) -> int:
        """Guesses of a drafter's that it pays to check at once; 0 where none do."""
        if self.is_gpu:
            return MOST_GUESSES
        return FREE_ROWS - 1 if self.network.head.is_contiguous() else 0

    def capacity(self, request: Request, margin: int) -> int:
        """Return how many tokens a slot must hold, in steps of a factor of two.

        A pass writes `margin` rows behind a text, most of which are not there to stay.
        """
        longest = max(len(request.context), len(request.described))
        needed, capacity = longest + sum(request.blocks()) + margin, LEAST_CAPACITY
        needed += request.num_after
        while capacity < needed:
            capacity *= 2
        return capacity if self.is_gpu or capacity > MOST_SHARED else 0

    def why_chosen(self, request: Request) -> str:
        """Return why the host chooses a text's tokens, between the halves of a pass.

        Nothing where a draw within the graph does.
        """
        options, placement = request.options, request.placement
        if options.mode != "diffusion":
            return ""
        if request.keeps_states:
            return reasons.STATES
        # Particles of a grammar are told what theirs are worth.
        is_weighed = options.has_grammar and bool(request.branch)
        is_free = placement is None or (is_single(request) and placement.is_free and not is_weighed)
        return "" if is_free or self.is_placed(request) else reasons.held(request)

    def is_placed(self, request: Request) -> bool:
        """Tell whether a table has what may stand where in a text's blocks."""
        if request.slides or request.options.has_grammar or request.placement is None:
            return False
        return request.placement.constraint.automaton.forgets

    def is_padded(self, request: Request) -> bool:
        """Tell whether a batch may write a text's only block beside shorter and longer ones.

        On a CPU, where nothing is recorded, rows that nobody needs would only take time.
        """
        options = request.options
        is_asked = request.described or self.is_steered(request) or self.why_chosen(request)
        is_alike = request.num_given > 0 and options.grid in reasons.TOGETHER
        return self.is_gpu and is_alike and not is_asked

    def is_steered(self, request: Request) -> bool:
        """Tell whether guides steer a text that no chooser writes."""
        options = request.options
        has_guides = bool(options.control) and bool(self.controls.guides(options))
        return has_guides and not self.why_chosen(request)

    def why_steered(self, request: Request) -> str:
        """Return why what steers a text does not fit into the graph; nothing where it does."""
        options, controls = request.options, self.controls
        if not self.is_steered(request):
            return ""
        open_ = num_open(options.width, pace_of(options)) if request.slides else 0
        num_tokens = len(request.context) + sum(request.blocks()) + open_ + 1
        if controls.fits_graph(options, num_tokens):
            return ""
        return reasons.steered(request, controls.ways(options), controls.room(options))

    def view(self, request: Request) -> View:
        """Return what makes steps of a text's passes, for those who watch it."""
        options, blocks, denoiser = request.options, request.blocks(), self.denoiser
        end = end_token(options, self.tokenizer)
        if options.mode != "diffusion":
            return TokenView(blocks, denoiser.V, end)
        if request.slides:
            whole = [options.whole_block(number) for number in range(len(blocks))]
            return SlidingView(Sliding(options.T, options.width), blocks, whole, end)
        noise = RowNoise(torch.tensor([request.noise_seed], device=self.denoiser.device))
        looks = (
            to_ids(noise.normal(block=number, step=0, B=B, V=denoiser.V)).cpu()
            for number, B in enumerate(blocks)
        )
        grid, before = self.grid(request), denoiser.num_context_passes
        # With words or pins all of a block is drawn in each pass.
        rest = {"passes_before": before, "is_whole": request.placement is not None}
        return BlockView(grid, looks, len(blocks), end, **rest)

    def grid(self, request: Request) -> Grid:
        """Return the noise levels of a text's blocks."""
        return strategy_of_text(request, self.denoiser).grid(request.blocks()[0])

    def entries(self, requests: Sequence[Request]) -> list[Entry]:
        """Return requests as a batch takes them."""
        shared = {id(options): options for options in (one.options for one in requests)}
        settings = {key: self.settings(options) for key, options in shared.items()}
        return [
            self.entry(one, seed, settings[id(one.options)])
            for one, seed in zip(requests, noise_seeds(requests), strict=True)
        ]

    def settings(self, options: GenerateOptions) -> dict[str, Any]:
        """Return what entries have of their options alone; many texts of a call share them."""
        return {
            "top_p": -options.top_p if options.projection == "greedy" else options.top_p,
            "temperature": options.temperature,
            "suppressed": next(iter(unwritten(options, self.tokenizer)), -1),
            "top_k": options.top_k,
            "min_p": options.min_p,
            "bias": bias_of(options),
            "weight": options.control_by_weight,
        }

    def entry(self, request: Request, seed: int, settings: dict[str, Any]) -> Entry:
        """Return a request as a batch takes it, its text's seed being known."""
        has_chooser = bool(self.why_chosen(request))
        has_guide = not self.is_gpu and self.is_steered(request)  # else they are the batch's
        return Entry(
            request.context,
            seed,
            **settings,
            written=request.context[len(request.context) - request.num_before :],
            length=sum(request.blocks()),
            placement=None if has_chooser else request.placement,
            guide=cast(guided, self.controls.apply(request.options)) if has_guide else None,
            chooser=self.engine.chooser(request) if has_chooser else None,
            is_watched=request.is_watched,
            described=request.described,
        )

    def open(self, key: Key, request: Request, count: int) -> tuple[DecodeBatch, bool]:
        """Return a batch for so many requests like one, and whether it is new.

        It is theirs alone until it is idle again. One whose texts were left in the middle never is.
        """
        num_slots = self.num_slots(key, min(count, request.options.batch_size))
        batch = self.idle.pop((key, num_slots), None)
        if batch is not None:
            return batch, False
        return self.build(key, request, num_slots), True

    def release(self, key: Key, batch: DecodeBatch) -> None:
        """Keep an idle batch for the next requests of its kind."""
        self.idle[key, batch.num_slots] = batch
        while len(self.idle) > MOST_IDLE:
            self.idle.popitem(last=False)

    def num_slots(self, key: Key, wanted: int) -> int:
        """Return a power of two that has room for the requests, if the memory has."""
        if not self.is_gpu:
            fitting = CPU_MEMORY // max(1, self.num_bytes(key))
            return max(1, min(wanted, CPU_SLOTS, fitting))
        # Rows of blocks are so many that their products' roundings depend on the slot. Chains have
        # products whose rows do not depend on each other.
        if self.engine.is_deterministic and key.program not in ("chain", "drafted"):
            return FIXED_SLOTS if key.pace else 1
        num = 1
        while num < wanted:
            num *= 2
        one, (free, _) = self.num_bytes(key), torch.cuda.mem_get_info(self.denoiser.device)
        # One that is idle has its memory already.
        while num > 1 and (key, num) not in self.idle and num * one > MEMORY_SHARE * free:
            num //= 2
        return num

    def num_bytes(self, key: Key) -> int:
        """Return about what a slot of a batch takes."""
        traits, V = key.traits, self.denoiser.V
        if key.program == "encoder":  # weights of all words, and logits
            return 8 * key.B * V
        own = Slots.num_bytes(self.network, key.capacity) * (1 + traits.is_described)
        return own + (20 * key.B + 16 * traits.is_biased + 24 * traits.is_cut) * V

    def build(self, key: Key, request: Request, num_slots: int) -> DecodeBatch:
        """Return a new batch; its passes are captured when it first runs."""
        options, network, traits = request.options, self.network, key.traits
        sizes = {"num_slots": num_slots, "capacity": key.capacity or LEAST_CAPACITY}
        if key.program == "drafted" and num_slots <= MOST_DRAFTED:
            drafter = self.engine.drafter
            assert drafter is not None  # whose guesses the key has
            return Drafted(network, drafter, key.num_guesses, traits, **sizes)
        if options.mode != "diffusion":
            return Chain(network, traits, **sizes)
        if key.program == "encoder":
            return EncoderWindow(network, self.grid(request), traits, B=key.B, **sizes)
        if request.slides:
            path = Path.sliding(options.width, key.pace)
        else:
            path = Path.of_block(self.grid(request), key.B)
        if key.program == "window":
            return Window(network, path, traits, **sizes)
        return GuidedWindow(network, path, self.controls, options, traits, **sizes)


def may_be_certain(request: Request) -> bool:
    """Tell whether a block's first position may be certain before others of it."""
    placement = request.placement
    if request.slides:
        return False
    if request.options.grid not in reasons.AT_ONCE:
        return True
    if placement is None:
        return False
    starts = accumulate(request.blocks()[:-1], initial=0)  # a word may move to one of them
    return bool(placement.constraint.words) or any(placement.slots[at] >= 0 for at in starts)


def is_single(request: Request) -> bool:
    """Tell whether one position at a time is open, and decided in a pass."""
    return request.slides and pace_of(request.options) == num_open(request.options.width, 1) == 1


def cuts_evidence(request: Request) -> bool:
    """Tell whether top_p cuts logits with their evidence, where positions have some."""
    return request.options.nucleus == "logits" and not is_single(request)


def ends_likely(request: Request) -> bool:
    """Tell whether a text ends as its likeliest tokens, though others were drawn before."""
    return request.options.returns == "logits" and request.options.projection != "greedy"


def pace_of(options: GenerateOptions) -> int:
    """Return how many passes a window takes to slide on by a position; 0 where that varies."""
    paces = {options.T / B for B in options.B}
    pace = paces.pop()
    is_steady = not paces and pace % 1 == 0 and num_open(options.width, int(pace)) > 0
    return int(pace) if is_steady else 0
