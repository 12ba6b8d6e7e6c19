"""Bytes and FLOPs of a pass are those that one counts by hand."""

import pytest
from tests import tiny
from tests.closeness import assert_close

from ssdlm.bench.costs import (
    Floor,
    Network,
    Pass,
    autoregressive_passes,
    bytes_of,
    diffusion_passes,
    flops_of,
    network_of,
)
from ssdlm.options import GenerateOptions

SMALL = Network(V=1000, D=8, num_layers=2, layer_weights=2 * 100, other_weights=10, item_bytes=2)
STAGGERED = {"grid": "staggered", "width": 1.0, "returns": "w_0"}


def test_a_block_denoiser_is_counted_weight_by_weight():
    network = network_of(tiny.block())
    D, V = 32, 64
    assert network.layer_weights == 2 * (3 * D * D + D * D + 2 * 4 * D * D)
    assert network.other_weights == D * D + D * 16 + D  # own_embed, time_embed, start
    assert (network.V, network.D, network.num_layers, network.item_bytes) == (V, D, 2, 4)


def test_an_encoder_is_counted_without_its_tables():
    denoiser = tiny.encoder().bfloat16()
    network = network_of(denoiser)
    layers = denoiser.backbone.roberta.encoder.layer
    head = denoiser.backbone.lm_head
    around = [*head.dense.parameters(), *head.layer_norm.parameters()]
    around += [*denoiser.time_embed.parameters()]
    around += [*denoiser.backbone.roberta.embeddings.LayerNorm.parameters()]
    assert network.layer_weights == sum(weight.numel() for weight in layers.parameters())
    assert network.other_weights == sum(weight.numel() for weight in around)
    assert (network.V, network.D, network.num_layers, network.item_bytes) == (64, 32, 2, 2)


def test_a_pass_reads_only_the_weights_that_it_uses():
    table = 1000 * 8
    assert bytes_of(SMALL, Pass(5, is_causal=True), batch=1) == 2 * (200 + 5 * 8)
    assert bytes_of(SMALL, Pass(5, heads=1), batch=1) == 2 * (200 + 5 * 8 + table + 10)
    assert bytes_of(SMALL, Pass(5, wide=2, heads=1), batch=1) == 2 * (200 + 2 * table + 10)


def test_weights_are_read_once_and_caches_once_for_each_row():
    cached = Pass(5, past=7, wide=5, heads=5)
    one, four = (bytes_of(SMALL, cached, batch=batch) for batch in (1, 4))
    assert four - one == 3 * 7 * 2 * (2 * 8) * 2  # rows x past x layers x (key and value) x bytes


def test_looked_up_rows_are_never_more_than_the_table():
    many = bytes_of(SMALL, Pass(5), batch=10**6)
    assert many == 2 * (200 + 1000 * 8)


def test_flops_are_those_of_the_products():
    D, layer = 8, 100
    # One layer for all positions; of the last, keys and values of all, the rest where logits are.
    linear = 5 * layer + 5 * 2 * D * D + 1 * (layer - 2 * D * D)
    attention = 2 * (5 + 7) * D * (5 + 1)
    around = 1000 * D * (2 + 1) + 10
    found = flops_of(SMALL, Pass(5, past=7, wide=2, heads=1), batch=3)
    assert found == 2 * 3 * (linear + attention + around)


def test_a_causal_pass_sees_half():
    causal, full = (flops_of(SMALL, Pass(5, is_causal=causal), 1) for causal in (True, False))
    assert full - causal == 2 * 2 * 8 * 5 * (5 - 3)


def test_passes_of_an_encoder_read_context_and_block_each_time():
    options = GenerateOptions(length=8, B=(4,), T=3)
    passes = diffusion_passes(tiny.encoder(), options, context=6)
    first, second = Pass(10, wide=4, heads=4), Pass(14, wide=4, heads=4)
    assert passes == [first] * 3 + [second] * 3


def test_passes_of_a_block_denoiser_read_the_context_once():
    options = GenerateOptions(length=8, B=(4,), T=3)
    passes = diffusion_passes(tiny.block(), options, context=6)
    assert [one for one in passes if one.is_causal] == [
        Pass(6, is_causal=True),
        Pass(4, past=6, is_causal=True),
    ]
    # At T all is noise, which says nothing; then every position has evidence.
    noisy = [one for one in passes if not one.is_causal]
    assert noisy[:3] == [Pass(4, past=6, wide=wide, heads=4) for wide in (0, 4, 4)]


def test_with_one_pass_per_position_no_input_is_wide():
    options = GenerateOptions(length=4, B=(4,), T=4, **STAGGERED)
    passes = diffusion_passes(tiny.block(), options, context=6)
    assert [(one.wide, one.heads) for one in passes[1:]] == [(0, 1)] * 4


def test_a_sliding_window_reads_what_is_new_and_what_is_open():
    options = GenerateOptions(length=4, B=(4,), T=4, grid="sliding", width=1.0, returns="w_0")
    first, *rest = diffusion_passes(tiny.block(), options, context=6)
    assert first == Pass(6 + 1, heads=1, is_causal=True)
    assert rest == [Pass(1 + 1, past=6 + i, heads=1) for i in range(3)]


def test_a_wider_window_has_evidence_of_all_but_what_comes_in():
    options = GenerateOptions(length=8, B=(8,), T=8, grid="sliding", width=3.0, returns="w_0")
    passes = diffusion_passes(tiny.block(), options, context=6)
    assert passes[4] == Pass(1 + 3, past=6 + 3, wide=2, heads=3)
    every = diffusion_passes(tiny.encoder(), options, context=6)
    assert every[4] == Pass(6 + 4 + 3, wide=3, heads=3)
    assert len(passes) == len(every) == 8


def test_passes_of_a_text_token_by_token():
    passes = autoregressive_passes(context=6, length=3)
    assert passes[0] == Pass(6, heads=1, is_causal=True)
    assert passes[1:] == [Pass(1, past=6, heads=1), Pass(1, past=7, heads=1)]


@pytest.mark.parametrize(("bandwidth", "peak"), [(1e3, 1e30), (1e30, 1e3)])
def test_the_floor_is_the_larger_of_two_times(bandwidth, peak):
    passes = [Pass(5, heads=5), Pass(5, wide=5, heads=5)]
    floor = Floor.under(SMALL, passes, 2, bandwidth=bandwidth, peak=peak)
    reads = sum(bytes_of(SMALL, one, 2) for one in passes) / 2
    flops = sum(flops_of(SMALL, one, 2) for one in passes) / 2
    assert (floor.bytes_per_pass, floor.flops_per_pass) == (reads, flops)
    assert_close(floor.ms, 1000 * max(reads / bandwidth, flops / peak))
