"""Kernels of a pass with few rows, on a GPU, against what they stand for."""

import pytest
import torch
import torch.nn.functional as F
from tests.closeness import NETWORK, assert_close

from ssdlm.denoiser.kernels import draw_kernels, encoder_kernels, product_kernels
from ssdlm.denoiser.layer import norm
from ssdlm.diffusion.noise import NORMAL, RowNoise
from ssdlm.diffusion.simplex import to_logits

pytestmark = pytest.mark.gpu


def normals(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).cuda()


@pytest.mark.parametrize("M", [1, 2, 4, 5, 15, 40, 200])
def test_products_with_what_stands_around_them(M):
    x, weight, old = normals(M, 96), normals(160, 96, seed=1), normals(M, 160, seed=2)
    plain = F.linear(norm(x), weight)
    kernels = product_kernels()
    assert_close(kernels.normed_product(x, weight), plain, roundings=NETWORK)
    squares = kernels.normed_product(x, weight, is_squared=True)
    assert_close(squares, plain.relu().square(), roundings=NETWORK)
    assert_close(
        kernels.add_product_(old.clone(), x, weight), old + x @ weight.T, roundings=NETWORK
    )


@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("tile", [512, 2048])
def test_a_wide_vocabulary_is_drawn_from_as_a_narrow_one(scale, tile):
    N, W, V = 40, 3, 5003
    logits, prior = scale * normals(N, W, V), normals(V, seed=1)
    whole = torch.arange(N).cuda()
    top_ps = torch.tensor([0.0, 0.5, 0.9, 0.99, 1.0] * 8).cuda()
    settings = whole % 7 - 1, 0.5 + whole / N, top_ps, whole, whole % 3, whole % 4
    narrow = draw_kernels().draw(logits, prior, None, *settings)
    wide = draw_kernels().draw_wide(logits, prior, *settings, tile=tile)
    # A sum in another order may fall on the other side of a boundary.
    assert int((narrow != wide).sum()) <= 2
    few = [setting[:8] for setting in settings]
    wide = draw_kernels().draw_wide(logits[:8], prior, *few, tile=tile)  # by other cuts
    assert int((narrow[:8] != wide).sum()) <= 1


def test_gelu_by_a_product_is_that_of_the_layer_within_bfloat16():
    dense = torch.nn.Linear(128, 256, device="cuda", dtype=torch.bfloat16)
    x = normals(40, 1, 128)[:, 0].bfloat16()
    plain = torch.nn.functional.gelu(dense(x).float())
    assert_close(encoder_kernels().gelu_product(x, dense), plain, roundings=2)


def test_weights_of_noised_tokens_are_the_softmax_of_their_state():
    K, V, tokens = 5.0, 1001, torch.tensor([[3, 500, 9], [7, 7, 1000]]).cuda()
    seeds, steps = torch.tensor([11, 12]).cuda(), torch.tensor([4, 4]).cuda()
    gain_z, gain_w = torch.tensor([3.0, 4.0]).cuda(), torch.tensor([6.0, 0.0]).cuda()
    streams = torch.full_like(steps, NORMAL)
    weights, sums = encoder_kernels().noised_weights(
        tokens, gain_z, gain_w, seeds, steps, streams, V=V, width=1024, dtype=torch.float32
    )
    z = RowNoise(seeds).normal(block=0, step=4, B=3, V=V)
    data = to_logits(tokens, V=V, K=K)
    w_t = gain_z.view(-1, 1, 1) * z + gain_w.view(-1, 1, 1) / (2 * K) * data
    assert_close((weights / sums)[:, :V], w_t.softmax(-1).flatten(0, 1), roundings=NETWORK)
    assert not weights[:, V:].any()
