"""What a step draws depends on the examples, not on how the batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.network import NoisyNetwork
from ssdlm.diffusion import noise
from ssdlm.train.examples import Examples
from ssdlm.train.levels import LevelSampler, block_index
from ssdlm.train.objective import AllBlocks, OneBlock

B, LENGTH, COUNT = 6, 24, 32
SETTINGS = {
    "paper": LevelSampler("uniform", False, 0.0, 0.0, 50),
    "band": LevelSampler("band", True, 0.0, 0.0, 50),
    "mixed": LevelSampler("band", True, 0.3, 0.3, 50),
}


def examples(count: int = COUNT, *, step_seed: int = 7) -> Examples:
    tokens = torch.randint(tiny.V, (count, LENGTH), generator=torch.manual_seed(0))
    return Examples(tokens, torch.arange(count) + 100, torch.arange(count), step_seed)


def part(whole: Examples, rows: slice) -> Examples:
    return Examples(whole.tokens[rows], whole.seeds[rows], whole.indices[rows], whole.step_seed)


@pytest.mark.parametrize("name", SETTINGS)
def test_levels_do_not_depend_on_how_the_batch_is_cut(name):
    blocks, whole = block_index(LENGTH, B=B), examples()
    together = SETTINGS[name].draw(whole, blocks)
    apart = [SETTINGS[name].draw(part(whole, slice(i, i + 5)), blocks) for i in range(0, COUNT, 5)]
    assert torch.equal(together, torch.cat(apart))
    assert together.shape == (COUNT, LENGTH)
    assert ((together >= 0) & (together <= 1)).all()


def test_stratified_levels_cover_the_range_evenly_in_every_step():
    whole = examples()
    u = SETTINGS["band"].draw_uniforms(whole, 4).flatten().sort().values
    assert (u - (torch.arange(len(u)) + 0.5) / len(u)).abs().max() < 0.02
    other = SETTINGS["band"].draw_uniforms(examples(step_seed=8), 4).flatten().sort().values
    assert not torch.equal(u, other)


def test_the_papers_levels_are_whole_steps_one_a_block():
    levels = SETTINGS["paper"].draw(examples(), block_index(LENGTH, B=B))
    steps = levels * 50
    assert_close(steps, steps.round())
    assert (levels.unflatten(1, (-1, B)).std(-1) == 0).all()


@pytest.mark.parametrize("share", [1, 4])
def test_neighbours_share_a_context_length_as_asked(share):
    objective = OneBlock(tiny.encoder(), SETTINGS["paper"], share_c=share)
    c = objective.draw_splits(examples())
    assert ((c >= 1) & (c <= LENGTH - B)).all()
    groups = c.unflatten(0, (-1, share))
    assert (groups == groups[:, :1]).all()
    assert len(groups[:, 0].unique()) > 4


def losses_in_parts(objective, whole: Examples, size: int) -> torch.Tensor:
    """The mean loss of a batch that is cut into parts."""
    total = torch.zeros(3)
    with torch.no_grad():
        for i in range(0, COUNT, size):
            rows = part(whole, slice(i, i + size))
            total += torch.stack(objective(objective.draw(rows))) * len(rows.tokens) / COUNT
    return total


def test_the_loss_of_one_block_does_not_depend_on_how_the_batch_is_cut():
    objective = OneBlock(tiny.encoder(), SETTINGS["paper"], share_c=2)
    found = [losses_in_parts(objective, examples(), size) for size in (COUNT, 8, 5)]
    assert_close(found[0], found[1], roundings=NETWORK)
    assert_close(found[0], found[2], roundings=NETWORK)
    assert found[0][0] > 0


def test_the_loss_of_all_blocks_does_not_depend_on_how_the_batch_is_cut():
    torch.manual_seed(0)
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=16, num_layers=1, num_heads=2, B=B))
    objective = AllBlocks(denoiser, SETTINGS["mixed"])
    found = [losses_in_parts(objective, examples(), size) for size in (COUNT, 5)]
    assert_close(found[0], found[1], roundings=NETWORK)


def test_an_autoregressive_model_learns_the_next_token_and_noises_nothing(monkeypatch):
    sizes = {
        "V": tiny.V,
        "D": 16,
        "num_layers": 2,
        "num_heads": 2,
        "B": B,
        "has_tied_simplex": False,
    }
    both = BlockDenoiser(BlockConfig(**sizes))
    for weight in both.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=torch.manual_seed(1))
    objective = AllBlocks(both, SETTINGS["band"])
    whole = objective(objective.draw(examples()))
    alone = BlockDenoiser(BlockConfig(**sizes, block_weight=0.0))
    alone.load_state_dict(both.state_dict())
    monkeypatch.delattr(NoisyNetwork, "noised")
    monkeypatch.delattr(BlockDenoiser, "streams")
    objective = AllBlocks(alone, SETTINGS["band"])
    losses = objective(objective.draw(examples()))
    assert_close(losses.next_token, whole.next_token, roundings=NETWORK)
    assert_close(losses.total, whole.next_token, roundings=NETWORK)
    losses.total.backward()
    idle = {name for name, weight in alone.named_parameters() if weight.grad is None}
    assert idle == {"start", "simplex_embed", "time_embed"}


def test_steps_cut_blocks_of_all_lengths_asked_for():
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=16, num_layers=1, num_heads=2, B=B))
    objective = AllBlocks(denoiser, SETTINGS["mixed"], block_lengths=(2, 2, 5))
    longest = [int(objective.draw_blocks(40, noise.mix(7, k)).bincount().max()) for k in range(300)]
    assert set(longest) == {2, 5}
    assert 0.55 < longest.count(2) / 300 < 0.78
    fixed = AllBlocks(denoiser, SETTINGS["mixed"])
    assert int(fixed.draw_blocks(40, 3).bincount().max()) == B


def test_self_conditioning_is_trained_in_every_other_step():
    sizes = {"V": tiny.V, "D": 16, "num_layers": 1, "num_heads": 2, "B": B}
    torch.manual_seed(0)
    denoiser = BlockDenoiser(BlockConfig(**sizes, has_self_conditioning=True))
    torch.nn.init.normal_(denoiser.head, std=0.1)
    torch.nn.init.normal_(denoiser.self_embed, std=0.1)
    objective = AllBlocks(denoiser, SETTINGS["mixed"])
    for step_seed, is_trained in ((8, True), (7, False)):
        denoiser.zero_grad()
        objective(objective.draw(examples(step_seed=step_seed))).total.backward()
        assert (denoiser.self_embed.grad is not None) == is_trained
    found = [losses_in_parts(objective, examples(step_seed=8), size) for size in (COUNT, 5)]
    assert_close(found[0], found[1], roundings=NETWORK)
