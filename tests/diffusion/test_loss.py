"""What training minimises."""

import math
from functools import partial

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.config import BlockConfig
from ssdlm.denoiser import Denoiser
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion import loss, schedule, simplex
from ssdlm.diffusion.loss import block_loss as plain_loss
from ssdlm.diffusion.noising import add_noise

TOKENS = torch.randint(tiny.V, (6, 12), generator=torch.Generator().manual_seed(0))


def test_perfect_logits_cost_nothing_and_uniform_ones_log_v():
    block = TOKENS[:, :5]
    assert loss.block_loss(simplex.to_logits(block, V=tiny.V, K=30.0), block) < 1e-6
    uniform = torch.zeros(6, 5, tiny.V)
    assert_close(loss.block_loss(uniform, block).item(), math.log(tiny.V))


def test_the_papers_sum_is_b_times_the_authors_mean():
    logits, block = torch.randn(6, 5, tiny.V), TOKENS[:, :5]
    summed, averaged = (loss.block_loss(logits, block, reduction=r) for r in ("sum", "mean"))
    assert_close(summed, 5 * averaged)


def test_one_block_loss_is_its_parts():
    denoiser = tiny.encoder()
    progress, z = torch.full((6,), 0.4), torch.randn(6, 4, tiny.V)
    context, block = TOKENS[:, :8], TOKENS[:, 8:]
    got = denoiser.one_block(context, block, progress, z=z)
    a = schedule.cosine(torch.tensor(0.4)).item()
    w_t = a**0.5 * simplex.to_logits(block, V=tiny.V, K=5.0) + (1 - a) ** 0.5 * 5.0 * z
    logits = denoiser.denoise(denoiser.prefill(context), w_t, torch.tensor(0.4))
    expected = -logits.log_softmax(-1).gather(-1, block.unsqueeze(-1)).mean()
    assert_close(got, expected, roundings=NETWORK)


def test_context_lengths_are_uniform_from_one_to_l_minus_b():
    u = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    c = loss.draw_splits(u, max_len=12, B=5)
    assert c.min() == 1
    assert c.max() == 7
    assert (c.bincount(minlength=8)[1:] / len(c) - 1 / 7).abs().max() < 0.01
    assert loss.draw_splits(torch.ones(1), max_len=12, B=5) == 7


def test_steps_are_uniform_from_one_to_t():
    t = loss.draw_steps(torch.linspace(0, 1, 1001), T=10)
    assert t.min() == 1
    assert t.max() == 10


def test_rows_are_split_at_their_own_c():
    c = torch.tensor([3, 1, 3, 7, 1, 1])
    groups = loss.split_rows(TOKENS, c, B=5)
    assert sorted(row for rows, _, _ in groups for row in rows.tolist()) == list(range(6))
    for rows, context, block in groups:
        for row, ctx, blk in zip(rows.tolist(), context, block, strict=True):
            assert torch.equal(ctx, TOKENS[row, : c[row]])
            assert torch.equal(blk, TOKENS[row, c[row] : c[row] + 5])


def test_targets_reach_the_network_only_through_noise():
    """At t = T the noisy block says nothing of the target, so swapping targets moves no logits."""
    denoiser, z = tiny.encoder(), torch.randn(6, 4, tiny.V)
    end = schedule.cosine(torch.ones(6))
    outputs = []
    for block in (TOKENS[:, 8:], TOKENS[:, 8:].flip(0)):
        w_0 = simplex.to_logits(block, V=tiny.V, K=5.0)
        w_t = add_noise(w_0, end, K=5.0, z=z)
        outputs.append(denoiser.denoise(denoiser.prefill(TOKENS[:, :8]), w_t, torch.ones(6)))
    assert_close(*outputs, roundings=NETWORK)


def blank_block(**settings):
    """A BlockDenoiser none of whose weights are zero."""
    torch.manual_seed(0)
    config = BlockConfig(V=tiny.V, D=16, num_layers=2, num_heads=2, B=4, **settings)
    denoiser = BlockDenoiser(config)
    with torch.no_grad():
        for weight in denoiser.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return denoiser


DENOISERS = {
    "roberta": lambda: tiny.encoder("roberta"),
    "bert": lambda: tiny.encoder("bert"),
    "block": blank_block,
    "block-paper": lambda: blank_block(
        has_evidence=False, is_shifted=False, has_tied_simplex=False
    ),
}


def one_of_all_blocks(denoiser, context, block, progress, *, z, loss: str):
    """The loss of one of all blocks, denoised at once; what a slot reads has no gradient."""
    tokens, num_past = torch.cat((context, block), 1), context.shape[1]
    levels, noise = torch.rand(tokens.shape), torch.randn(*tokens.shape, tiny.V)
    levels[:, num_past:], noise[:, num_past:] = progress.unsqueeze(1), z
    blocks = (torch.arange(tokens.shape[1]) >= num_past).long()
    logits = denoiser.all_logits(tokens, levels, z=noise, blocks=blocks)[:, num_past:]
    return plain_loss(logits, block, loss=loss)


@pytest.mark.parametrize("kind", ["cross_entropy", "l2"])
@pytest.mark.parametrize("name", DENOISERS)
def test_the_fast_loss_of_one_block_matches_the_plain_one(name, kind):
    denoiser = DENOISERS[name]().requires_grad_(True)
    plain = one_of_all_blocks if isinstance(denoiser, BlockDenoiser) else Denoiser.one_block
    progress, z = torch.rand(6), torch.randn(6, 4, tiny.V)
    context, block = TOKENS[:, :8], TOKENS[:, 8:]
    results = []
    for loss_of, noise in (
        (partial(plain, denoiser), z),
        (denoiser.one_block, z),
        (denoiser.one_block, torch.nn.functional.pad(z, (0, 11), value=3.0)),
    ):
        denoiser.zero_grad()
        value = loss_of(context, block, progress, z=noise, loss=kind)
        value.backward()
        weights = list(denoiser.parameters())
        grads = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights]
        results.append((value.detach(), grads))
    # Some gradients are sums of larger ones that cancel: no key's bias moves any softmax.
    largest = max(grad.abs().max() for grad in results[0][1])
    for value, grads in results[1:]:
        assert_close(value, results[0][0], roundings=NETWORK)
        assert_close(grads, results[0][1], roundings=NETWORK, size=largest)
    assert results[0][0] > 0


def test_the_l2_loss_is_a_squared_distance():
    block = TOKENS[:, :5]
    assert loss.block_loss(simplex.to_logits(block, V=tiny.V, K=30.0), block, loss="l2") < 1e-6
    even = loss.block_loss(torch.zeros(6, 5, tiny.V), block, loss="l2")
    assert_close(even.item(), 1 - 1 / tiny.V)
