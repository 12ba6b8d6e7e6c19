"""The recipe that trains an adapter: what a run keeps, and whose model it is for."""

import json
import math

import pytest
import torch
from tests import causal

from ssdlm import SSDLM
from ssdlm.storage.checkpoint import load_denoiser
from ssdlm.train import configure, train
from ssdlm.train import levels as shapes
from ssdlm.train.examples import Examples
from ssdlm.train.levels import LevelSampler, block_index
from ssdlm.train.recipes import recipe

SMALL = ("precision=fp32", "batch=4", "data.max_len=33", "model.rank=2", "validate_points=2")
SMALL += ("validate_sequences=2", "log_every=1", "save_every=2", "save_seconds=0", "warmup=2")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return causal.save(tmp_path_factory.mktemp("base") / "model", "llama-tied")


def adapt(base, store, out, *more):
    return train(configure("adapt", [f"init={base}", *SMALL, *more]), data=[store], out=out)


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def test_a_run_learns_keeps_the_adapter_alone_and_resumes_to_the_bit(base, store, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    report = adapt(base, store, whole, "train.steps=6")
    assert report.validation["bound"] > 0
    assert math.isfinite(report.validation["next_token"])
    adapt(base, store, cut, "train.steps=6")
    kept = sorted(cut.glob("checkpoints/step-*"))
    kept[-1].rename(cut / "away")  # as if it had been killed before step 6
    assert adapt(base, store, cut, "train.steps=6").resumed == 4
    assert losses(cut) == losses(whole)
    assert torch.equal(load_denoiser(cut).own_embed, load_denoiser(whole).own_embed)
    denoiser = load_denoiser(whole)
    assert denoiser.own_embed.abs().max() > 0
    assert (whole / "model.safetensors").stat().st_size < (
        base / "model.safetensors"
    ).stat().st_size
    more = adapt(whole, store, tmp_path / "more", "train.steps=1")
    assert more.loss < losses(whole)[0] * 1.5
    assert load_denoiser(tmp_path / "more").config.digest == denoiser.config.digest


def test_a_run_begins_from_int8_and_none_goes_on_there(base, store, tmp_path):
    adapt(base, store, tmp_path / "run", "train.steps=2")
    small = tmp_path / "small"
    SSDLM.from_pretrained(tmp_path / "run").save_pretrained(small, quantise="int8")
    with pytest.raises(ValueError, match=r"small is not empty .* not the folder of a run; give"):
        adapt(base, store, small, "train.steps=4")
    adapt(small, store, tmp_path / "more", "train.steps=1", "train.lr=1e-12", "train.ema=0")
    begun, own = (load_denoiser(folder).state_dict() for folder in (tmp_path / "more", small))
    for name, value in own.items():
        assert torch.allclose(begun[name], value, atol=1e-6), name


def test_another_base_is_refused_by_name(base, store, tmp_path):
    adapt(base, store, tmp_path / "run", "train.steps=1")
    other = causal.save(tmp_path / "other", "llama-tied", seed=1)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").unlink()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"base": str(other)}))
    with pytest.raises(ValueError, match=f"other weights than those of {other}"):
        load_denoiser(tmp_path / "run")


def test_what_takes_no_adapter_is_refused(store, tmp_path):
    with pytest.raises(ValueError, match="give init=MODEL"):
        adapt("", store, tmp_path / "none")
    gpt2 = causal.save(tmp_path / "gpt2", "gpt2")
    with pytest.raises(ValueError, match="takes no adapter"):
        adapt(gpt2, store, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_of_other_tokens_is_refused(base, store, tmp_path):
    own = json.loads((store / "tokenizer.json").read_text())
    (base / "tokenizer.json").write_text(json.dumps(own))
    adapt(base, store, tmp_path / "alike", "train.steps=1")
    words = sorted(own["model"]["vocab"], key=own["model"]["vocab"].get)
    words[-1], words[-2] = words[-2], words[-1]
    own["model"]["vocab"] = {word: place for place, word in enumerate(words)}
    (base / "tokenizer.json").write_text(json.dumps(own))
    with pytest.raises(
        ValueError, match=f"has other tokens than {base}/tokenizer.json, .*; prepare the data"
    ):
        adapt(base, store, tmp_path / "other", "train.steps=1")
    assert not (tmp_path / "other").exists()
    (base / "tokenizer.json").unlink()


def test_shares_of_the_shapes_of_levels_are_as_asked_for():
    settings = recipe("adapt").train
    sampler, blocks = LevelSampler.of(settings, 5000), block_index(160, B=16)
    seeds = torch.arange(400)
    examples = Examples(torch.zeros(400, 160, dtype=torch.int64), seeds, seeds, 3)
    drawn = sampler.draw(examples, blocks).unflatten(1, (10, 16))
    rise = drawn.diff(dim=-1)
    is_noise, is_shared = (drawn == 1).all(-1), (rise == 0).all(-1)
    is_gap = (drawn[..., -1] == 0) & (drawn > 0).any(-1)
    is_ramp = (rise >= 0).all(-1) & ~is_shared
    assert is_noise.float().mean() == pytest.approx(0.07, abs=0.03)
    assert (is_shared & ~is_noise).float().mean() == pytest.approx(0.35, abs=0.05)
    assert is_gap.float().mean() == pytest.approx(0.10, abs=0.02)
    assert is_ramp.float().mean() == pytest.approx(0.33, abs=0.05)


def test_a_gap_is_clean_on_both_sides():
    blocks = block_index(24, B=8)
    u = torch.rand(5, 300, 3, generator=torch.Generator().manual_seed(0))
    progress = shapes.gaps(u, blocks).unflatten(1, (3, 8))
    assert (progress[..., -1] == 0).all()
    is_open = (progress > 0).long()
    edges = is_open.diff(dim=-1).abs().sum(-1) + is_open[..., 0]
    assert edges.max() == 2  # one stretch
    widths = is_open.sum(-1)
    assert widths.max() == 7
    level = progress.amax(-1, keepdim=True)
    is_flat = ((progress == level) | (progress == 0)).all(-1)
    assert 0.4 < is_flat.float().mean() < 0.8
    assert (is_open[..., 0] == 0).float().mean() > 0.3
