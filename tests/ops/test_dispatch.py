"""What an operation does by its kernels, whichever it chooses, is what its plain body does.

On a GPU or, with TRITON_INTERPRET=1, on a CPU as if it were one. `test_kernels` is about each
kernel; this is about the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.closeness import NETWORK, assert_close
from tests.ops.test_kernels import normals, settings_of, there

from ssdlm.ops import counters, draws, encoder, nudges, rows
from ssdlm.ops.rotary import rotation

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning"),
]
HOW: list[dict[str, Any]] = [{}, {"is_squared": True}, {"is_gated": True}]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """How to do something by an operation's plain body, and then by its kernels."""

    def run(work: Callable[..., Any], *given: Any) -> tuple[Any, Any]:
        plain = work(*(one.clone() if isinstance(one, torch.Tensor) else one for one in given))
        with monkeypatch.context() as patch:
            for module in (counters, draws, encoder, nudges, rows):
                patch.setattr(module, "on_gpu", lambda x: True)
            found = work(*there(*given))
        return plain, found.to("cpu") if isinstance(found, torch.Tensor) else found

    return run


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("R", [3, 20], ids=["few rows", "many rows"])
@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_normed_products(both, how, R, is_invariant, has_scale):
    x, weight = normals(2, R, 96), normals(64, 96, seed=1)
    scale = 1 + normals(96, seed=3) / 4 if has_scale else None
    given = {"eps": 1e-5 if has_scale else 1e-6, "is_invariant": is_invariant, **how}
    plain, found = both(lambda *one: rows.normed_product(*one, **given), x, weight, scale)
    assert_close(found, plain, roundings=NETWORK)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_normed_products_with_what_an_adapter_adds(both, how):
    x, weight, down, up = normals(2, 5, 96), normals(64, 96, seed=1), normals(4, 96), normals(64, 4)

    def work(x, weight, down, up):
        more = rows.LowRank(down, up, num_rows=3)
        return rows.normed_product(x, weight, None, more, **how)

    plain, found = both(work, x, weight, down, up)
    assert_close(found, plain, roundings=NETWORK)
    assert not torch.allclose(plain[:, 2:], rows.normed_product(x, weight, **how)[:, 2:])


@pytest.mark.parametrize("R", [1, 3, 20])
@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize("most", [8192, 32], ids=["narrow", "wide"])
def test_products(both, monkeypatch, R, is_invariant, most):
    monkeypatch.setattr("ssdlm.ops.kernels.products.MOST_COLUMNS", most)
    x, weight, old = normals(2, R, 96), normals(64, 96, seed=1), normals(2, R, 64, seed=2)
    given = {"is_invariant": is_invariant}
    plain, found = both(lambda *one: rows.product(*one, **given), x, weight)
    assert_close(found, plain, roundings=NETWORK)
    plain, found = both(lambda *one: rows.add_product_(*one, **given), old, x, weight)
    assert_close(found, plain, roundings=NETWORK)

    def adapted(old, x, weight, down, up):
        return rows.add_product_(old, x, weight, rows.LowRank(down, up, num_rows=1), **given)

    plain, found = both(adapted, old, x, weight, normals(4, 96), normals(64, 4))
    assert_close(found, plain, roundings=NETWORK)


@pytest.mark.parametrize("is_invariant", [False, True])
def test_attention(both, is_invariant):
    qkv, keys, values = normals(2, 3, 6, 16), normals(3, 2, 40, 16), normals(3, 2, 40, 16, seed=1)
    angles = rotation(torch.arange(40), 16).squeeze(2).transpose(0, 1).contiguous()
    at, lengths = torch.tensor([2, 0]), torch.tensor([7, 20])

    def work(qkv, keys, values, angles, at, lengths):
        behind = rows.Behind(rows.Rows.causal(3, qkv.device), at, lengths)
        norms = rows.HeadNorms()
        given = {"is_invariant": is_invariant}
        return rows.place_and_attend(qkv, keys, values, behind, angles, norms, **given)

    plain, found = both(work, qkv, keys, values, angles, at, lengths)
    assert_close(found, plain, roundings=NETWORK)


def test_norms(both):
    plain, found = both(rows.norm, normals(4, 5, 96))
    assert_close(found, plain, roundings=NETWORK)


@pytest.mark.parametrize("is_cut", [False, True])
def test_draws(both, is_cut):
    N, W, V = 6, 2, 60
    logits, prior = 3 * normals(N, W, V), normals(V, seed=1)
    settings = settings_of(N)
    cuts = torch.full((N,), 7), torch.full((N,), 0.1)

    def drawn(logits, prior, top_ks, min_ps, *settings):
        cuts = (top_ks, min_ps) if is_cut else None
        return draws.draw(logits, prior, None, *settings, cuts=cuts)

    plain, found = both(drawn, logits, prior, *cuts, *settings)
    assert int((found != plain).sum()) <= 1  # a sum in another order may fall on the other side

    def perturbed(logits, prior, places, top_ks, min_ps, *settings):
        cuts = (top_ks, min_ps) if is_cut else None
        return draws.draw_perturbed(logits, prior, *settings, places, counters.GUMBEL, cuts)

    places = torch.arange(N * W).view(N, W)
    plain, found = both(perturbed, logits, prior, places, *cuts, *settings[:4])
    assert int((found != plain).sum()) <= 1


def test_evidence_and_normals(both):
    tokens, gains = torch.tensor([[3, 50, 9], [7, 7, 59]]), normals(3).abs()
    *_, seeds, steps, streams = settings_of(2)

    def evidence(tokens, gains, seeds, steps, streams):
        out = torch.zeros(2, 3, 60, device=tokens.device)
        draws.new_evidence_(out, tokens, gains, gains, seeds, steps, streams, steps % 3)
        return out

    plain, found = both(evidence, tokens, gains, seeds, steps, streams)
    assert_close(found, plain, roundings=NETWORK)
    plain, found = both(lambda seeds: counters.normal(seeds, block=1, step=7, B=3, V=60), seeds)
    assert_close(found, plain, roundings=NETWORK)


def test_an_encoders_input_attention_and_norms(both):
    tokens, gain_z, gain_w = torch.tensor([[3, 50], [7, 7]]), torch.ones(2), torch.full((2,), 2.0)
    *_, seeds, steps, streams = settings_of(2)

    def weights(*given):
        found, sums = encoder.noised_weights(*given, V=60, width=64, dtype=torch.float32)
        return found / sums

    plain, found = both(weights, tokens, gain_z, gain_w, seeds, steps, streams)
    assert_close(found, plain, roundings=NETWORK)
    lengths, sizes = torch.tensor([9, 0]), torch.tensor([5, 2])

    def attend(*given):
        return encoder.attend_all(*given, 5, count=5)

    plain, found = both(attend, normals(2, 14, 3, 2, 16), lengths, sizes)
    assert_close(found, plain, roundings=NETWORK)
    norm = torch.nn.LayerNorm(96).requires_grad_(False)
    plain, found = both(
        lambda x, y: encoder.add_norm_(x, y, norm.to(x.device)), normals(7, 96), normals(7, 96)
    )
    assert_close(found, plain, roundings=NETWORK)


def test_nudges(both):
    base, logits, gradient = (
        normals(2, 1, 60),
        6 * normals(2, 1, 60),
        normals(2, 1, 60, seed=2) ** 3,
    )
    present, tokens = torch.zeros(2, 60, dtype=torch.bool), torch.tensor([[3], [4]])
    active, most = torch.tensor([1, 0]), torch.tensor(-1.0)

    def work(*given):
        return nudges.add_nudge(*given, scale=5.0, threshold=1.0)

    plain, found = both(work, base, logits, gradient, present, tokens, active, most)
    assert_close(found, plain, roundings=NETWORK)
    assert not torch.equal(plain, base)
