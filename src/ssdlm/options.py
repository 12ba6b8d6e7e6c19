"""Every setting of a generation, once: type, range, default, other names and a line of help.

From this page come the arguments of `SSDLM.generate` and `.stream` (engine/signature.py), the flags
of `ssdlm generate`, what a line of a file of prompts may set, the JSON schema, and
docs/reference/options.md. `make generate` writes the generated files anew; a test says when to.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache, wraps
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, get_args

from ssdlm.needs import CONSTRAINING, DIFFUSION, GRAMMARS, NOT_OF_SPANS, refuse_idle
from ssdlm.values import (
    BIAS,
    CONTROLS,
    DESCRIPTION,
    GAP,
    GRAMMAR,
    LENGTHS,
    LEVELS,
    OBJECT,
    PATTERN,
    PINS,
    REAL,
    SCHEMA,
    SWITCH,
    TEXT,
    WEIGHTS,
    WHOLE,
    WORDS,
    About,
    Gap,
    Kind,
    check,
    ignored,
    plain,
    quote,
    show,
)

MOST = 10**6
"""Tokens in a text and steps in a block: more is a slip of the hand, and would fill the memory."""
WIDEST = 1000
"""Positions in a window: each has a row, and logits of its own, in every pass."""
MOST_PARTICLES = 1024
MOST_BY_DESCRIPTION = 10.0
"""A weight of a description: far below it texts fall apart."""
MOST_CONTROLS = 64
"""Controls of a text: each has a table with a row for each token."""
MOST_SEED = 2**63 - 1
MOST_LENGTHS = 64
"""Lengths that a gap may be tried with: each takes a text of its own."""

ModeName = Literal["diffusion", "autoregressive", "speculative"]
GridName = Literal["uniform", "warped", "tilted", "staggered", "sliding"]
RuleName = Literal["renoise", "adaptive", "ddpm", "ddpm_simplified"]
ReturnName = Literal["logits", "w_0"]
ProjectionName = Literal["greedy", "sampling", "multi_hot", "mean"]
NucleusName = Literal["logits", "network"]
GradientName = Literal["logits", "simplex", "words", "fudge"]
ReductionName = Literal["sum", "mean"]
PotentialName = Literal["difference", "maximum"]
SeesName = Literal["context", "block"]
SpanLength = Literal["equal", "free"]
"""How long a span gets that is written anew."""

BLOCKS = "length and blocks"
MODE = "mode"
PATH = "diffusion path"
SAMPLING = "sampling"
CONTROL = "control"
CONSTRAINTS = "constraints"
OUTPUT = "output"
GROUPS = (BLOCKS, MODE, PATH, SAMPLING, CONTROL, CONSTRAINTS, OUTPUT)


def option(default: Any, kind: Kind, group: str, help: str, **facts: Any) -> Any:
    """Return a field of `GenerateOptions`; the facts are those of `About`."""
    return field(default=default, metadata={"about": About(kind, help, group, **facts)})


def stored(default: Any, kind: Kind, group: str, help: str, **facts: Any) -> Any:
    """Return the field of an option for which a model may bring a default of its own."""
    return option(default, kind, group, help, is_stored=True, **facts)


def per_prompt(default: Any, kind: Kind, group: str, help: str, **facts: Any) -> Any:
    """Return the field of an option that may be a list, with one value per prompt."""
    return option(default, kind, group, help, is_per_prompt=True, **facts)


@dataclass(frozen=True)
class GenerateOptions:
    """How texts are generated. Values are checked, and brought into their normal form, here.

    A model has one of these as its own defaults; a request is the model's with some changed.
    """

    began: ClassVar[Mapping[str, Any]] = {}
    """What those that were changed began as, by name: whoever changed them gave them."""

    # fmt: off
    length: int = stored(
        50, WHOLE, BLOCKS, "tokens to write",
        low=1, high=MOST, remedy=f"write 1 to {MOST} tokens", metavar="N")
    B: tuple[int, ...] = stored(
        (25,), LENGTHS, BLOCKS, "tokens per block; several, as 5,10,25, are used in turn and the "
        "last is repeated",
        low=1, remedy="a block has 1 token or more", metavar="N")
    stop: tuple[str, ...] = option(
        (), WORDS, BLOCKS, "end the text before the first occurrence of this string",
        metavar="TEXT")
    stop_at_end: bool = stored(False, SWITCH, BLOCKS, "end the text at its end-of-text token")
    never_end: bool = stored(
        False, SWITCH, BLOCKS, "write no end-of-text token, so that the text is as long as asked "
        "for; stop_at_end overrules it")

    mode: ModeName = option(
        "diffusion", TEXT, MODE, "how tokens are decided: out of noise, one by one by the context "
        "stream (autoregressive), or so with a drafter's guesses checked several at a time "
        "(speculative: the same text in fewer passes, on a GPU with --deterministic)",
        choices=get_args(ModeName))

    T: int = stored(
        1000, WHOLE, PATH, "diffusion steps per block",
        low=1, high=MOST, remedy=f"use 1 to {MOST} steps", metavar="N")
    grid: GridName = stored(
        "uniform", TEXT, PATH, "where the steps lie: evenly for all positions (uniform, the "
        "paper), mostly where tokens are decided (warped), so too with the left ahead of the right "
        "(tilted), in a window that moves through a block from left to right (staggered), or in "
        "one that slides through the text and leaves decided tokens behind as context (sliding)",
        choices=get_args(GridName))
    width: float = stored(
        4.0, REAL, PATH, "tilted, staggered, sliding: positions in the window",
        low=0, is_open=True, high=WIDEST, remedy=f"use more than 0 and at most {WIDEST} positions",
        metavar="X")
    rule: RuleName = stored(
        "renoise", TEXT, PATH, "from one noise level to the next; the paper's is renoise with rho "
        "0",
        choices=get_args(RuleName))
    rho: float = stored(
        0.0, REAL, PATH, "renoise: the share of the evidence that a step keeps",
        low=0, high=1, remedy="use 0 (fresh noise) to 1 (kept state)", metavar="X")
    returns: ReturnName = stored(
        "logits", TEXT, PATH, "what a block ends as: the argmax of the last logits (the authors' "
        "code) or of w_0 (the paper)",
        choices=get_args(ReturnName))
    early_exit: bool = stored(
        False, SWITCH, PATH, "leave a block whose tokens have not changed for four steps, each of "
        "them nearly certain")

    seed: int = per_prompt(
        0, WHOLE, SAMPLING, "same seed, same text",
        low=0, high=MOST_SEED, remedy="use a whole number from 0 to 2**63 - 1", metavar="N")
    num_samples: int = option(
        1, WHOLE, SAMPLING, "texts per prompt",
        low=1, high=MOST, remedy=f"write 1 to {MOST} texts per prompt", metavar="N")
    best_of: int = option(
        1, WHOLE, SAMPLING, "write this many candidates per text and keep the likeliest",
        low=1, high=MOST, remedy=f"choose among 1 to {MOST} texts", metavar="N")
    projection: ProjectionName = stored(
        "sampling", TEXT, SAMPLING, "from logits to the next estimate of the tokens",
        choices=get_args(ProjectionName))
    top_p: float = stored(
        0.95, REAL, SAMPLING, "probability mass of the nucleus",
        low=0, high=1, remedy="use 0 (greedy) to 1 (the whole vocabulary)", metavar="P")
    nucleus: NucleusName = stored(
        "logits", TEXT, SAMPLING, "what top_p cuts: the logits (the paper), or what the network "
        "adds to the evidence",
        choices=get_args(NucleusName))
    temperature: float = stored(
        1.0, REAL, SAMPLING, "divides what the network adds to the evidence; below 1 texts are "
        "safer and more alike",
        low=0.01, high=100, metavar="X",
        remedy="use 0.01 to 100, such as 0.9, or projection=greedy for 0")
    top_k: int = option(
        0, WHOLE, SAMPLING, "draw among so many of the likeliest tokens; 0 for all",
        low=0, high=MOST, remedy=f"use 0 (the whole vocabulary) to {MOST}, such as 40", metavar="N")
    min_p: float = option(
        0.0, REAL, SAMPLING, "draw no token less likely than this share of the likeliest one's "
        "probability",
        low=0, high=1, remedy="use 0 (any token) to 1 (the likeliest), such as 0.05", metavar="P")
    presence_penalty: float = option(
        0.0, REAL, SAMPLING, "taken from the logits of tokens that the text already has; below 0 "
        "they are likelier",
        low=-2, high=2, remedy="use -2 to 2, such as 0.5", metavar="X")
    frequency_penalty: float = option(
        0.0, REAL, SAMPLING, "taken from a token's logit for each time that the text has it",
        low=-2, high=2, remedy="use -2 to 2, such as 0.5", metavar="X")
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), BIAS, SAMPLING, "added to a token's logit: -100 bans the token, 100 demands it, where "
        "constraints allow it",
        metavar="ID=BIAS")

    control: tuple[Any, ...] = option(
        (), CONTROLS, CONTROL, "steer towards a label of a classifier (built in, folder or Hub "
        "id), or away from it with !=: by its gradient where it knows the model's tokens, else by "
        "particles",
        metavar="CLASSIFIER=LABEL[:WEIGHT]")
    lam: tuple[float, ...] = option(
        (), WEIGHTS, CONTROL, "weight of control, one for all or one per control; without it, "
        "each guide's own, and beside particles 0.8 of that",
        low=0, high=MOST, remedy=f"use 0 (no control) to {MOST}", metavar="X[,Y]")
    target: tuple[float, ...] = option(
        (), WEIGHTS, CONTROL, "the share of texts that seek the label, while the others avoid it, "
        "one for all or one per control; without it all texts do",
        low=0, high=1, remedy="use a share from 0 to 1, such as 0.8", metavar="P[,Q]")
    gradient: GradientName = stored(
        "logits", TEXT, CONTROL, "where a classifier's gradient is taken: in the logits (the "
        "paper), in the simplex, or of the latter the few words that stand out; fudge asks instead "
        "what each of the 200 likeliest tokens would make of the text",
        choices=get_args(GradientName))
    threshold: float = stored(
        0.5, REAL, CONTROL, "words: standard deviations over the vocabulary from which a word "
        "stands out; a higher one moves fewer words",
        low=0, high=MOST, remedy="use 0 (all) to about 3", metavar="X")
    plausible: float = stored(
        0.02, REAL, CONTROL, "words: help no word that the model gives less than this share of the "
        "likeliest one's probability; without it a smaller weight will do, such as 2.5",
        low=0, high=1, remedy="use 0 (any word) to 1 (the likeliest), such as 0.02", metavar="P")
    band: tuple[float, ...] = stored(
        (0.0, 1.0), LEVELS, CONTROL, "the noise levels t/T between which a classifier is asked",
        low=0, high=1, remedy="give two levels between 0 and 1, the lower one first",
        metavar="LOW,HIGH")
    reduction: ReductionName = option(
        "sum", TEXT, CONTROL, "add control over the rows of a batch, or average it (the authors' "
        "code)",
        choices=get_args(ReductionName))
    sees: SeesName = option(
        "context", TEXT, CONTROL, "what a classifier named in control reads: context and block "
        "(the paper), or the block alone (the authors' code)",
        choices=get_args(SeesName))
    special_tokens: bool = option(
        True, SWITCH, CONTROL, "frame what a classifier named in control reads by its special "
        "tokens (the authors' code does not)")

    control_by: str | None = per_prompt(
        None, DESCRIPTION, CONTROL, "steer a language model with a chat template towards a "
        "description, such as 'a formal letter': by what its logits gain when it is told so before "
        "the text",
        metavar="DESCRIPTION")
    control_by_weight: float = option(
        1.5, REAL, CONTROL, "what that gain is multiplied by: 1 is the text of a model that is "
        "told, more goes further, less than 0 leads away",
        low=-MOST_BY_DESCRIPTION, high=MOST_BY_DESCRIPTION,
        remedy="use -10 to 10, such as 1.5", metavar="X")

    particles: int = option(
        0, WHOLE, CONTROL, "versions of each text that are weighed by what steers it while they "
        "are written, of which one stays; 0 is 8 where a control has no gradient, else none",
        low=0, high=MOST_PARTICLES, remedy=f"use 2 to {MOST_PARTICLES}, such as 8", metavar="N")
    particle_step: int = option(
        5, WHOLE, CONTROL, "tokens between two weighings of the particles of a sliding window; "
        "on other grids it is a block, and a text with words to place is weighed at its end",
        low=1, high=MOST, remedy=f"weigh them every 1 to {MOST} tokens", metavar="N")
    particle_weight: tuple[float, ...] = option(
        (), WEIGHTS, CONTROL, "what scores are multiplied by to weigh particles, one for all or "
        "one per control; without it, 8 for classifiers and a scorer's own",
        low=0, high=MOST, remedy=f"use 0 (unheard) to {MOST}", metavar="X[,Y]")

    particle_potential: PotentialName = option(
        "difference", TEXT, CONTROL, "what a weighing multiplies a particle's weight by: exp of "
        "how far its score has risen, or of the highest that it has been (Feynman-Kac steering)",
        choices=get_args(PotentialName))

    must: tuple[str, ...] = per_prompt(
        (), WORDS, CONSTRAINTS, "a word that the text contains",
        metavar="WORD")
    must_not: tuple[str, ...] = per_prompt(
        (), WORDS, CONSTRAINTS, "a word that the text does not contain, in any case",
        metavar="WORD")
    suffix: str = per_prompt(
        "", TEXT, CONSTRAINTS, "infilling: what follows a gap of `length` tokens",
        metavar="TEXT")
    gap: Gap | None = per_prompt(
        None, GAP, CONSTRAINTS, "with suffix, instead of length: the fewest and the most tokens of "
        "the gap; each length is tried, and the one whose gap and suffix are likeliest per token "
        "is kept",
        low=1, high=MOST, remedy=f"a gap has 1 to {MOST} tokens", metavar="A-B")
    pin: tuple[tuple[int, str], ...] = per_prompt(
        (), PINS, CONSTRAINTS, "a text at a position, counted in tokens from 0",
        metavar="POSITION=TEXT")
    end_at_sentence: bool = per_prompt(
        False, SWITCH, CONSTRAINTS, "cut the text at its last end of a sentence; there will be "
        "one")
    regex: str | None = per_prompt(
        None, PATTERN, CONSTRAINTS, "a regular expression that the whole text matches; length is "
        "then the most tokens it may have",
        metavar="PATTERN")
    json_schema: str | None = per_prompt(
        None, SCHEMA, CONSTRAINTS, "the file of a JSON schema that the text follows; length is "
        "then the most tokens it may have",
        metavar="FILE")
    grammar: str | None = per_prompt(
        None, GRAMMAR, CONSTRAINTS, "a context-free grammar that the text follows, in Lark's "
        "notation or GBNF, or the file of one; length is then the most tokens it may have",
        metavar="FILE")

    batch_size: int = option(
        32, WHOLE, OUTPUT, "texts at a time on a GPU; on a CPU they go one by one",
        low=1, high=MOST, remedy=f"a batch has 1 to {MOST} texts", metavar="N")
    streamer: Any = option(
        None, OBJECT, OUTPUT, "gets the tokens of one text as they are decided, by put(), then "
        "end(), as the streamers of transformers do")
    # fmt: on

    def __post_init__(self) -> None:
        for name, option in known_options().items():
            object.__setattr__(self, name, check(name, getattr(self, name), option))
        if len(self.control) > MOST_CONTROLS:
            raise ValueError(
                f"control has {len(self.control)} controls, and {MOST_CONTROLS} are the most; give "
                "fewer"
            )
        if not self.B:
            raise ValueError("B is empty; give a block length such as 25")
        if self.band[0] >= self.band[1]:
            remedy = known_options()["band"].remedy
            raise ValueError(f"band={show(self.band)} is out of range; {remedy}")
        refuse_idle(self, self.unstored(), needs=(DIFFUSION,))
        if self.grid == "sliding" and self.early_exit:
            raise ValueError(
                "early_exit does not go with grid=sliding, which is done with a position once it "
                "has left it; use grid=staggered"
            )
        is_cut = self.mode == "diffusion" and self.nucleus == "network"
        if is_cut and self.projection == "multi_hot":
            raise ValueError(
                "nucleus=network does not go with projection=multi_hot, which marks the nucleus of "
                "the logits; use nucleus=logits"
            )
        if self.returns == "w_0" and self.projection == "mean":
            raise ValueError(
                "returns=w_0 does not go with projection=mean, which decides no tokens; use "
                "returns=logits, and to demand or forbid words nucleus=logits and temperature=1"
            )
        self.check_grammar()
        self.check_gap()
        if getattr(self.streamer, "skip_prompt", False):
            raise ValueError(
                "streamer has skip_prompt=True and would drop the first tokens: it gets no prompt "
                "here; use skip_prompt=False"
            )

    def check_grammar(self) -> None:
        """Raise on options that do not go with a text that matches as a whole."""
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are two grammars for one text; give one")
        for name in ("stop", "end_at_sentence"):
            if given and getattr(self, name):
                raise ValueError(
                    f"{name} would cut a text that matches {given[0]} as a whole; leave out one of "
                    "them"
                )

    def check_gap(self) -> None:
        """Let `length` be the longest that a gap may have; raise where it was given besides."""
        if self.gap is None:
            return
        if len(self.gap.lengths()) > MOST_LENGTHS:
            raise ValueError(
                f"gap={self.gap} has {len(self.gap.lengths())} lengths to try, and {MOST_LENGTHS} "
                "are the most; give a narrower one"
            )
        if self.length not in (self.gap.longest, GenerateOptions.length):
            raise ValueError(two_lengths(self.length, self.gap))
        object.__setattr__(self, "length", self.gap.longest)

    @property
    def lengths(self) -> range:
        """The lengths that are tried: those of a gap, or the one of the text."""
        return self.gap.lengths() if self.gap else range(self.length, self.length + 1)

    @property
    def num_candidates(self) -> int:
        """How many texts compete for one that is asked for."""
        return len(self.lengths) * self.best_of

    @property
    def num_rows(self) -> int:
        """How many texts are written for a prompt, those that are not kept included."""
        return self.num_samples * self.num_candidates

    @cached_property
    def has_grammar(self) -> bool:
        """Whether a grammar says where the text may end."""
        return any(getattr(self, name) is not None for name in GRAMMARS)

    @cached_property
    def constraints(self) -> Mapping[str, Any]:
        """The constraints that were given, by name."""
        given = {name: getattr(self, name) for name in CONSTRAINING}
        # The empty regex is one too.
        return {
            name: value
            for name, value in given.items()
            if value not in ((), "", False, None) or (name == "regex" and value is not None)
        }

    @property
    def is_cut(self) -> bool:
        """Whether draws are from fewer tokens than `top_p` says."""
        return self.top_k > 0 or self.min_p > 0

    @property
    def control_ids(self) -> tuple[str | int, ...]:
        """What its controls are known by: guides need not be hashable, and are kept here."""
        return tuple(one if isinstance(one, str) else id(one) for one in self.control)

    def blocks(self) -> list[int]:
        """Return the lengths of the blocks that add up to `length`."""
        return list(blocks_of(self.length, self.B))

    def whole_block(self, number: int) -> int:
        """Return how long a block is where the text does not end before it."""
        return nth_block(self.B, number)

    def change(self, **given: Any) -> GenerateOptions:
        """Return the options with some replaced, by any of their names; None leaves one alone."""
        chosen = checked(resolve(given))
        if chosen.get("gap") is not None and "length" in chosen:
            raise ValueError(two_lengths(chosen["length"], chosen["gap"]))
        return self.replaced(chosen)

    def replaced(self, chosen: Mapping[str, Any]) -> GenerateOptions:
        """Return the options with some replaced; of `length` and `gap` the new one is meant."""
        values = dict(chosen)
        if chosen.get("gap") is not None:
            values["length"] = chosen["gap"].longest
        elif "length" in chosen:
            values["gap"] = None
        return replace(self, **values).since(
            {**{n: getattr(self, n) for n in chosen}, **self.began}
        )

    def since(self, began: Mapping[str, Any]) -> GenerateOptions:
        """Return the options as what was made of others, of which some had these values."""
        object.__setattr__(same := copy(self), "began", dict(began))
        return same

    def as_own(self, *names: str) -> GenerateOptions:
        """Return the options with some, or all, taken for the model's own, which nobody gave."""
        return self.since({n: v for n, v in self.began.items() if names and n not in names})

    @property
    def given(self) -> set[str]:
        """The names of those that a caller gave, and that are not what they would be without."""
        return {name for name, value in self.began.items() if getattr(self, name) != value}

    def unstored(self) -> list[str]:
        """Return the names of those that no model brings and that are not the defaults."""
        options = known_options().items()
        return [
            name
            for name, option in options
            if not option.is_stored and getattr(self, name) != getattr(GenerateOptions, name)
        ]

    def per_prompt(
        self, count: int, /, *, of: str = "prompts", **given: Any
    ) -> list[GenerateOptions]:
        """Return options for each of several prompts, or of what `of` says; some may be lists."""
        given, lists = resolve(given), {}
        for name, value in list(given.items()):
            if known_options()[name].is_per_prompt and not is_one(name, value):
                lists[name] = one_each(name, given.pop(name), count, of)
        if "length" in given and "gap" in lists:
            raise ValueError(two_lengths(given["length"], show(tuple(lists["gap"]))))
        base = self.change(**given)
        if not lists:
            return [base] * count
        return [
            base.replaced({name: values[index] for name, values in lists.items()})
            for index in range(count)
        ]

    def differing(self, other: GenerateOptions) -> dict[str, Any]:
        """Return those options that are neither another's nor the defaults."""
        own = {name: getattr(self, name) for name in known_options()}
        usual = GenerateOptions()
        return {
            name: value
            for name, value in own.items()
            if value != getattr(other, name) and value != getattr(usual, name)
        }

    def to_json(self, *, is_stored: bool = False) -> dict[str, Any]:
        """Return the options as JSON has them; only those that a model keeps, if asked."""
        values = {
            name: option.kind.to_json(getattr(self, name))
            for name, option in known_options().items()
            if option.kind is not OBJECT and (option.is_stored or not is_stored)
        }
        return values if self.gap is None else values | {"length": None}  # the gap says it


def two_lengths(length: Any, gap: Any) -> str:
    """Return what to say of a length beside a gap."""
    return f"length={length} and gap={gap} are two ways to say how long a gap is; give one of them"


DecodeConfig = GenerateOptions
"""The name that these settings had before; kept for those who use it."""

OTHER_NAMES = {"max_new_tokens": "length", "num_return_sequences": "num_samples"}
"""What users of transformers write, where it means the same."""

FORMER_NAMES = {
    "draft_nodes": (
        "mode=speculative checks a drafter's guesses, by `ssdlm train-drafter`",
        "0.4",
    )
}
"""Options that are gone: why they have no effect, and until which version they are taken."""

DO_SAMPLE = About(
    SWITCH,
    "another name: true is projection=sampling, false is projection=greedy without top_p and "
    "temperature",
    SAMPLING,
)

FOREIGN_NAMES = {
    "max_length": "in other libraries it counts the prompt; use length, the tokens to write",
    "max_tokens": "use length",
    "max_completion_tokens": "use length",
    "max_output_tokens": "use length",
    "min_length": "a text has `length` tokens; use length",
    "min_tokens": "a text has `length` tokens; use length",
    "ignore_eos": "use never_end",
    "n": "use num_samples",
    "num_beams": "there is no beam search; best_of keeps the likeliest of several texts",
    "typical_p": "use top_p",
    "repetition_penalty": "use frequency_penalty or presence_penalty",
    "no_repeat_ngram_size": "use must_not",
    "bad_words_ids": "use must_not, with words, or logit_bias",
    "force_words_ids": "use must, with words",
    "eos_token_id": "use stop_at_end, or stop with a string",
    "skip_special_tokens": "there is no such choice; leave it out",
    "guided_decoding": "use json_schema, regex or grammar",
    "guided_decoding_backend": "there is one backend; leave it out",
    "guided_json": "use json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use regex, with | between the choices",
    "guided_grammar": "use grammar",
    "response_format": "use json_schema, regex or grammar",
    "structured_outputs": "use json_schema, regex or grammar",
    "sampling_params": "give each of its settings by its name",
    "logprobs": "use SSDLM.score, which rates texts",
    "prompt_logprobs": "use SSDLM.score, which rates texts",
    "stop_strings": "use stop",
    "stopping_criteria": "use stop",
    "generator": "use seed",
    "steps": "use T, the diffusion steps per block",
    "num_steps": "use T, the diffusion steps per block",
    "num_inference_steps": "use T, the diffusion steps per block",
    "block_length": "use B, the tokens per block",
    "block_size": "use B, the tokens per block",
    "gen_length": "use length",
    "batch": "use batch_size; B is the block length",
    "guidance_scale": "use lam, the weight of control, or control_by_weight, of a description",
    "cfg_scale": "use lam, the weight of control, or control_by_weight, of a description",
    "negative_prompt": "use control_by with a control_by_weight below 0",
    "lambda": "use lam",
    "guide": "use control",
    "prompt": "prompts come first, without a name",
}
"""Words of other libraries that mean something else here, or nothing, and what to use."""
WORDS_OF_SPANS = {
    "keep_steps": "the steps of a span are not kept; leave it out",
    **FOREIGN_NAMES,
    **{
        name: NOT_OF_SPANS[word]
        for name, use in FOREIGN_NAMES.items()
        for word in re.findall(r"\w+", use)
        if word in NOT_OF_SPANS
    },
}
"""The same where spans are written anew."""


P = ParamSpec("P")
R = TypeVar("R")


def explained(
    method: Callable[P, R],
    advise: Callable[[str], str] | None = None,
    listed: Mapping[str, Any] | None = None,
) -> Callable[P, R]:
    """Return a method that answers an unknown argument with the name to use instead.

    `listed` are the types of what it takes as `**changes`: its signature shows them by name.
    """
    shown, remedy = inspect.signature(method), advise or advice
    if listed is not None:
        known = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        known += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in listed.items()
        ]
        shown = shown.replace(parameters=known)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in shown.parameters and name not in FORMER_NAMES:
                raise TypeError(f"{method.__name__}() has no argument {name!r}; {remedy(name)}")
        return method(*args, **kwargs)

    vars(call)["__signature__"] = shown
    return call


def nth_block(B: tuple[int, ...], number: int) -> int:
    """Return the length of a block; those after the last B are like it."""
    return B[min(number, len(B) - 1)]


@lru_cache(maxsize=64)
def blocks_of(length: int, B: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of blocks that add up to a length."""
    lengths: list[int] = []
    while length > 0:
        lengths.append(min(length, nth_block(B, len(lengths))))
        length -= lengths[-1]
    return tuple(lengths)


@cache
def known_options() -> dict[str, About]:
    """Return what is known of each option, by name, in order."""
    return {item.name: item.metadata["about"] for item in fields(GenerateOptions)}


@cache
def all_names() -> tuple[str, ...]:
    """Return every name that a call may use."""
    return (*known_options(), *OTHER_NAMES, "do_sample")


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their own names; two names with different values are refused."""
    chosen: dict[str, Any] = {}
    by: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in FORMER_NAMES:
            why, until = FORMER_NAMES[name]
            ignored("option", name, why, until=until)
            continue
        if name not in all_names():
            raise ValueError(f"there is no option {name!r}; {advice(name)}")
        value = plain(value)
        home = OTHER_NAMES.get(name, name)
        if name == "do_sample":
            home = "projection"
            value = "sampling" if check(name, value, DO_SAMPLE) else "greedy"
        elif name in OTHER_NAMES:
            value = check(name, value, known_options()[home])  # errors name what was written
        if home in chosen and chosen[home] != value:
            raise ValueError(
                f"{by[home]}={given[by[home]]} and {name}={given[name]} are two names for one "
                "setting with different values; give one of them"
            )
        chosen[home], by[home] = value, name
    if given.get("do_sample") is not None and chosen["projection"] == "greedy":
        for name in ("top_p", "temperature"):
            if name in chosen:
                raise ValueError(
                    f"do_sample={given['do_sample']} draws nothing, so {name}={chosen[name]} has "
                    "no effect; leave out one of them"
                )
    return chosen


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in their normal form."""
    return {name: check(name, value, known_options()[name]) for name, value in given.items()}


def advice(name: str, words: Mapping[str, str] = FOREIGN_NAMES, own: tuple[str, ...] = ()) -> str:
    """Return what to write instead of a name that is not an option's, nor a call's own."""
    if name in words:
        return words[name]
    near = get_close_matches(name.lower(), [*all_names(), *own, *words], 1)
    if near and near[0] in words:
        return words[near[0]]
    return f"the nearest is {near[0]}" if near else "see help(GenerateOptions)"


def is_one(name: str, value: Any) -> bool:
    """Tell whether a value is one for all prompts, and not a list with one per prompt."""
    try:
        known_options()[name].kind.check(value)
    except (TypeError, ValueError):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return True
        # Pairs of position and text, as a command line gives them, are not a list of dictionaries.
        is_pairs = name == "pin" and any(map(is_pair, value))
        return is_pairs or (name == "gap" and all(isinstance(item, int) for item in value))
    return True


def is_pair(value: Any) -> bool:
    """Tell whether a value is one pin: a position and its text."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)


def one_each(name: str, values: Sequence[Any], count: int, of: str) -> list[Any]:
    """Return a list with one value per prompt, or whatever there are `count` of."""
    if len(values) != count:
        raise ValueError(
            f"{name}={quote(values)} is not one for each of {count} {of}; give one each"
        )
    return [check(name, value, known_options()[name]) for value in values]


def within_range(schema: Mapping[str, Any], option: About) -> dict[str, Any]:
    """Return a schema in which every number, of a list too, has the option's range."""
    ranged = dict(schema)
    if schema.get("type") in ("integer", "number"):
        lowest = "exclusiveMinimum" if option.is_open else "minimum"
        ranged |= {lowest: option.low} if option.low > -math.inf else {}
        ranged |= {"maximum": option.high} if option.high < math.inf else {}
    if "items" in schema:
        ranged["items"] = within_range(schema["items"], option)
    if "anyOf" in schema:
        ranged["anyOf"] = [within_range(kind, option) for kind in schema["anyOf"]]
    return ranged


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of what a request may set; Python objects are left out."""
    properties: dict[str, Any] = {}
    for name, option in known_options().items():
        if option.kind is OBJECT:
            continue
        schema = {"description": option.help, **within_range(option.kind.schema, option)}
        if option.choices:
            schema["enum"] = list(option.choices)
        properties[name] = schema
    for name, home in OTHER_NAMES.items():
        properties[name] = properties[home] | {"description": f"another name of {home}"}
    properties["do_sample"] = {"description": DO_SAMPLE.help, **SWITCH.schema}
    return {"type": "object", "properties": properties, "additionalProperties": False}
