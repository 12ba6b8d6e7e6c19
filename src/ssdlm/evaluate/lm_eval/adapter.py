"""The class that lm_eval asks, and its name there.  scoring, writing -> [adapter] -> lm_eval"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssdlm.api import SSDLM
from ssdlm.evaluate.lm_eval.scoring import Pair, Score, Scorer
from ssdlm.evaluate.lm_eval.writing import (
    UntilRequest,
    cut,
    decoding_of,
    text_of,
    until_request,
    write,
)
from ssdlm.extras import lacking
from ssdlm.progress import bar


class Answers:
    """Answers the three kinds of requests that lm_eval has, with one model."""

    def __init__(
        self,
        pretrained: str,
        *,
        device: str | None = None,
        dtype: str = "float32",
        T: int | None = None,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        del max_batch_size  # lm_eval gives it always
        if not str(batch_size).isdigit():
            raise ValueError(f"batch_size={batch_size} is not a number; give one such as 16")
        model = SSDLM.from_pretrained(pretrained, device=device or "auto", dtype=dtype)
        self.scorer = Scorer(model, batch_size=int(batch_size), **options)
        self.decoding = {} if T is None else {"T": T}

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.tokenizer.digest

    def loglikelihood(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        pairs = [self.scorer.pair(*request.args) for request in requests]
        return [(score.log_prob, score.is_greedy) for score in self.score("loglikelihood", pairs)]

    def loglikelihood_rolling(self, requests: Any, **_: Any) -> list[float]:
        """Return the log-likelihood of each whole text, after an end-of-text token."""
        texts = [self.scorer.pieces(request.args[0]) for request in requests]
        pairs = [pair for pieces in texts for pair in pieces]
        found = iter(self.score("rolling", pairs, tells_greedy=False))
        return [sum(next(found).log_prob for _ in pieces) for pieces in texts]

    def score(self, what: str, pairs: Sequence[Pair], **options: bool) -> list[Score]:
        """Return the scores of pairs, in their order."""
        found: dict[int, Score] = {}
        with bar(what, len(pairs)) as show:
            for index, score in self.scorer.scores(pairs, **options):
                found[index] = score
                show(len(found), "texts")
        return [found[index] for index in range(len(pairs))]

    def generate_until(self, requests: Any, **_: Any) -> list[str]:
        """Return a continuation for each request, cut where the task says."""
        groups: dict[tuple[Any, ...], list[UntilRequest]] = {}
        texts: list[UntilRequest] = []
        for request in requests:
            context, options = request.args[0], dict(request.args[1])
            decoding = decoding_of(options) | self.decoding
            texts.append(until_request(self.scorer, context, options))
            groups.setdefault(tuple(decoding.items()), []).append(texts[-1])
        with bar("generate_until", len(texts)) as show:
            for decoding, group in groups.items():
                for _done in write(self.scorer, group, **dict(decoding)):
                    show(sum(text.is_done for text in texts), "texts")
        return [cut(text_of(self.scorer, text), text.until) for text in texts]


def adapter(base: type) -> type:
    """Return `Answers` as one of lm_eval's models."""
    return type("HarnessLM", (Answers, base), {})


def register() -> type:
    """Make the model `ssdlm` known to lm_eval, and return its class."""
    try:
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
        from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise lacking("lm_eval", "the harness") from None
    return register_model("ssdlm")(adapter(LM))
