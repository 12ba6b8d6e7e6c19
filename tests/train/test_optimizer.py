"""Muon orthogonalizes, AdamW is AdamW, and a run continues from its state."""

import copy

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close
from torch import nn

from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.train.optimizer import Ema, MuonAdamW, author_groups, group_parameters, orthogonalized


class Small(nn.Module):
    """A module with weights of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.words = nn.Parameter(torch.randn(9, 4, generator=generator))
        self.head = nn.Parameter(torch.randn(9, 4, generator=generator))
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        self.vector = nn.Parameter(torch.ones(4))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.randn(4, 4, generator=generator))

    def forward(self, ids):
        x = self.words[ids] * self.vector
        for layer in self.layers:
            x = x + layer(x).tanh()
        return (x @ self.head.T).square().mean()


def learn(module, optimiser, steps, start=0):
    losses = []
    for step in range(start, start + steps):
        ids = torch.randint(9, (16,), generator=torch.Generator().manual_seed(step))
        loss = module(ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def optimiser_of(module, matrix_lr=0.02):
    groups = group_parameters(module, lr=0.01, matrix_lr=matrix_lr, weight_decay=0.1)
    return MuonAdamW(groups)


@pytest.mark.parametrize("shape", [(6, 6), (8, 3), (3, 8), (5, 4, 8)])
def test_singular_values_come_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(matrices))
    assert values.max() < 1.3
    assert values.median() > 0.6


def test_weights_are_sorted_by_what_they_are():
    module = Small()
    groups = group_parameters(module, lr=0.1, matrix_lr=0.2, weight_decay=0.3)
    assert [len(group["params"]) for group in groups] == [2, 1, 1, 1]
    assert [group["has_muon"] for group in groups] == [True, False, False, False]
    assert [group["weight_decay"] for group in groups] == [0.3, 0, 0, 0]
    assert groups[1]["params"] == [module.words]


def test_every_weight_of_a_denoiser_has_a_group():
    module = BlockDenoiser(BlockConfig(V=20, D=8, num_layers=1, num_heads=2))
    groups = group_parameters(module, lr=0.1, matrix_lr=0.2, weight_decay=0.3)
    sorted_out = {weight: i for i, group in enumerate(groups) for weight in group["params"]}
    assert set(sorted_out) == set(module.parameters())
    assert sorted_out[module.own_embed] == sorted_out[module.layers[0].qkv] == 0
    assert sorted_out[module.words] == 1
    assert sorted_out[module.head] == 2
    assert sorted_out[module.start] == 3


def test_the_authors_decay_goes_by_name():
    denoiser = tiny.encoder("roberta")
    decayed, kept = author_groups(denoiser, lr=1.0, weight_decay=0.01)
    names = {id(weight): name for name, weight in denoiser.named_parameters()}
    decayed, kept = ({names[id(w)] for w in group["params"]} for group in (decayed, kept))
    assert decayed | kept == set(names.values())
    assert "simplex_embed.weight" in decayed
    assert "backbone.lm_head.layer_norm.weight" in decayed
    assert {"time_embed.weight", "time_embed.bias"} <= kept
    assert "backbone.roberta.embeddings.LayerNorm.weight" in kept


def test_adamw_matches_torch():
    ours, theirs = Small(), Small()
    groups = group_parameters(ours, lr=0.01, matrix_lr=0.0, weight_decay=0.1)
    plain = [weight for name, weight in theirs.named_parameters() if name != "vector"]
    reference = torch.optim.AdamW(
        [{"params": plain, "weight_decay": 0.1}, {"params": theirs.vector, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
        eps=1e-10,
    )
    ours_losses = learn(ours, MuonAdamW(groups), 20)
    assert_close(ours_losses, learn(theirs, reference, 20), roundings=NETWORK)


def test_muon_learns():
    module = Small()
    losses = learn(module, optimiser_of(module), 60)
    assert losses[-1] < losses[0] / 2


def test_a_run_continues_from_its_state():
    module = Small()
    optimiser = optimiser_of(module)
    learn(module, optimiser, 5)
    resumed = Small()
    resumed.load_state_dict(module.state_dict())
    fresh = optimiser_of(resumed)
    fresh.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert learn(resumed, fresh, 5, start=5) == learn(module, optimiser, 5, start=5)


def test_a_closure_gives_the_loss_back():
    module = Small()

    def closure():
        loss = module(torch.arange(9))
        loss.backward()
        return loss

    assert optimiser_of(module).step(closure).item() > 0


def test_the_mean_follows_and_returns():
    module = Small()
    ema = Ema(module, decay=0.5)
    before = module.words.detach().clone()
    with torch.no_grad():
        module.words += 1
    for _ in range(50):
        ema.update(module)
    ema.copy_to(module)
    torch.testing.assert_close(module.words.detach(), before + 1, atol=1e-3, rtol=0)


def test_the_mean_continues_from_its_state():
    module = Small()
    one, two = Ema(module, decay=0.9), Ema(module, decay=0.9)
    learn(module, optimiser_of(module), 2)
    one.update(module)
    two.load_state_dict(one.state_dict())
    one.update(module)
    two.update(module)
    assert one.steps == two.steps
    assert all(one.mean[name].equal(two.mean[name]) for name in one.mean)
