"""Cross-entropy with gradients taken on the way forward agrees with autograd's."""

import pytest
import torch
from tests.closeness import NETWORK, assert_close

from ssdlm.ops import cross_entropy as kernel
from ssdlm.ops.noisy_logits import Noisy, noisy_logits
from ssdlm.ops.padding import pad_prior, pad_table
from ssdlm.ops.soft_embedding import chunks


@pytest.fixture(params=[5, 1000])
def example(request, monkeypatch):
    """Hidden states, head, prior and noised tokens, in chunks of several sizes."""
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
    prior = torch.randn(23, generator=generator).requires_grad_()
    return hidden, head, prior, noisy.tokens, noisy


def plain_cross_entropy(hidden, head, prior, tokens, noisy=None, *, loss):
    """Return the same from one V-wide tensor that autograd keeps."""
    logits = hidden @ head.T + prior
    if noisy is not None:
        logits = logits + noisy_logits(*noisy.parts())
    if loss == "l2":
        corners = torch.nn.functional.one_hot(tokens, logits.shape[-1])
        return (logits.softmax(-1) - corners).square().sum(-1).mean()
    return torch.nn.functional.cross_entropy(logits, tokens)


def outcome(loss_of, loss, hidden, head, prior, *rest):
    hidden.grad = head.grad = prior.grad = None
    value = loss_of(hidden, head, prior, *rest, loss=loss)
    (3 * value).backward()
    return value, hidden.grad, head.grad, prior.grad


@pytest.mark.parametrize("loss", ["cross_entropy", "l2"])
@pytest.mark.parametrize("count", [4, 5], ids=["clean", "noised"])
def test_head_loss_matches_plain(example, loss, count):
    fast = outcome(kernel.head_loss, loss, *example[:count])
    slow = outcome(plain_cross_entropy, loss, *example[:count])
    assert_close(fast, slow, roundings=NETWORK)


def test_padding_changes_nothing(example):
    hidden, head, prior, tokens, noisy = example
    z = torch.nn.functional.pad(noisy.z, (0, 9), value=7.0)
    wide = Noisy(z, noisy.tokens, noisy.gain_z, noisy.gain_w)
    narrow = outcome(kernel.head_loss, "l2", *example)

    def with_padding(hidden, head, prior, *rest, loss):
        tables = pad_table(head, 32), pad_prior(prior, 32)
        return kernel.head_loss(hidden, *tables, *rest, loss=loss)

    wide = outcome(with_padding, "l2", hidden, head, prior, tokens, wide)
    assert_close(wide, narrow, roundings=NETWORK)
