"""Scorers: any function from texts to log-scores.  [scorers] -> engine.particles

A scorer weighs texts; it needs no gradient and no vocabulary in common with the model. Whatever it
is, a classifier, a formula, a service, it is asked about each text once, several at a time, and
within a time limit; what is wrong with its answer is said with its name.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssdlm.guidance.classifiers import TextClassifier, one_line
from ssdlm.guidance.fitting import ClassifierGuide
from ssdlm.tokenizer import Tokenizer, load_tokenizer
from ssdlm.values import REAL, About, check, choose

ScoreTexts = Callable[[Sequence[str]], Sequence[float]]
"""From texts to as many log-scores; -inf is for a text that must not be."""

READS = ("all", "continuation")
TIMEOUT = 60.0
MOST_KNOWN = 1 << 16
"""Texts whose scores are remembered."""
SURE = 1e-6
"""A label is no surer than this."""
PROBES = ("The river had been quiet for a long time.", "She said nothing, and went home.")
"""What a scorer is tried with before anything is written."""
A_WEIGHT = About(REAL, "", "", low=0, high=1e6, remedy="use 0 (unheard) or more")
SECONDS = "use more than 0 seconds, or None for any time"
A_TIMEOUT = About(REAL, "", "", low=0, high=1e6, is_open=True, remedy=SECONDS)


@dataclass(eq=False)
class Scorer:
    """A function from texts to log-scores, its name, and how much it counts.

    >>> brief = Scorer(lambda texts: [-len(text) / 100 for text in texts], name="brief")
    >>> brief(["a text"])
    [-0.06]
    """

    score: ScoreTexts
    name: str = ""
    """What errors call it; the function's own name where none is given."""
    weight: float = 1.0
    """What log-scores are multiplied by: particles tend to p(text) exp(weight * score)."""
    timeout: float | None = TIMEOUT
    """Seconds that one call may take; None for any time."""
    reads: str = "all"
    """Prompt and continuation, or the continuation alone."""
    known: OrderedDict[str, float] = field(default_factory=OrderedDict, repr=False)
    num_scored: int = 0
    """Texts that the function was asked about."""
    num_recalled: int = 0
    """Texts whose scores were known."""
    seconds: float = 0.0
    """The time that it took in all."""

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise ValueError(f"scorer {self.name}: {self.score!r} is no function; give one")
        self.name = self.name or name_of(self.score)
        self.weight = check("weight", self.weight, A_WEIGHT)
        if self.timeout is not None:
            self.timeout = check("timeout", self.timeout, A_TIMEOUT)
        choose("reads", self.reads, READS)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return the log-score of each text; each different text is scored once."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        found = {text: self.known[text] for text in texts if text in self.known}
        if new:
            started = time.monotonic()
            scores = self.checked(self.answer(list(new)), len(new))
            self.seconds += time.monotonic() - started
            found |= dict(zip(new, scores, strict=True))
        self.num_scored += len(new)
        self.num_recalled += len(texts) - len(new)
        for text in texts:
            self.known[text] = found[text]
            self.known.move_to_end(text)
        while len(self.known) > MOST_KNOWN:
            self.known.popitem(last=False)
        return [found[text] for text in texts]

    def answer(self, texts: list[str]) -> Any:
        """Return what the function says, or raise what went wrong with the scorer's name."""
        if self.timeout is None:
            return self.ask(texts)
        said: list[Any] = []

        def ask() -> None:
            try:
                said.append(self.ask(texts))
            except BaseException as error:
                said.append(error)

        thread = threading.Thread(target=ask, name=f"scorer {self.name}", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if not said:
            raise ScorerError(
                f"scorer {self.name} took more than {self.timeout:g} s for {len(texts)} texts; "
                "make it faster, or give it more time: Scorer(function, timeout=SECONDS)"
            )
        if isinstance(said[0], BaseException):
            raise said[0]
        return said[0]

    def ask(self, texts: list[str]) -> Any:
        """Return what the function says of texts."""
        try:
            return self.score(texts)
        except (Exception, SystemExit) as error:
            raise ScorerError(
                f"scorer {self.name} raised {type(error).__name__}: {one_line(error)}"
            ) from error

    def checked(self, said: Any, count: int) -> list[float]:
        """Return log-scores as floats, or raise on what are none."""
        said = said.tolist() if hasattr(said, "tolist") else said
        try:
            scores = [float(score) for score in said]
        except (TypeError, ValueError, OverflowError):
            raise ScorerError(
                f"scorer {self.name} returned {type(said).__name__}, not a list of numbers; return "
                "one log-score for each text"
            ) from None
        if len(scores) != count:
            raise ScorerError(
                f"scorer {self.name} returned {len(scores)} scores for {count} texts; return one "
                "for each"
            )
        for score in scores:
            if math.isnan(score) or score == math.inf:
                raise ScorerError(
                    f"scorer {self.name} returned {score}; return log-scores, -inf at the least"
                )
        return scores

    def report(self) -> str:
        """Return a line on what it did, and how long it took."""
        return (
            f"scorer {self.name}: {self.num_scored} texts in {self.seconds:.2f} s, "
            f"{self.num_recalled} known before"
        )


class ScorerError(ValueError):
    """A scorer that does not answer as one."""


def name_of(function: Any) -> str:
    """Return what a function is called."""
    return getattr(function, "__name__", type(function).__name__)


def reads_texts(control: Any) -> bool:
    """Tell a function of texts from one of context ids and logits: by how many arguments it needs.

    One is a scorer's. A function that takes any number is taken for one of ids and logits.
    """
    if isinstance(control, Scorer):
        return True
    if isinstance(control, str) or hasattr(control, "fit") or not callable(control):
        return False
    try:
        parameters = inspect.signature(control).parameters.values()
    except (TypeError, ValueError):  # some functions of C have none
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in places and one.default is one.empty]
    is_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return len(needed) == 1 and not is_any


def guide_scorer(guide: ClassifierGuide, tokenizer: Tokenizer | None, *, batch_size: int) -> Scorer:
    """Return a classifier as a scorer: the log-odds of its label, by its own tokenizer.

    A log-probability is deaf to what is added to a text once it is right; odds are not: particles
    that they weigh go on until other judges agree. `tokenizer` is the model's, for a classifier
    that came without one and shares its ids.
    """
    own = guide.home and guide.token_strings
    found = guide.tokenizer or (load_tokenizer(guide.home) if own else tokenizer)
    if found is None:
        raise ValueError(f"{guide.title} has no tokenizer to read texts with; put one beside it")
    classifier = TextClassifier(guide.classifier, found)

    def score(texts: Sequence[str]) -> list[float]:
        log_probs = guide.label_log_prob(classifier.logits(texts, batch_size=batch_size))
        return [log_odds(log_prob) for log_prob in log_probs.tolist()]

    # Its time is known: what it does is here.
    return Scorer(score, guide.title, timeout=None)


def log_odds(log_prob: float) -> float:
    """Return log p / (1 - p), at most about 14: what float32 knows of a probability.

    >>> log_odds(math.log(0.5)), round(log_odds(math.log(0.9)), 4)
    (0.0, 2.1972)
    """
    return log_prob - math.log(-math.expm1(min(log_prob, -SURE)))
