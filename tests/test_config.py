"""Configs: strict overrides, strict JSON, and every field documented."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from ssdlm import config as config_module
from ssdlm.config import BlockConfig, Config, DataConfig, EncoderConfig, TrainConfig
from ssdlm.settings import differences, from_json, override, to_json
from ssdlm.train.recipes import RECIPES


def test_a_dotted_key_sets_its_field():
    config = override(Config(), ["train.lr=3e-5", "model.D=64", "data.weights=1,2.5"])
    assert config.train.lr == 3e-5
    assert config.model.D == 64
    assert config.data.weights == (1.0, 2.5)


def test_a_bare_key_finds_its_section():
    config = override(Config(), ["steps=20", "init=some/folder", "max_len=40", "K=3"])
    assert config.train.steps == 20
    assert config.train.init == "some/folder"
    assert config.data.max_len == 40
    assert config.model.K == 3.0


def test_the_last_of_two_overrides_wins():
    assert override(Config(), ["steps=1", "train.steps=2"]).train.steps == 2


def test_a_value_may_hold_an_equals_sign():
    assert override(Config(), ["init=a=b"]).train.init == "a=b"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("train.learning_rate", "train.lr"),
        ("learning_rate", "train.lr"),
        ("train.stepz", "train.steps"),
        ("batch_size", "train.batch"),
        ("model.heads", "model.num_heads"),
        ("datas.max_len", "data.max_len"),
        ("warm_up", "train.warmup"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(key, nearest):
    with pytest.raises(ValueError, match=f"no field '{key}'; the nearest is '{nearest}'"):
        override(Config(), [f"{key}=1"])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("steps=2.5", "train.steps=2.5 is not a whole number"),
        ("steps=many", "train.steps=many is not a whole number"),
        ("lr=fast", "train.lr=fast is not a number"),
        ("lr=nan", "train.lr=nan is out of range"),
        ("compile=1", "train.compile=1 is not true or false"),
        ("schedule=exp", "train.schedule=exp is not one of constant, linear, cosine, wsd"),
        ("steps=0", "train.steps=0 is out of range; use 1 or more"),
        ("ema=1", "train.ema=1.0 is out of range; use 0 or more and less than 1"),
        ("beta1=1.1", "train.beta1=1.1 is out of range; use 0 or more and less than 1"),
        ("beta1=1", "train.beta1=1.0 is out of range; use 0 or more and less than 1"),
        ("max_len=1", "data.max_len=1 is out of range; use 2 or more"),
        ("train.device=hpu", "train.device=hpu is not one of auto, cpu"),
        ("eps=0", "train.eps=0.0 is out of range; use more than 0"),
        ("block_lengths=5,0", "train.block_lengths=5,0 is out of range; use numbers from 1"),
        ("data.weights=1,0", "data.weights"),
        ("steps", "'steps' has no value; write key=value"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Config(), [assignment])


def test_booleans_are_read_in_any_case():
    assert override(Config(), ["compile=True"]).train.compile
    assert not override(Config(), ["compile=false"]).train.compile


def test_a_backbone_is_given_as_json():
    config = Config(model=EncoderConfig())
    assert override(config, ['backbone={"model_type": "bert"}']).model.backbone == {
        "model_type": "bert"
    }


@pytest.mark.parametrize("name", RECIPES)
def test_json_round_trip(name):
    config = RECIPES[name]()
    assert from_json(Config, json.loads(json.dumps(to_json(config)))) == config


def test_json_says_which_denoiser_it_is_of():
    assert to_json(BlockConfig())["denoiser"] == "block"
    assert to_json(Config(model=EncoderConfig()))["model"]["denoiser"] == "encoder"


def test_json_with_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="no field 'wamup'; the nearest is 'warmup'"):
        from_json(TrainConfig, {"wamup": 3})


def test_a_field_of_an_earlier_version_is_accepted_at_the_value_that_is_left():
    assert from_json(TrainConfig, {"lr_end": 0.0, "steps": 3}) == TrainConfig(steps=3)
    with pytest.raises(ValueError, match=r"lr_end=0\.1 is a setting of an earlier version"):
        from_json(TrainConfig, {"lr_end": 0.1})


@pytest.mark.parametrize("value", ["3", 2.5, True, None])
def test_json_of_the_wrong_type_is_refused(value):
    with pytest.raises(ValueError, match="steps="):
        from_json(TrainConfig, {"steps": value})


def test_absent_fields_keep_their_defaults():
    assert from_json(TrainConfig, {"steps": 3}) == TrainConfig(steps=3)


def test_configs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Config().train.steps = 3  # pyright: ignore


def test_differences_are_named_with_both_values():
    old, new = to_json(Config()), to_json(override(Config(), ["lr=0.5", "model.D=8"]))
    assert differences(old, new) == ["model.D: 512 -> 8", "train.lr: 0.001 -> 0.5"]
    assert differences(old, old) == []


def docstrings(cls: type) -> dict[str, str]:
    """The text under each field of a config."""
    tree = ast.parse(inspect.getsource(config_module))
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
    return {
        node.target.id: after.value.value
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


@pytest.mark.parametrize("cls", [Config, DataConfig, TrainConfig, BlockConfig, EncoderConfig])
def test_every_field_has_a_docstring_under_it(cls):
    assert set(docstrings(cls)) == {field.name for field in fields(cls)}


@pytest.mark.parametrize("cls", [DataConfig, TrainConfig, BlockConfig, EncoderConfig])
def test_the_training_page_has_a_row_for_every_field(cls):
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    for name, text in docstrings(cls).items():
        default = to_json(cls())[name]
        shown = default if isinstance(default, str) else json.dumps(default)
        cell = f"`{shown}`" if default not in ("", [], {}) else ""
        assert f"| `{name}` | {cell} | {text} |" in page


NUMBERS = [
    (section.name, item.name)
    for section in fields(Config)
    for item in fields(getattr(Config(), section.name))
    if item.type in ("int", "float")
]


@pytest.mark.parametrize(("section", "name"), NUMBERS)
@pytest.mark.parametrize("text", ["9" * 40, "-" + "9" * 40, "1e308", "nan"])
def test_every_number_has_a_range(section, name, text):
    with pytest.raises(
        ValueError, match=rf"^{section}\.{name}=.* is not|^({section}\.)?{name}=.* is out"
    ):
        override(Config(), [f"{section}.{name}={text}"])
