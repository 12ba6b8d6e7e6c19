"""Rows behind slots are the network's own passes, whoever else is in the other slots."""

import os
from pathlib import Path

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.denoiser.slots import Slots
from ssdlm.ops.rows import Behind, Rows


@pytest.fixture
def denoiser():
    return tiny.block()


def read(denoiser, slots, slot, tokens):
    """Read a text's tokens into a slot; return the output after each."""
    at, none = torch.tensor([slot]), torch.tensor([0])
    rows = Rows.causal(len(tokens), denoiser.device)
    hidden = slots.read(denoiser.embed(torch.tensor([tokens])), Behind(rows, at, none))
    slots.lengths[slot] = len(tokens)
    return hidden


@pytest.mark.parametrize("make", [tiny.block, tiny.llama, tiny.adapted])
def test_a_text_in_a_slot_is_the_same_to_the_bit_whoever_is_in_the_others(make):
    denoiser = make()
    denoiser.store_for_cpu()
    alone, crowded = Slots(denoiser, 1, 32), Slots(denoiser, 3, 32)
    texts = [[3, 1, 4, 1, 5, 9], [2, 7], [5, 5, 5, 5]]
    read(denoiser, alone, 0, texts[1])
    for slot, tokens in enumerate(texts):
        read(denoiser, crowded, slot, tokens)
    last = denoiser.embed(torch.tensor([[6], [8], [9]]))
    window = Rows.window(3, denoiser.device, sees_word=not denoiser.is_exact)
    for rows in (Rows.causal(1, denoiser.device), Rows.causal(3, denoiser.device), window):
        x = last.expand(-1, len(rows.offsets), -1).contiguous()
        among = crowded.read(x.clone(), Behind(rows, crowded.all_slots, crowded.lengths))
        single = alone.read(x[1:2].clone(), Behind(rows, alone.all_slots, alone.lengths))
        assert torch.equal(among[1:2], single)


def resident():
    """The bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_slots_on_a_cpu_take_no_memory_before_they_are_used(denoiser):
    before = resident()
    slots = Slots(denoiser, 64, 1 << 14)
    slots.grow(1 << 15)
    size = slots.keys_values.numel() * 4
    assert size > 200 << 20 and resident() - before < size / 10


def test_reading_a_context_is_the_context_stream(denoiser):
    slots, tokens = Slots(denoiser, 3, 32), [3, 1, 4, 1, 5, 9]
    hidden = read(denoiser, slots, 1, tokens)
    expected = denoiser.next_logits(
        denoiser.prefill(torch.zeros(1, 0).long()), torch.tensor([tokens])
    )
    assert_close(denoiser.to_logits(hidden), expected, roundings=NETWORK)


@pytest.mark.parametrize("width", [1, 3])
def test_a_window_behind_a_slot_is_read_and_denoise(denoiser, width):
    slots = Slots(denoiser, 2, 32)
    texts = [[3, 1, 4, 1, 5, 9], [2, 7]]
    for slot, tokens in enumerate(texts):
        read(denoiser, slots, slot, tokens)
    last = torch.tensor([[6], [8]])
    word = denoiser.embed(last)
    blank = denoiser.blank()[: denoiser.config.D].expand(2, width - 1, -1)
    x = torch.cat((word, word, blank), 1)  # without evidence: the word before, then nothing
    rows = Rows.window(width, denoiser.device)
    hidden = slots.read(x, Behind(rows, slots.all_slots, slots.lengths), slice(1, None))
    for slot, tokens in enumerate(texts):
        cache = denoiser.prefill(torch.tensor([tokens]))
        noise = torch.zeros(1, width, denoiser.V), torch.ones(1, width)
        _, expected = denoiser.read_and_denoise(cache, last[slot : slot + 1], *noise)
        assert_close(denoiser.to_logits(hidden[slot : slot + 1]), expected, roundings=NETWORK)


def test_a_slot_keeps_what_was_read_while_windows_come_and_go(denoiser):
    slots, tokens = Slots(denoiser, 1, 32), [3, 1, 4, 1, 5]
    read(denoiser, slots, 0, tokens[:3])
    rows = Rows.window(2, denoiser.device)
    for place in (3, 4):
        x = denoiser.embed(torch.tensor([[tokens[place], 60, 61]]))
        slots.read(x, Behind(rows, slots.all_slots, slots.lengths), slice(1, None))
        slots.lengths += 1
    kept = slots.keys_values[:, :, 0, :, :5]
    expected = denoiser.prefill(torch.tensor([tokens])).past[:, :, 0]
    assert_close(kept, expected, roundings=NETWORK)


def test_a_slots_size_is_known_before_it_is_made(denoiser):
    slots = Slots(denoiser, 3, 32)
    assert slots.keys_values.nbytes == 3 * Slots.num_bytes(denoiser, 32)


@pytest.mark.parametrize("make", [tiny.block, tiny.adapted])
def test_a_block_beside_longer_ones_is_read_as_alone(make):
    denoiser = make()
    slots, alone = Slots(denoiser, 3, 32), Slots(denoiser, 3, 32)
    for slot, tokens in enumerate([[3, 1, 4, 1, 5, 9], [2, 7], [5, 5, 5, 5]]):
        read(denoiser, slots, slot, tokens)
        read(denoiser, alone, slot, tokens)
    x = torch.randn(3, 6, denoiser.config.D if make is tiny.block else denoiser.blank().shape[-1])
    sees_word, counts = not denoiser.is_exact, torch.tensor([4, 6, 3])
    longest = Rows.window(5, denoiser.device, sees_word=sees_word)
    found = slots.read(x.clone(), Behind(longest, slots.all_slots, slots.lengths, counts))
    for slot, count in enumerate(counts.tolist()):
        rows = Rows.window(count - 1, denoiser.device, sees_word=sees_word)
        at = torch.tensor([slot]), alone.lengths[slot : slot + 1]
        expected = alone.read(x[slot : slot + 1, :count].clone(), Behind(rows, *at))
        assert_close(found[slot : slot + 1, :count], expected, roundings=NETWORK)
