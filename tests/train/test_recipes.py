"""Recipes: the paper's numbers, and names that can be found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ssdlm.config import BlockConfig, EncoderConfig
from ssdlm.settings import override
from ssdlm.storage.checkpoint import build
from ssdlm.train.recipes import (
    RECIPES,
    large,
    mini,
    paper_large,
    paper_mini,
    paper_rocstories,
    recipe,
    tiny,
)
from ssdlm.train.run import is_compiled
from ssdlm.train.sharded_weights import outline


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


def test_large_has_1_3_billion_parameters_at_robertas_vocabulary():
    config = override(large(), ["V=50265"])
    count = sum(weight.numel() for weight in outline(config.model).parameters())
    assert count == pytest.approx(1.3e9, rel=0.02)
    assert config.train.sharding == "fsdp"


def test_the_papers_recipe_at_the_size_of_mini_differs_in_what_is_the_papers():
    paper, small, own = paper_large(), paper_mini(), mini()
    assert (small.train.batch, small.data) == (own.train.batch, own.data)
    for name in ("objective", "levels", "stratify", "optimizer", "decay_rule", "ema"):
        assert getattr(small.train, name) == getattr(paper.train, name)
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
    with pytest.warns(FutureWarning, match="recipe twin is now autoregressive"):
        assert recipe("twin") == recipe("autoregressive")


def test_an_unknown_recipe_is_an_error_that_lists_them():
    with pytest.raises(ValueError, match=r"no recipe 'tinny'; did you mean 'tiny'\?.*paper_large"):
        recipe("tinny")


def test_a_cpu_is_not_compiled_for_and_a_gpu_is():
    config = recipe("mini")
    assert config.train.compile
    denoiser = build(BlockConfig(V=8, D=4, num_layers=1, num_heads=1))
    assert not is_compiled(config, denoiser, torch.device("cpu"))
    assert is_compiled(config, denoiser, torch.device("cuda"))
