"""From `control` and `lam` to a steered denoiser.  options, guidance -> [controls] -> plain"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable

from ssdlm.denoiser import Denoiser
from ssdlm.guidance import ClassifierGuide, classifier_guide, load_guide
from ssdlm.guidance.fitting import FittedGuide, out_of_scale, refuse_contradictions, suggested_lam
from ssdlm.guidance.gradient import LogProb, WeightedSum, guided, weighted
from ssdlm.guidance.padding import PaddedGuide, can_be_padded, room_of
from ssdlm.options import GenerateOptions
from ssdlm.shapes import Tensor
from ssdlm.tokenizer import Tokenizer

Control = str | ClassifierGuide | LogProb
"""`sentiment=positive:5`, or a guide, or any function from context ids and logits."""

HEARD = ("lam", "reduction", "gradient", "threshold", "band", "sees", "special_tokens")
"""Options that say how guides are heard."""
LEAST_SHIFT = 0.01
"""A control that moves no probability by more than this has, as good as surely, changed no word."""


class ControlWarning(UserWarning):
    """A control that is not what was likely meant."""


class Controls:
    """Guides for one model: those named by text are loaded once, and fitted to its vocabulary."""

    def __init__(self, denoiser: Denoiser, tokenizer: Tokenizer | None) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.loaded: dict[tuple[str, str, bool], ClassifierGuide] = {}
        self.readers: dict[str, FittedGuide] = {}
        """Those that tell what they make of a text, by name."""
        self.latest: tuple[GenerateOptions, guided] | None = None
        self.steered: list[tuple[GenerateOptions, weakref.ref[guided]]] = []
        """All that are in use; lanes keep theirs as long as they are kept."""

    def apply(self, options: GenerateOptions) -> Denoiser:
        """Return the denoiser, nudged by the guides if there are any, each with its own weight."""
        if not options.control:
            if options.lam:
                raise ValueError(
                    f"lam={options.lam[0]} weighs nothing; give control, or leave it out"
                )
            return self.denoiser
        # Fitting a guide to the vocabulary takes longer than a step; rows ask one by one.
        if self.latest is None or not same_control(self.latest[0], options):
            self.latest = options, self.steer(options)
            self.warn_of_scales(options)
        return self.latest[1]

    def warn_of_scales(self, options: GenerateOptions) -> None:
        """Warn of every weight that seems to be meant for another gradient."""
        guides = [self.guide(control, options) for control in options.control]
        for guide, weight in zip(guides, self.weights(guides, options), strict=True):
            if said := out_of_scale(guide, weight, options.gradient):
                warnings.warn(said, ControlWarning, stacklevel=2)

    def warn_of_idle(self) -> None:
        """Warn of every control that has changed nothing since this was last called."""
        for options, reference in self.steered:
            if (denoiser := reference()) is None:
                continue
            terms = zip(
                options.control, weights_in(denoiser.log_prob), denoiser.shifts, strict=False
            )
            for control, weight, shift in terms:
                if weight > 0 and 0 <= float(shift) < LEAST_SHIFT:
                    warnings.warn(idle(control, options.gradient), ControlWarning, stacklevel=2)
            for shift in denoiser.shifts:
                shift.fill_(-1)
        self.steered = [pair for pair in self.steered if pair[1]() is not None]

    def lane_key(self, options: GenerateOptions) -> Hashable | None:
        """Return what requests that are steered alike have in common; None if no lane can."""
        guides = [self.guide(control, options) for control in options.control]
        is_usual = options.reduction == "sum" and options.band == (0.0, 1.0)
        if not is_usual or not all(map(can_be_padded, guides)):
            return None
        # Guides need not be hashable, and whoever uses one keeps it.
        return tuple(map(id, guides)), *(getattr(options, name) for name in HEARD)

    def room(self, options: GenerateOptions) -> int | None:
        """Return how many tokens all guides can read, None for any number."""
        guides = [self.guide(control, options) for control in options.control]
        rooms = [room_of(guide) for guide in guides if isinstance(guide, ClassifierGuide)]
        return min((room for room in rooms if room is not None), default=None)

    def steer_padded(self, options: GenerateOptions, lengths: Tensor) -> guided:
        """Return `steer` for contexts of different lengths, which may change in their place."""

        def fit(guide: ClassifierGuide | LogProb) -> LogProb:
            fitted = self.fit(guide)
            assert isinstance(fitted, FittedGuide)
            return PaddedGuide(fitted, lengths)

        return self.steer(options, fit)

    def steer(
        self,
        options: GenerateOptions,
        fit: Callable[[ClassifierGuide | LogProb], LogProb] | None = None,
    ) -> guided:
        """Return the denoiser under the guides that the options name."""
        fit = fit or self.fit
        guides = [self.guide(control, options) for control in options.control]
        refuse_contradictions(guides)
        weights = self.weights(guides, options)
        terms = [(fit(guide), weight) for guide, weight in zip(guides, weights, strict=True)]
        sees_all = all(getattr(guide, "sees", "context") == "context" for guide in guides)
        steered = guided(
            self.denoiser,
            weighted(*terms),
            lam=1.0,
            reduction=options.reduction,
            gradient=options.gradient,
            threshold=options.threshold,
            band=options.band,
            has_windows=sees_all,
        )
        self.steered.append((options, weakref.ref(steered)))
        return steered

    def weights(
        self, guides: list[ClassifierGuide | LogProb], options: GenerateOptions
    ) -> list[float]:
        """Return the weight of each guide: as given, else its own."""
        own = [suggested_lam(guide, options.gradient) for guide in guides]
        given = options.lam * len(guides) if len(options.lam) == 1 else options.lam
        if given and len(given) != len(guides):
            raise ValueError(f"{len(given)} values of lam for {len(guides)} guides; give one each")
        return list(given) or own

    def guide(self, control: Control, options: GenerateOptions) -> ClassifierGuide | LogProb:
        """Return the guide that a text names, where the model is; others as they are."""
        if not isinstance(control, str):
            return control
        key = control, options.sees, options.special_tokens
        if key not in self.loaded:
            self.loaded[key] = load_guide(
                control,
                sees=options.sees,
                has_special_tokens=options.special_tokens,
                device=str(self.denoiser.device),
            )
        return self.loaded[key]

    def reader(self, name: str) -> FittedGuide:
        """Return what reads a text as a guide does, by `NAME`, or `NAME=FOLDER`."""
        if name not in self.readers:
            place = name.partition("=")[2] or name
            device = str(self.denoiser.device)
            fitted = self.fit(classifier_guide(place, label=0, device=device))
            assert isinstance(fitted, FittedGuide)
            self.readers[name] = fitted
        return self.readers[name]

    def digest(self, control: str, options: GenerateOptions) -> str:
        """Return the digest of the guide that a text names."""
        guide = self.guide(control, options)
        assert isinstance(guide, ClassifierGuide)
        return guide.digest

    def fit(self, guide: ClassifierGuide | LogProb) -> LogProb:
        """Return a guide's log_prob for this model's vocabulary."""
        if not isinstance(guide, ClassifierGuide):
            return guide
        V, tokenizer = self.denoiser.V, self.tokenizer
        if tokenizer is None:
            return guide.fit(V=V)
        return guide.fit(
            V=V, token_strings=tokenizer.token_strings(), end_of_text=tokenizer.end_of_text
        )


def weights_in(log_prob: LogProb) -> list[float]:
    """Return the weights of the terms of a sum."""
    return [weight for _, weight in log_prob.terms] if isinstance(log_prob, WeightedSum) else []


def idle(control: Control, gradient: str) -> str:
    """Return what to say of a control that has changed nothing."""
    name = control if isinstance(control, str) else getattr(control, "title", "")
    name = name or getattr(control, "__name__", type(control).__name__)
    remedy = "use a larger lam"
    if gradient == "words":
        remedy += ", a smaller threshold, or gradient=logits, which follows more than a few words"
    return f"control {name} changed nothing; {remedy}"


def same_control(one: GenerateOptions, other: GenerateOptions) -> bool:
    """Tell whether two requests are steered alike, by the same guides."""
    if len(one.control) != len(other.control):
        return False
    pairs = zip(one.control, other.control, strict=True)
    return all(a is b or (isinstance(a, str) and a == b) for a, b in pairs) and all(
        getattr(one, name) == getattr(other, name) for name in HEARD
    )
