"""Texts to write, on their way, and written.  options -> [requests] -> plain

A request is one text: a prompt's ids, its options, and a seed of its own for all of its noise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, overload

from ssdlm.constraints.placement import Placement
from ssdlm.diffusion.noise import mix, mix_rows
from ssdlm.diffusion.sampler import Step
from ssdlm.engine.showing import Piece, as_html, within
from ssdlm.needs import GRAMMARS
from ssdlm.options import GenerateOptions, known_options
from ssdlm.values import check_sequence, check_whole, quote

ROW_OPTIONS = {"seed", "must", "must_not", "suffix", "pin", "end_at_sentence", "stop"}
ROW_OPTIONS |= {"num_samples", "best_of", *GRAMMARS, "gap", "control_by"}
"""Options in which requests of one batch may differ."""
MIXED_TOGETHER = 16
"""So many seeds or more are quicker to mix as one array."""
SHARED_OPTIONS = [
    name for name in known_options() if name not in {*ROW_OPTIONS, "control", "streamer"}
]


class Opened(tuple[int, ...]):
    """The ids before a span that is written anew, and what the span's first token begins with."""

    opening: str

    def __new__(cls, ids: Iterable[int], opening: str) -> Opened:
        made = super().__new__(cls, ids)
        made.opening = opening
        return made


@dataclass(frozen=True)
class Request:
    """One text to write."""

    prompt: str
    context: tuple[int, ...]
    """The prompt's token ids."""
    options: GenerateOptions
    described: tuple[int, ...] = ()
    """The prompt's ids behind a description that steers the text, if one does."""
    number: int = 0
    """Which of the texts that were asked for, from 0; several may compete for one."""
    sample: int = 0
    """Which of the prompt's samples, from 0; with best_of, which of its candidates."""
    num_candidates: int = 1
    """How many texts compete for this one: with best_of, and of each length of a gap."""
    placement: Placement | None = None
    """Where the words stand that the text must contain, if anything was asked of it."""
    opening: str | None = None
    """Of a span that is written anew: what its first token begins with."""
    reads_block: bool = False
    """Whether a guide that steers by its gradient reads the block alone."""
    is_watched: bool = False
    """Whether somebody looks at every step."""
    keeps_states: bool = False
    """Whether steps have logits and states, for those who look at more than tokens."""
    branch: tuple[int, ...] = ()
    """Of a particle: since which weighing it goes its own way, and its number then."""
    num_before: int = 0
    """Of a particle: how many tokens of the context, its last ones, are the text's."""
    num_after: int = 0
    """Of a particle: how many tokens are to come after those of this request."""

    def blocks(self) -> list[int]:
        """Return the lengths of its blocks; a gap and what follows it are one block."""
        if self.placement and self.placement.constraint.length > self.options.length:
            return [self.placement.constraint.length]
        return self.options.blocks()

    @property
    def num_copies(self) -> int:
        """How often the text goes through the network: behind a description for a second time."""
        return 2 if self.described else 1

    @property
    def ends_alike(self) -> bool:
        """Whether the prompt has the same last token behind a description."""
        return self.described[-1:] == self.context[-1:]

    @property
    def num_given(self) -> int:
        """How many tokens are given after a gap."""
        return sum(self.blocks()) - self.options.length

    @property
    def slides(self) -> bool:
        """Whether one window slides through the text.

        Words and tokens that must stand somewhere are planned for a block as a whole, and a guide
        may read the block alone: there the window stays within a block.
        """
        is_free = self.placement is None or self.placement.is_free
        return self.options.grid == "sliding" and is_free and not self.reads_block

    @property
    def noise_seed(self) -> int:
        """The text's own seed: what was asked for, which sample, and the prompt itself."""
        return self.seed_from(mix(*self.seed_parts()))

    def seed_parts(self) -> tuple[int, ...]:
        """Return what a text's seed is made of."""
        return self.options.seed, self.sample, *self.context

    def seed_from(self, mixed: int) -> int:
        """Return the text's seed, its parts being mixed; a particle goes its own way."""
        return mix(mixed, *self.branch) if self.branch else mixed

    def batch_key(self) -> Hashable:
        """Return what requests that go through the network together have in common."""
        options = tuple(getattr(self.options, name) for name in SHARED_OPTIONS)
        held = self.placement is not None, self.slides, self.options.has_grammar, bool(self.branch)
        held = *held, self.num_before
        lengths = len(self.context), len(self.described)
        return lengths, tuple(self.blocks()), options, self.options.control_ids, held


class Requests(Sequence[Request]):
    """A request for each sample of each prompt, made when it is asked for: there may be many."""

    def __init__(
        self,
        firsts: Sequence[Sequence[Request]],
        aimed: Callable[[Request], Request] = lambda request: request,
    ) -> None:
        self.firsts, self.aimed = firsts, aimed
        """The first request of each prompt, for each length that is tried; and what each text's
        request becomes, by its targets."""
        counts = [one[0].options.num_samples * one[0].num_candidates for one in firsts]
        self.ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        prompt = bisect_right(self.ends, places)
        start = self.ends[prompt - 1] if prompt else 0
        return self.aimed(candidate_of(self.firsts[prompt], places - start))


def candidate_of(firsts: Sequence[Request], place: int) -> Request:
    """Return one of a prompt's requests: `best_of` of each length, then those of the next text.

    A text of one length is the same whichever others are tried.
    """
    best_of = firsts[0].options.best_of
    text, candidate = divmod(place, len(firsts) * best_of)
    length, sample = divmod(candidate, best_of)
    first = firsts[length]
    if text == sample == 0:
        return first
    return replace(first, number=first.number + text, sample=text * best_of + sample)


def noise_seeds(requests: Sequence[Request]) -> list[int]:
    """Return every text's own seed; those of many are mixed together."""
    if len(requests) < MIXED_TOGETHER:
        return [one.noise_seed for one in requests]
    mixed = mix_rows([one.seed_parts() for one in requests])
    return [one.seed_from(seed) for one, seed in zip(requests, mixed, strict=True)]


def in_order(texts: Iterable[tuple[int, Generation]]) -> Iterator[Generation]:
    """Yield texts in the order of their numbers, each as soon as all before it are there."""
    waiting: dict[int, Generation] = {}
    done = 0
    for number, text in texts:
        waiting[number] = text
        while done in waiting:
            yield waiting.pop(done)
            done += 1


@dataclass(frozen=True)
class Written:
    """How a text is written: a function of its request, the model and the device alone."""

    device: str = ""
    """cpu or cuda."""
    program: str = ""
    """What does its passes: chain, drafted, window, guided or encoder; reference for the plain
    loops; transformers for a model of that library; nothing where nothing was to be written."""
    is_captured: bool = False
    """Whether passes are CUDA graphs. Python has a part in them only where required words look for
    their places, and where a grammar has no table."""
    why: str = ""
    """Why it is not captured, and what to do; nothing where it is."""


@dataclass(frozen=True)
class Generation:
    """One text that was written. In a notebook its words show how sure they are."""

    prompt: str
    text: str
    """The continuation alone."""
    tokens: list[int]
    """The ids of `text`; where a stop string begins inside a token, those before that token. A last
    character that is not whole is in them, and not in `text`."""
    seed: int
    """The seed that was asked for."""
    sample: int
    """Which of the prompt's samples, from 0."""
    calls: int
    """Network passes per block, reading its context included; the most of any block. With best_of
    or a gap, those of all candidates and of rating them; with particles, those of all of them
    between two weighings."""
    passes_per_token: float = 0.0
    """Network passes of the whole text, those that read the prompt and those of all particles
    included, over its tokens."""
    finish_reason: str = "length"
    """Why it ends where it does: "length", or "stop" where it is shorter than was asked for."""
    written: Written = Written()
    """How it was written: on which device, by which program, captured or why not."""
    rater: ClassVar[Callable[[Generation], list[Piece]] | None] = None
    """Tells how sure each token is: set on a text, as no part of its value, by who wrote it."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy, or another process, gets: the text alone."""
        return {name: value for name, value in vars(self).items() if name != "rater"}

    def _repr_html_(self) -> str:
        """Return the text for a notebook: a word is the fainter, the less sure it is."""
        return self.as_html()

    def as_html(self, steps: Sequence[Sequence[Piece]] = ()) -> str:
        """Return the text, and before it some of its steps, as HTML that needs nothing else."""
        pieces = self.rater(self) if self.rater else [Piece(self.text)]
        if steps and all(piece.certainty is None for piece in pieces):
            pieces = within(steps[-1], len(self.text))  # as sure as it was when it was drawn
        caption = (
            f"seed {self.seed}, {len(self.tokens)} tokens, {self.passes_per_token:.2f} passes per "
            f"token, ended by {self.finish_reason}"
        )
        return as_html(self.prompt, pieces, steps, caption)


@dataclass(frozen=True)
class WatchedGeneration(Generation):
    """A text and the steps by which it settled; in a notebook they move."""

    steps: Sequence[Sequence[Piece]] = ()
    """What each token was, how sure and how noisy, step by step."""

    def _repr_html_(self) -> str:
        return self.as_html(self.steps)


class Candidate(NamedTuple):
    """A token that a position may become."""

    token: int
    text: str
    """The token's own text; its number where the model has no tokenizer."""
    probability: float


@dataclass(frozen=True)
class Draft:
    """A text on its way: one step of the block that is being denoised."""

    text: str
    """The continuation so far, the current block as it would end now."""
    settled: str
    """The part of it in blocks that are decided."""
    block: int
    t: int
    """The noise level reached, 0 at the end of a block."""
    step: Step
    tokens: tuple[int, ...] = ()
    """Those of the block, if it ended here."""
    start: int = 0
    """Where the block begins, counted in tokens of the text."""
    passes: int = 0
    """Network passes of the text so far."""
    noise: tuple[float, ...] = ()
    """How noisy each token of the block is: 1 is noise, 0 is decided."""
    confidence: tuple[float, ...] = ()
    """The probability that the network gives the token of each position of `step.window`."""
    candidates: tuple[tuple[Candidate, ...], ...] = ()
    """The likeliest tokens of each position of `step.window`, if they were asked for."""
    guides: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What each guide that was asked for makes of the text: the probabilities of its labels."""

    @property
    def decided(self) -> int:
        """How many tokens of the text, from its start on, no later step changes."""
        is_open = [index for index, level in enumerate(self.noise) if level > 0]
        return self.start + (is_open[0] if is_open else len(self.noise))


def token_ids(prompt: Any, called: str = "prompt") -> tuple[int, ...]:
    """Return a prompt, or a text, that is not a string as whole numbers."""
    if type(prompt) in (list, tuple) and set(map(type, prompt)) <= {int}:
        return tuple(prompt)  # as they mostly come, and there may be many
    try:
        return tuple(map(check_whole, check_sequence(prompt)))
    except TypeError:
        raise ValueError(
            f"{called} {quote(prompt)} is of the wrong type; a {called} is a string or a list of "
            "token ids"
        ) from None
