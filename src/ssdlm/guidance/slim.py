"""Guides that read a model's tokens by its own tokenizer.  fitting -> [slim] -> engine.controls

A copy of a large tokenizer would be larger than the guide. So a slim guide has none, and names it
by digest: the rows of its table are two tokens of its own and behind them the model's, in order. A
guide's folder may contain slim ones of the same labels, each for a tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ssdlm.guidance.classifiers import KEY, SequenceClassifier, load_classifier, vocabulary_of
from ssdlm.guidance.fitting import ClassifierGuide, NoGradientError, rows_by_string
from ssdlm.guidance.grammar import config_file, find_guide, split_labels
from ssdlm.shapes import Tensor
from ssdlm.storage.files import read_json
from ssdlm.storage.int8 import quantise
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import quote

OWN = ("<s>", "<pad>")
"""What opens a text, and what fills a row: the first two ids, as RoBERTa has them."""
WORDS = "roberta.embeddings.word_embeddings.weight"
PROBE = "She's read 1,024 na\u00efve books;\n\tHe hasn't. <b>Gr\u00f6\u00dfe</b> "
PROBE += "\u6771\u4eac \U0001f642"
"""A text that tokenizers of one vocabulary may still read in different ways."""
MOST_BOUND = 32


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Return what tells a tokenizer from others: its tokens in order, and how it reads a text."""
    told = [tokenizer.token_strings(), tokenizer.encode_plain([PROBE])]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class FramedTokenizer(Tokenizer):
    """A model's tokenizer as a slim guide reads it: ids are two higher."""

    def __init__(self, own: Tokenizer) -> None:
        self.__dict__.update(own.__dict__)
        self.own = own
        self.V, self.end_of_text = own.V + len(OWN), own.end_of_text + len(OWN)

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        return [[token + len(OWN) for token in ids] for ids in self.own.encode_plain(texts)]

    def token_strings(self) -> list[str]:
        return [*OWN, *self.own.token_strings()]


def small_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a classifier's weights as a slim guide stores them: words as int8, others as half."""
    others = {name: weight.half() for name, weight in weights.items() if name != WORDS}
    return others | quantise({WORDS: weights[WORDS]})


class Binder:
    """A model's tokenizer, and the guides that read its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bound: OrderedDict[int, tuple[ClassifierGuide, ClassifierGuide]] = OrderedDict()

    @cached_property
    def digest(self) -> str:
        return tokenizer_digest(self.tokenizer)

    @cached_property
    def own(self) -> dict[str, Any]:
        """What a slim guide is told of the model."""
        framed = FramedTokenizer(self.tokenizer)
        strings, end = tuple(framed.token_strings()), framed.end_of_text
        return {"tokenizer": framed, "token_strings": strings, "end_of_text": end}

    def bind(self, guide: ClassifierGuide) -> ClassifierGuide:
        """Return the guide for this tokenizer, the same one for the same; others as they are."""
        if id(guide) not in self.bound:
            self.bound[id(guide)] = guide, self.find(guide)
        self.bound.move_to_end(id(guide))
        while len(self.bound) > MOST_BOUND:
            self.bound.popitem(last=False)
        return self.bound[id(guide)][1]

    def find(self, guide: ClassifierGuide) -> ClassifierGuide:
        """Return a guide, or the slim one in its folder that was made for this tokenizer."""
        if home := self.home_for(guide.home):
            classifier = load_slim(home, str(guide.classifier.device))
            labels = [dict(one.config.id2label or {}) for one in (guide.classifier, classifier)]
            if labels[0] != labels[1]:
                raise ValueError(
                    f"{home} has the labels {quote(labels[1])} where {guide.title} has "
                    f"{quote(labels[0])}; train it again with `ssdlm train-guide --slim`"
                )
            return replace(guide, classifier=classifier, home=home, **self.own)
        made_for = getattr(guide.classifier.config, KEY, None)
        if made_for is None:
            return guide
        if made_for != self.digest:
            raise ValueError(
                f"{guide.title} was made for another tokenizer ({str(made_for)[:12]}) than this "
                f"model has ({self.digest[:12]}); train it again with `ssdlm train-guide --slim`"
            )
        return replace(guide, **self.own)

    def knows(self, name: str) -> bool:
        """Tell whether a guide, which is not loaded, reads tokens of this tokenizer."""
        home, _ = split_labels(find_guide(name))
        if self.home_for(home):
            return True
        made_for = read_json(config_file(home)).get(KEY)
        if made_for is not None:
            return made_for == self.digest
        strings, end = vocabulary_of(home)
        ends = self.tokenizer.end_of_text, end
        try:
            rows_by_string(self.tokenizer.token_strings(), strings, *ends)
        except NoGradientError:
            return not strings  # then ids are the same
        return True

    def home_for(self, folder: str) -> str:
        """Return the slim guide in a guide's folder that was made for this tokenizer, or ""."""
        configs = sorted(Path(folder).glob("*/config.json")) if folder else []
        homes = (str(path.parent) for path in configs if read_json(path).get(KEY) == self.digest)
        return next(homes, "")


@lru_cache(maxsize=8)
def load_slim(home: str, device: str) -> SequenceClassifier:
    """Return a slim guide's classifier, which guides of all its labels share."""
    return load_classifier(home).to(device)
