"""A guide of one's own: a plain function, or a class, and nothing to register."""

from dataclasses import dataclass

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, DecodeConfig


@pytest.fixture(scope="module")
def model():
    decoding = DecodeConfig(length=12, B=(6,), T=6, projection="greedy", gradient="simplex")
    return SSDLM(tiny.encoder(), tiny.tokenizer(), decoding)


def share(letters, text):
    return sum(letter in letters for letter in text) / len(text)


def test_a_function_steers(model):
    has_q = torch.tensor(["q" in string for string in model.tokenizer.token_strings()])

    def with_q(context, logits):
        """Return the log of the chance that every token of the block has a q, for each row."""
        return logits.softmax(-1)[..., has_q].sum(-1).clamp(min=1e-6).log().sum(-1)

    plain = model.generate("the river", seed=0).text
    steered = model.generate("the river", seed=0, control=with_q, lam=200.0).text
    assert share("q", steered) > 0.9
    assert share("q", plain) < 0.5


@dataclass(frozen=True)
class Unlike:
    """A guide with a state: it avoids the tokens of the context, each times a strength."""

    V: int
    strength: float = 1.0

    def __call__(self, context, logits):
        is_used = torch.zeros(len(context), self.V, dtype=torch.bool).scatter(1, context, True)
        used = (logits.softmax(-1) * is_used.unsqueeze(1)).sum(-1)
        return self.strength * (1 - used).clamp(min=1e-6).log().sum(-1)


def test_a_class_steers_by_what_it_knows_of_the_context(model):
    prompt = "abcdefghijklm"
    plain = model.generate(prompt, seed=1).text
    steered = model.generate(prompt, seed=1, control=Unlike(tiny.V), lam=200.0).text
    assert share(prompt, steered) < share(prompt, plain)


def test_guides_of_both_kinds_and_named_ones_go_together(model, tmp_path):
    folder = tiny.save_classifier(tmp_path / "classifier")
    controls = [
        f"{folder}=positive:50",
        Unlike(tiny.V, 2.0),
        lambda _, logits: logits[..., 3].sum(1),
    ]
    together = model.generate(["the river", "a movie"], seed=2, control=controls)
    assert together[1] == model.generate("a movie", seed=2, control=controls)
    assert together[1] != model.generate("a movie", seed=2)
