"""From `control` and `lam` to a steered denoiser.  options, guidance -> [controls] -> plain"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from ssdlm.denoiser import Denoiser
from ssdlm.engine.ways import BESIDE_PARTICLES, CLASSIFIER_WEIGHT, Way, count_particles
from ssdlm.guidance import ClassifierGuide, classifier_guide, load_guide
from ssdlm.guidance.classifiers import NoGradientError
from ssdlm.guidance.fitting import FittedGuide, out_of_scale, refuse_contradictions, suggested_lam
from ssdlm.guidance.gradient import (
    Asked,
    InSimplex,
    LogProb,
    UserFunction,
    guided,
    title_of,
    weighted,
)
from ssdlm.guidance.growing import can_grow
from ssdlm.guidance.packing import growing_guide
from ssdlm.guidance.padding import PaddedGuide, can_be_padded, room_of
from ssdlm.guidance.scorers import PROBES, Scorer, ScoreTexts, guide_scorer, reads_texts
from ssdlm.guidance.slim import Binder
from ssdlm.needs import HEARD, Steering
from ssdlm.options import GenerateOptions
from ssdlm.shapes import Tensor
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import Recent

Control = str | ClassifierGuide | LogProb | Scorer | ScoreTexts
"""`sentiment=positive:5`, a guide, a function of context ids and logits, or a function of texts."""

STEER = (*HEARD, "lam", "particles", "particle_weight")
"""Options that say how controls steer."""
MOST_FITTED = 4
"""Guides that are kept as they were fitted: a table has a row for each token."""
MOST_KNOWN = 32
"""Controls of which it is kept how they steer."""
TEXTS_TOGETHER = 256
"""Texts that a classifier scores at once on a GPU."""
LEAST_SHIFT = 0.01
"""A control that moves no probability by more than this has, as good as surely, changed no word."""


class ControlWarning(UserWarning):
    """A control that is not what was likely meant."""


class Controls:
    """Guides for one model: those named by text are loaded once, and fitted to its vocabulary."""

    def __init__(
        self, denoiser: Denoiser, tokenizer: Tokenizer | None, *, is_deterministic: bool = False
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.binder = None if tokenizer is None else Binder(tokenizer)
        # Roundings must not depend on which texts a classifier reads together.
        is_alone = denoiser.device.type == "cpu" or is_deterministic
        self.score_together = 1 if is_alone else TEXTS_TOGETHER
        self.loaded: dict[tuple[str, str, bool], ClassifierGuide] = {}
        self.fitted: Recent[int, FittedGuide] = Recent(MOST_FITTED)
        """Guides as they were fitted, by the id of what they keep; the latest last."""
        self.readers: dict[str, FittedGuide] = {}
        """Those that tell what they make of a text, by name."""
        self.known: Recent[Hashable, tuple[GenerateOptions, tuple[Way, ...]]] = Recent(MOST_KNOWN)
        """How controls steer, the latest last; options keep alive what is known by its id."""
        self.asked: tuple[GenerateOptions | None, tuple[Way, ...]] = (None, ())
        """The options that were asked about last, and how their controls steer."""
        self.scorers: Recent[Hashable, tuple[object, Scorer]] = Recent(MOST_KNOWN)
        """What weighs texts, and what it was made of; the latest last."""
        self.latest: tuple[Hashable, guided] | None = None
        self.steered: list[tuple[GenerateOptions, weakref.ref[guided]]] = []
        """All that are in use; decode batches keep theirs as long as they are kept."""

    def apply(self, options: GenerateOptions, denoiser: Denoiser | None = None) -> Denoiser:
        """Return the denoiser, nudged by the guides if there are any, each with its own weight.

        It is the model's own, or another that stands for it.
        """
        if not self.guides(options):
            return self.denoiser if denoiser is None else denoiser
        if denoiser is not None and denoiser is not self.denoiser:
            own = cast(guided, self.apply(options))
            found = replace(own, denoiser=denoiser)
            found.shifts = own.shifts
            return found
        # Fitting a guide to the vocabulary takes longer than a step; rows ask one by one.
        key = key_of(options)
        if self.latest is None or self.latest[0] != key:
            self.latest = key, self.steer(options)
            self.warn_of_scales(options)
        return self.latest[1]

    def ways(self, options: GenerateOptions) -> tuple[Way, ...]:
        """Return how each control steers: where it can by its gradient, else by particles."""
        asked, ways = self.asked
        if asked is not options:  # those of one call are asked about again and again
            _, ways = self.known.get(key_of(options), lambda: (options, self.ways_of(options)))
            self.asked = options, ways
        return ways

    def ways_of(self, options: GenerateOptions) -> tuple[Way, ...]:
        """Return the same, for options that are new."""
        lams = one_each("lam", options.lam, options.control)
        weights = one_each("particle_weight", options.particle_weight, options.control)
        refuse_contradictions([self.guide(control, options) for control in options.control])
        return tuple(
            self.way(control, lam, weight, options)
            for control, lam, weight in zip(options.control, lams, weights, strict=True)
        )

    def way(
        self, control: Control, lam: float | None, weight: float | None, options: GenerateOptions
    ) -> Way:
        """Return how one control steers; a weight that is None is its own."""
        guide = self.guide(control, options)
        name = control if isinstance(control, str) else title_of(guide)
        if isinstance(guide, Scorer):
            chosen = [one for one in (weight, lam, guide.weight) if one is not None]
            return Way(name, "it reads texts and has no gradient", scorer=guide, weight=chosen[0])
        given = suggested_lam(guide, options.gradient) if lam is None else lam
        if not isinstance(guide, ClassifierGuide):
            return Way(name, "it is a function of logits", guide, given)
        try:
            self.fit(guide)
        except NoGradientError as error:
            chosen = [w for w in (weight, lam, guide.lam, CLASSIFIER_WEIGHT) if w is not None]
            scorer = self.classifier_scorer(guide, None)
            why = f"no gradient: {str(error).partition(';')[0]}"
            return Way(name, why, scorer=scorer, weight=chosen[0])
        why = f"it knows all {self.denoiser.V} tokens of the model"
        if options.particles <= 1:
            return Way(name, why, guide, given)
        weight = CLASSIFIER_WEIGHT if weight is None else weight
        if lam is None and guide.lam is None:
            given *= BESIDE_PARTICLES
        why += f", and particles={options.particles} were asked for"
        return Way(name, why, guide, given, self.classifier_scorer(guide, self.tokenizer), weight)

    def guides(self, options: GenerateOptions) -> list[tuple[ClassifierGuide | LogProb, float]]:
        """Return what is followed by its gradient, and how far."""
        return [(way.guide, way.lam) for way in self.ways(options) if way.guide is not None]

    def reads_block(self, options: GenerateOptions) -> bool:
        """Tell whether a guide that is followed by its gradient reads the block alone."""
        return any(
            lam != 0 and getattr(guide, "sees", "context") == "block"
            for guide, lam in self.guides(options)
        )

    def num_particles(self, options: GenerateOptions) -> int:
        """Return how many particles each text gets; 1 is none."""
        return count_particles(self.ways(options), options)

    def unasked(self, options: GenerateOptions) -> list[str]:
        """Return a line on each control that needs particles where nobody said how many."""
        needy = [way.name for way in self.ways(options) if way.guide is None]
        count = self.num_particles(options)
        said = f"has no guide for this model's tokens: {count} particles are weighed by its scorer"
        return [] if options.particles else [f"{name} {said}" for name in needy]

    def steering(self, options: GenerateOptions) -> Steering:
        """Return how the controls steer, all together."""
        ways = self.ways(options)
        return Steering(
            has_gradient=any(way.guide is not None for way in ways),
            has_scorer=any(way.scorer is not None for way in ways),
            has_particles=count_particles(ways, options) > 1,
        )

    def check_scorers(self, options: GenerateOptions) -> None:
        """Raise on scorers that do not answer as one, before anything is written."""
        for way in self.ways(options):
            if way.scorer is not None:
                if self.tokenizer is None:
                    raise ValueError(f"{way.name} reads texts, and this model has no tokenizer")
                way.scorer(PROBES)

    def classifier_scorer(self, guide: ClassifierGuide, tokenizer: Tokenizer | None) -> Scorer:
        """Return what weighs texts by a classifier."""
        size = self.score_together
        return self.scorer_of(guide, partial(guide_scorer, guide, tokenizer, batch_size=size))

    def scorer_of(self, made_of: object, make: Callable[[], Scorer]) -> Scorer:
        """Return what weighs texts by something, made once for the same."""
        return self.scorers.get(id(made_of), lambda: (made_of, make()))[1]

    def scoring(self) -> list[str]:
        """Return a line on what each scorer in use has done, and how long it took."""
        ways = [way for _, known in self.known.made.values() for way in known]
        scorers = {id(way.scorer): way.scorer for way in ways if way.scorer is not None}
        return [scorer.report() for scorer in scorers.values()]

    def warn_of_scales(self, options: GenerateOptions) -> None:
        """Warn of every weight that seems to be meant for another gradient."""
        for guide, weight in self.guides(options):
            if said := out_of_scale(guide, weight, options.gradient):
                warnings.warn(said, ControlWarning, stacklevel=2)

    def warn_of_idle(self) -> None:
        """Warn of every control that has changed nothing since this was last called."""
        for options, reference in self.steered:
            if (denoiser := reference()) is None:
                continue
            followed = [way for way in self.ways(options) if way.guide is not None]
            for way, shift in zip(followed, denoiser.shifts, strict=False):
                if way.lam > 0 and 0 <= float(shift) < LEAST_SHIFT:
                    warnings.warn(idle(way.name, options.gradient), ControlWarning, stacklevel=2)
            for shift in denoiser.shifts:
                shift.fill_(-1)
        self.steered = [pair for pair in self.steered if pair[1]() is not None]

    def graph_key(self, options: GenerateOptions) -> Hashable:
        """Return what requests that a graph steers alike have in common."""
        # Guides need not be hashable, and whoever uses one keeps it.
        guides = tuple((id(guide), lam) for guide, lam in self.guides(options))
        return guides, *(getattr(options, name) for name in HEARD)

    def fits_graph(self, options: GenerateOptions, num_tokens: int) -> bool:
        """Tell whether a graph can hold all guides, for texts of so many tokens."""
        guides = [guide for guide, _ in self.guides(options)]
        room = self.room(options)
        return all(map(can_be_padded, guides)) and (room is None or num_tokens <= room)

    def room(self, options: GenerateOptions) -> int | None:
        """Return how many tokens all guides can read, None for any number."""
        guides = [guide for guide, _ in self.guides(options)]
        rooms = [room_of(guide) for guide in guides if isinstance(guide, ClassifierGuide)]
        return min((room for room in rooms if room is not None), default=None)

    def steer_asked(self, options: GenerateOptions, shape: Sequence[int]) -> guided:
        """Return `steer` by what guides are asked outside a graph, for logits of a shape."""

        def fit(guide: ClassifierGuide | LogProb) -> LogProb:
            return Asked(self.fit(guide), torch.zeros(*shape, device=self.denoiser.device))

        return self.steer(options, fit)

    def steer_padded(
        self,
        options: GenerateOptions,
        lengths: Tensor,
        opens: Tensor | None = None,
        *,
        grows: bool = False,
    ) -> guided:
        """Return `steer` for contexts of different lengths, which may change in their place.

        So may the number of positions that are open behind them; None is for all. With `grows`
        guides that can keep what they have read do; they are told each token.
        """

        def fit(guide: ClassifierGuide) -> LogProb:
            fitted = self.fitted_guide(guide)
            if grows and can_grow(guide):
                return growing_guide(fitted, lengths)
            return PaddedGuide(fitted, lengths, opens)

        return self.steer(options, fit)

    def steer(
        self,
        options: GenerateOptions,
        fit: Callable[[Any], LogProb] | None = None,
    ) -> guided:
        """Return the denoiser under the guides that the options name."""
        fit = fit or self.fit
        guides = self.guides(options)
        terms = [(fit(guide), weight) for guide, weight in guides]
        steered = guided(
            self.denoiser,
            weighted(*terms),
            lam=1.0,
            reduction=options.reduction,
            gradient=options.gradient,
            threshold=options.threshold,
            plausible=options.plausible,
            band=options.band,
            has_windows=not self.reads_block(options),
        )
        self.steered.append((options, weakref.ref(steered)))
        return steered

    def guide(
        self, control: Control, options: GenerateOptions
    ) -> ClassifierGuide | LogProb | Scorer:
        """Return the guide that a text names, where the model is; others as they are."""
        if isinstance(control, str):
            return self.named(control, options)
        if isinstance(control, ClassifierGuide):
            return self.bind(control)
        if isinstance(control, Scorer) or not reads_texts(control):
            return cast(LogProb | Scorer, control)
        return self.scorer_of(control, partial(Scorer, cast(ScoreTexts, control)))

    def named(self, control: str, options: GenerateOptions) -> ClassifierGuide:
        """Return the guide that a text names."""
        key = control, options.sees, options.special_tokens
        if key not in self.loaded:
            self.loaded[key] = load_guide(
                control,
                sees=options.sees,
                has_special_tokens=options.special_tokens,
                device=str(self.denoiser.device),
            )
        return self.bind(self.loaded[key])

    def bind(self, guide: ClassifierGuide) -> ClassifierGuide:
        """Return a guide as it reads this model's tokens, the same one for the same."""
        return guide if self.binder is None else self.binder.bind(guide)

    def reader(self, name: str) -> FittedGuide:
        """Return what reads a text as a guide does, by `NAME`, or `NAME=FOLDER`."""
        if name not in self.readers:
            place = name.partition("=")[2] or name
            device = str(self.denoiser.device)
            guide = classifier_guide(place, label=0, device=device)
            self.readers[name] = self.fitted_guide(self.bind(guide))
        return self.readers[name]

    def digest(self, control: str, options: GenerateOptions) -> str:
        """Return the digest of the guide that a text names."""
        return self.named(control, options).digest

    def fit(self, guide: ClassifierGuide | LogProb) -> LogProb:
        """Return a guide's log_prob for this model's vocabulary."""
        if isinstance(guide, ClassifierGuide):
            return self.fitted_guide(guide)
        return cast(LogProb, guide) if isinstance(guide, InSimplex) else UserFunction(guide)

    def fitted_guide(self, guide: ClassifierGuide) -> FittedGuide:
        """Return a guide as it reads this model's vocabulary, the same one for the same."""

        def fit() -> FittedGuide:
            V, tokenizer = self.denoiser.V, self.tokenizer
            strings = () if tokenizer is None else tokenizer.token_strings()
            end = None if tokenizer is None else tokenizer.end_of_text
            return guide.fit(V=V, token_strings=strings, end_of_text=end)

        return self.fitted.get(id(guide), fit)


def idle(name: str, gradient: str) -> str:
    """Return what to say of a control that has changed nothing."""
    remedy = "use a larger lam"
    if gradient == "words":
        remedy += ", a smaller threshold, or gradient=logits, which follows more than a few words"
    return f"control {name} changed nothing; {remedy}"


def key_of(options: GenerateOptions) -> Hashable:
    """Return what requests that are steered alike, by the same guides, have in common."""
    return options.control_ids, *(getattr(options, name) for name in STEER)


def one_each(
    name: str, given: Sequence[float], controls: Sequence[object]
) -> Sequence[float | None]:
    """Return a weight for each control: as given, for each or for all; None for its own."""
    if len(given) > 1 and len(given) != len(controls):
        values, count = ",".join(f"{one:g}" for one in given), len(controls)
        raise ValueError(
            f"{name}={values} has {len(given)} values for {count} control{'s' * (count > 1)}; give "
            "one for each, or one for all"
        )
    return given if len(given) > 1 else [given[0] if given else None] * len(controls)
