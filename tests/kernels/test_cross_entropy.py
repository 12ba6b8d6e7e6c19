"""Cross-entropy with gradients taken on the way forward agrees with autograd's."""

import pytest
import torch

from ssdlm.kernels import cross_entropy as kernel
from ssdlm.kernels.noisy_logits import Noisy
from ssdlm.kernels.soft_embedding import chunks


@pytest.fixture(params=[5, 1000])
def example(request, monkeypatch):
    """Hidden states, head, prior, weights and noised tokens, in chunks of several sizes."""
    monkeypatch.setattr(kernel, "chunks", lambda count: chunks(count, request.param))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(37, 8, generator=generator).requires_grad_()
    head = torch.randn(23, 8, generator=generator).requires_grad_()
    noisy = Noisy(
        torch.randn(37, 23, generator=generator),
        torch.randint(23, (37,), generator=generator),
        torch.rand(37, generator=generator),
        5 * torch.rand(37, generator=generator),
    )
    prior, weights = torch.randn(23, generator=generator), torch.rand(37, generator=generator)
    return hidden, head, prior, weights, noisy


def outcome(loss_of, hidden, head, *rest):
    hidden.grad = head.grad = None
    loss, nll = loss_of(hidden, head, *rest)
    (3 * loss).backward()
    return loss, nll, hidden.grad, head.grad


def test_block_cross_entropy_matches_plain(example):
    fast = outcome(kernel.block_cross_entropy, *example)
    slow = outcome(kernel.plain_block_cross_entropy, *example)
    torch.testing.assert_close(fast, slow)


def test_clean_cross_entropy_matches_plain(example):
    *tensors, noisy = example
    fast = outcome(kernel.clean_cross_entropy, *tensors, noisy.tokens)
    slow = outcome(kernel.plain_clean_cross_entropy, *tensors, noisy.tokens)
    torch.testing.assert_close(fast, slow)


def test_the_losses_of_single_tokens_carry_no_gradient(example):
    _, nll = kernel.block_cross_entropy(*example)
    assert not nll.requires_grad
