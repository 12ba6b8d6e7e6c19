"""Recipes: the paper's numbers, and names that can be found."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tests import tiny as tiny_models

from ssdlm.config import BlockConfig, EncoderConfig
from ssdlm.settings import override
from ssdlm.storage.checkpoint import build
from ssdlm.train.learning_rate import lr_scale
from ssdlm.train.optimizer import author_groups
from ssdlm.train.recipes import (
    RECIPES,
    mini,
    paper_large,
    paper_mini,
    paper_rocstories,
    recipe,
    tiny,
)


def test_paper_large_has_the_papers_numbers():
    config = paper_large()
    train = config.train
    assert isinstance(config.model, EncoderConfig)
    assert (config.model.K, config.model.B, config.model.T) == (5.0, 25, 5000)
    assert (config.data.max_len, train.batch, train.steps) == (200, 6144, 100_000)
    assert (train.lr, train.warmup, train.schedule) == (1e-4, 2000, "linear")
    assert (train.beta1, train.beta2, train.eps, train.weight_decay) == (0.9, 0.999, 1e-6, 0.01)
    assert (train.clip, train.ema, train.init) == (0.0, 0.0, "roberta-large")
    assert (train.objective, train.levels, train.share_c) == ("one_block", "uniform", 24)


def test_paper_rocstories_has_the_appendix_numbers():
    config = paper_rocstories()
    assert config.model.B == 25
    assert config.data.max_len == 100
    assert (config.train.batch, config.train.steps, config.train.lr) == (512, 20_000, 1e-4)
    assert config.train.init == "bert-base-uncased"


def test_mini_has_34m_parameters_at_a_vocabulary_of_8192():
    model = override(mini(), ["V=8192"]).model
    assert isinstance(model, BlockConfig)
    count = sum(weight.numel() for weight in build(model).parameters())
    assert count == pytest.approx(34e6, rel=0.02)


def test_the_papers_recipe_at_the_size_of_mini_differs_in_what_is_the_papers():
    large, small, own = paper_large(), paper_mini(), mini()
    assert (small.train.batch, small.data) == (own.train.batch, own.data)
    for name in ("objective", "levels", "stratify", "optimizer", "decay_rule", "ema"):
        assert getattr(small.train, name) == getattr(large.train, name)
    model = replace(small.model, backbone=small.model.backbone | {"vocab_size": 8192})
    counts = [sum(p.numel() for p in build(m).parameters()) for m in (model, own_model(own))]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def own_model(config):
    return replace(config.model, V=8192)


def test_tiny_is_not_compiled_and_saves_within_five_seconds():
    train = tiny().train
    assert not train.compile
    assert 0 < train.save_seconds < 5


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_found_by_its_name_and_says_what_it_is(name):
    assert recipe(name) == RECIPES[name]()
    assert RECIPES[name].__doc__


def test_a_recipe_is_found_by_its_earlier_name():
    assert "twin" not in RECIPES
    assert recipe("twin") == recipe("autoregressive")


def test_an_unknown_recipe_is_an_error_that_lists_them():
    with pytest.raises(ValueError, match=r"no recipe 'tinny'; did you mean 'tiny'\?.*paper_large"):
        recipe("tinny")


def test_the_authors_decay_goes_by_name():
    denoiser = tiny_models.encoder("roberta")
    decayed, kept = author_groups(denoiser, lr=1.0, weight_decay=0.01)
    names = {id(weight): name for name, weight in denoiser.named_parameters()}
    decayed, kept = ({names[id(w)] for w in group["params"]} for group in (decayed, kept))
    assert decayed | kept == set(names.values())
    assert "simplex_embed.weight" in decayed
    assert "backbone.lm_head.layer_norm.weight" in decayed
    assert {"time_embed.weight", "time_embed.bias"} <= kept
    assert "backbone.roberta.embeddings.LayerNorm.weight" in kept


def test_the_learning_rate_rises_then_falls_as_named():
    base = override(tiny(), ["steps=100", "warmup=10", "cooldown=0.2"])

    def scales(schedule: str) -> list[float]:
        train = override(base, [f"schedule={schedule}"]).train
        return [lr_scale(step, train, steps=100) for step in range(100)]

    for schedule in ("constant", "linear", "cosine", "wsd"):
        rates = scales(schedule)
        assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
        assert max(rates) == 1.0
        assert all(b <= a for a, b in itertools.pairwise(rates[10:]))
    assert scales("constant")[-1] == 1.0
    assert scales("linear")[-1] == pytest.approx(1 / 90)
    assert scales("cosine")[55] == pytest.approx(0.5)
    assert scales("wsd")[80] == 1.0
    assert scales("wsd")[90] == pytest.approx(0.5)
