"""The chain of tokens that log p and a text's own noise make."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import tiny

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion.autoregressive import Choice, Place, generate_chain
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import nucleus


@pytest.fixture(scope="module")
def denoiser():
    return tiny.block()


def chain(denoiser, context, choice, *, blocks=(6, 6), seeds=(5,), **rest):
    noise = RowNoise(torch.tensor(seeds))
    context = torch.tensor(context)
    steps = list(generate_chain(denoiser, context, choice, blocks=blocks, noise=noise, **rest))
    return torch.cat([step.tokens for step in steps if step.is_last], 1), steps


def plain_chain(denoiser, context, choice, *, length, seed):
    """The chain by its definition: the whole text is read anew for each token."""
    tokens, nothing = list(context), denoiser.prefill(torch.zeros(1, 0, dtype=torch.long))
    for position in range(length):
        logits = denoiser.next_logits(nothing, torch.tensor([tokens]))[0, -1]
        logits = logits / choice.temperature
        for token in choice.suppress:
            logits[token] = -1e4
        if choice.top_p < 1:
            logits = logits.masked_fill(~nucleus(logits[None, None], choice.top_p)[0, 0], -1e30)
        g = RowNoise(torch.tensor([seed])).gumbel(position=position, V=denoiser.V)[0, 0]
        tokens.append(int((logits if choice.is_greedy else logits.log_softmax(-1) + g).argmax()))
    return tokens[len(context) :]


@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(top_p=0.8),
        Choice(top_p=0.9, temperature=0.7, suppress=(3, 63)),
        Choice(is_greedy=True),
    ],
)
def test_a_text_is_the_chain_of_its_definition(denoiser, choice):
    tokens, _ = chain(denoiser, [[3, 4, 5]], choice, blocks=(6, 6, 3), seeds=(9,))
    assert tokens[0].tolist() == plain_chain(denoiser, [3, 4, 5], choice, length=15, seed=9)


def test_a_step_has_the_block_as_far_as_it_is_decided(denoiser):
    _, steps = chain(denoiser, [[3, 4]], Choice(), blocks=(3, 2))
    assert [step.block for step in steps] == [0, 0, 0, 1, 1]
    assert [step.t for step in steps] == [2, 1, 0, 1, 0]
    assert [step.tokens.shape[1] for step in steps] == [1, 2, 3, 1, 2]
    assert [step.is_last for step in steps] == [False, False, True, False, True]
    assert [step.window.start for step in steps] == [1, 2, 3, 1, 2]
    assert all(step.logits.shape == (1, 0, denoiser.V) for step in steps)


def test_blocks_do_not_change_a_text(denoiser):
    whole, _ = chain(denoiser, [[3, 4]], Choice(), blocks=(12,))
    assert torch.equal(chain(denoiser, [[3, 4]], Choice(), blocks=(1, 5, 6))[0], whole)


def test_a_row_does_not_depend_on_its_neighbours(denoiser):
    both, _ = chain(denoiser, [[3, 4], [7, 8]], Choice(), seeds=(5, 6))
    assert torch.equal(both[1:], chain(denoiser, [[7, 8]], Choice(), seeds=(6,))[0])


def test_a_text_takes_one_pass_per_token_its_prompt_included(denoiser, monkeypatch):
    calls = []
    read = BlockDenoiser.read
    monkeypatch.setattr(BlockDenoiser, "read", lambda *a: calls.append(1) or read(*a))
    _, steps = chain(denoiser, [[3, 4, 5]], Choice())
    assert len(calls) == len(steps) == sum(step.num_passes for step in steps) == 12


def test_a_text_ends_where_all_of_its_rows_have(denoiser):
    whole, _ = chain(denoiser, [[3, 4], [7, 8]], Choice(), seeds=(5, 6))
    for token in set(whole[0].tolist()) & set(whole[1].tolist()):
        end = max(row.tolist().index(token) for row in whole)
        cut, steps = chain(denoiser, [[3, 4], [7, 8]], Choice(), seeds=(5, 6), end_of_text=token)
        assert torch.equal(cut, whole[:, : end + 1])
        assert steps[-1].is_last
        return
    raise AssertionError("the rows share no token; choose other seeds")


class EvenAfterOdd:
    """Rules: after an odd token only even ones, and none above 40."""

    def legal_tokens(self, state, position):
        ids = np.arange(tiny.V)
        return (ids <= 40) & ((ids % 2 == 0) | (state == 0))

    def step(self, state, position, token):
        return token % 2


def test_rules_hold_and_a_text_within_them_is_left_alone(denoiser):
    free, _ = chain(denoiser, [[3, 4]], Choice(top_p=0.9), blocks=(40,))
    places = [Place(EvenAfterOdd(), 0)]
    held, _ = chain(denoiser, [[3, 4]], Choice(top_p=0.9), blocks=(40,), places=places)
    pairs = list(zip([0, *held[0].tolist()], held[0].tolist(), strict=False))
    assert all(b <= 40 and not (a % 2 and b % 2) for a, b in pairs)
    assert not torch.equal(free, held)
    first = next(i for i in range(40) if free[0, i] != held[0, i])
    place = places[0]
    for token in free[0, :first].tolist():
        place = place.after(token)
    assert not place.legal()[free[0, first]], "or the rules changed a legal token"
