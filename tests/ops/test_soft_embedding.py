"""Fused paths agree with their plain twins, values and gradients."""

import pytest
import torch
from tests.closeness import NETWORK, assert_close

from ssdlm.ops import soft_embedding as kernel
from ssdlm.ops.noisy_logits import Noisy, noisy_logits


def example(M: int = 37, V: int = 23) -> Noisy:
    generator = torch.Generator().manual_seed(0)
    return Noisy(
        torch.randn(M, V, generator=generator),
        torch.randint(V, (M,), generator=generator),
        torch.rand(M, generator=generator),
        5 * torch.rand(M, generator=generator),
    )


def plain_logits(z, tokens, gain_z, gain_w):
    """Return what `noisy_logits` does, from a corner of the simplex for each token."""
    corners = torch.nn.functional.one_hot(tokens, z.shape[-1])
    return gain_z.unsqueeze(1) * z + gain_w.unsqueeze(1) * corners


def plain_embedding(noisy, prior, weight):
    """Return what `soft_embedding` does, from one V-wide tensor that autograd keeps."""
    return (plain_logits(*noisy.parts()) + prior).softmax(-1) @ weight


def test_noisy_logits_matches_plain():
    parts = example().parts()
    assert_close(noisy_logits(*parts), plain_logits(*parts))


@pytest.mark.parametrize("size", [5, 1000])
def test_soft_embedding_matches_plain(size, monkeypatch):
    monkeypatch.setattr(kernel, "chunks", lambda count: kernel_chunks(count, size))
    noisy, prior, weight = example(), torch.randn(23), torch.randn(23, 7, requires_grad=True)
    upstream = torch.randn(37, 7)
    results = []
    for embed in (kernel.soft_embedding, plain_embedding):
        weight.grad = None
        out = embed(noisy, prior, weight)
        out.backward(upstream)
        results.append((out, weight.grad))
    assert_close(*results, roundings=NETWORK)


kernel_chunks = kernel.chunks


@pytest.mark.parametrize(("count", "size"), [(10, 3), (3, 10), (12, 4), (0, 4)])
def test_chunks_cover_every_row_once(count, size):
    covered = [i for part in kernel_chunks(count, size) for i in range(count)[part]]
    assert covered == list(range(count))
    assert all(part.stop - part.start <= size for part in kernel_chunks(count, size))
