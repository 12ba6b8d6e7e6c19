"""A denoiser of one's own: three methods, and the whole library works with it."""

from dataclasses import dataclass

import torch
from tests import tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.denoiser import Denoiser


@dataclass(frozen=True)
class ContextCache:
    """All that this denoiser keeps of a context: its ids."""

    context: torch.Tensor


class Echo(Denoiser):
    """Expects each block to say again what stood before it, with the certainty of its evidence."""

    def __init__(self, V, K=5.0):
        self.V, self.K = V, K

    @property
    def device(self):
        return torch.device("cpu")

    def prefill(self, context):
        return ContextCache(context)

    def extend(self, cache, block):
        return ContextCache(torch.cat((cache.context, block), 1))

    def denoise(self, cache, w_t, progress, previous=None):
        expected = cache.context[:, -w_t.shape[1] :]
        return w_t + 20 * torch.nn.functional.one_hot(expected, self.V)


def test_a_denoiser_of_ones_own_writes_and_is_steered_and_constrained():
    model = SSDLM(Echo(tiny.V), tiny.tokenizer(), GenerateOptions(length=8, B=(4,), T=5))
    assert model.generate("abcdefgh").text == "efghefgh"
    assert " no" in model.generate("abcdefgh", must="no").text
    steered = model.generate("abcd", control=lambda _, logits: logits[..., 5].sum(-1), lam=90.0)
    assert steered.text == "ffffffff"


def test_what_it_does_not_announce_is_refused_and_not_tried():
    model = SSDLM(Echo(tiny.V), tiny.tokenizer(), GenerateOptions(length=4, B=(4,), T=2))
    for options in ({"best_of": 2}, {"nucleus": "network"}, {"temperature": 0.5}):
        try:
            model.generate("abcd", **options)
        except ValueError as error:
            assert "needs a" in str(error)
        else:
            raise AssertionError(f"{options} should have been refused")
