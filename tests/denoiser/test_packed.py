"""Texts through the layers together: to the bit what each is alone."""

import pytest
import torch
from tests import tiny

from ssdlm.denoiser.packed import MOST, Passage, has_steady_rows, in_packs, widened


def passage(network, length, window, *, num_past=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    config = network.config
    heads = (2, config.num_heads, num_past, config.D // config.num_heads)
    past = torch.randn(1, config.num_layers, *heads, generator=generator)
    x = torch.randn(1, length, config.D, generator=generator)
    rotary = network.rotary(torch.arange(num_past, num_past + length))
    mask = torch.ones(length, num_past + length).tril(num_past).bool()
    return Passage(x, rotary, mask, past, window)


@pytest.fixture(params=[64, 100])
def network(request):
    return tiny.block(V=request.param)


@pytest.fixture
def steady(network):
    """A network whose products have steady rows here: with some libraries none has."""
    if not network.is_steady:
        pytest.skip("rows of this machine's products depend on their number; texts go one by one")
    return network


def test_passages_of_any_lengths_are_to_the_bit_what_each_is_alone(steady):
    passages = [
        passage(steady, length, window, num_past=number, seed=number)
        for number, (length, window) in enumerate(
            [(2, slice(None)), (3, slice(None)), (8, slice(2, 4)), (2, slice(0, 2))] * 5
        )
    ]
    with torch.no_grad():
        together = steady.run_many(passages)
        alone = [steady.run_many([one])[0] for one in passages]
    for (hidden, keys_values), (own_hidden, own) in zip(together, alone, strict=True):
        assert torch.equal(hidden, own_hidden)
        assert torch.equal(keys_values, own)


def test_logits_are_to_the_bit_what_each_is_alone(steady):
    hidden = [torch.randn(1, length, steady.config.D) for length in (1, 1, 2, 3, 1)]
    with torch.no_grad():
        together = steady.logits_of_many(hidden)
        alone = [steady.logits_of_many([one])[0] for one in hidden]
    assert [one.shape[1] for one in together] == [1, 1, 2, 3, 1]
    assert all(torch.equal(one, own) for one, own in zip(together, alone, strict=True))


def test_no_product_has_more_rows_than_were_tried(steady, monkeypatch):
    rows, to_logits = [], steady.to_logits
    monkeypatch.setattr(steady, "to_logits", lambda x: rows.append(x.shape[1]) or to_logits(x))
    hidden = [torch.randn(1, length, steady.config.D) for length in (25, 25, 25, 25, 25)]
    steady.logits_of_many(hidden)
    assert rows == [50, 50, 25]
    rows.clear()
    steady.logits_of_many([*hidden[:2], torch.randn(1, 14, steady.config.D), hidden[0][:, :1]])
    assert rows == [64, 2]  # the one that is left is taken twice


def test_where_rows_depend_on_their_number_texts_go_one_by_one(network, monkeypatch):
    network.steadiness[torch.get_num_threads()] = False
    monkeypatch.setattr("ssdlm.denoiser.network.run_packed", None)  # is not called
    passages = [passage(network, 2, slice(None), seed=seed) for seed in (1, 2)]
    assert len(network.run_many(passages)) == 2


def test_a_product_whose_sums_depend_on_the_number_of_rows_is_found_out():
    weight = torch.randn(24, 32)

    def by_halves(x, weight):
        """Sum in another order when there are many rows."""
        if len(x) < 20:
            return x @ weight.T
        return x[:, :16] @ weight[:, :16].T + x[:, 16:] @ weight[:, 16:].T

    assert has_steady_rows(weight, lambda x, weight: (x.unsqueeze(1) * weight).sum(-1))
    assert not has_steady_rows(weight, by_halves)


@pytest.mark.parametrize(
    ("window", "length", "wide"),
    [
        (slice(1, None), 2, slice(0, 2)),
        (slice(0, 1), 5, slice(0, 2)),
        (slice(4, 5), 5, slice(3, 5)),
        (slice(2, 4), 5, slice(2, 4)),
        (slice(None), 5, slice(0, 5)),
    ],
)
def test_a_window_has_two_positions_at_least(window, length, wide):
    assert widened(window, length) == wide


def test_packs_have_a_bound_and_keep_the_order(network):
    passages = [passage(network, length, slice(None)) for length in (40, 20, 10, 70, 2, 62)]
    packs = list(in_packs(passages, [one.x.shape[1] for one in passages]))
    assert [[one.x.shape[1] for one in pack] for pack in packs] == [[40, 20], [10], [70], [2, 62]]
    assert [one for pack in packs for one in pack] == passages
    assert MOST == 64
