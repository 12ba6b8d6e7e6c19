"""Training: what is learnt, what is written, what is refused, and how it is split."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny
from tests.processes import LIMIT, SMALL, make_store, spawn

from ssdlm.api import SSDLM
from ssdlm.config import EncoderConfig
from ssdlm.data.shards import TokenStore
from ssdlm.diffusion.noise import mix
from ssdlm.storage.files import locked
from ssdlm.train import configure, train
from ssdlm.train import loop as training
from ssdlm.train.checkpoint_folders import digests
from ssdlm.train.initial_weights import build, count_tokens, load_init
from ssdlm.train.recipes import paper_mini

ENCODER = {
    "model_type": "roberta",
    "vocab_size": tiny.V,
    "max_position_embeddings": 66,
} | tiny.SIZES


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory) -> Path:
    """A finished run with a moving average."""
    out = tmp_path_factory.mktemp("runs") / "trained"
    train(configure("tiny", [*SMALL, "ema=0.9"]), data=[store], out=out)
    return out


def log_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in log_of(out)]


def test_training_lowers_the_loss(store, tmp_path):
    settings = ["D=32", "num_layers=1", "batch=8", "steps=60", "lr=1e-2"]
    train(configure("tiny", settings), data=[store], out=tmp_path)
    found = losses(tmp_path)
    assert sum(found[-5:]) < 0.8 * sum(found[:5])


def test_every_logged_step_has_its_figures(trained):
    lines = log_of(trained)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for line in lines:
        assert {"step", "loss", "lr", "tokens", "tokens_per_s", "grad_norm"} <= set(line)
        assert line["loss"] == pytest.approx(line["block"] + line["next_token"], abs=1e-4)
    assert lines[-1]["tokens"] == 12 * 4 * 32


def test_the_last_step_is_validated_and_its_profile_kept(trained):
    figures = log_of(trained)[-1]["validation"]
    assert figures["bound"] > 0
    assert figures["next_token"] > 0
    assert figures["bound_bits_per_byte"] == pytest.approx(figures["bound"] / 0.6931, rel=0.05)
    profile = figures["profile"]
    assert not list(trained.rglob("profile.json"))  # nothing would read it
    assert [progress for progress, _ in profile] == sorted(progress for progress, _ in profile)
    assert profile[0][1] <= profile[-1][1]


def test_the_run_folder_opens_as_a_model(trained):
    model = SSDLM.from_pretrained(trained, device="cpu")
    assert model.options.B == (8,)
    text = model.generate("the river", length=8, T=2, seed=0).text
    assert len(text) > 0


def test_a_checkpoint_opens_as_a_model_and_tells_its_settings(trained):
    folder = trained / "checkpoints" / "step-8"
    SSDLM.from_pretrained(folder, device="cpu")
    settings = json.loads((folder / "train.json").read_text())
    assert settings["model"]["V"] == tiny.V
    assert settings["train"]["ema"] == 0.9


def test_out_has_the_averaged_weights(trained):
    newest = trained / "checkpoints" / "step-12"
    shown, average, raw = (
        load_file(path)
        for path in (
            trained / "model.safetensors",
            newest / "ema.safetensors",
            newest / "model.safetensors",
        )
    )
    assert all(torch.equal(shown[name], average[name]) for name in average)
    assert any(not torch.equal(shown[name], raw[name]) for name in raw)


def test_a_finished_run_has_nothing_left_to_do(store, trained):
    before = (trained / "log.jsonl").read_bytes()
    report = train(configure("tiny", [*SMALL, "ema=0.9"]), data=[store], out=trained)
    assert (report.step, report.resumed, report.loss) == (12, 12, None)
    assert (trained / "log.jsonl").read_bytes() == before


def test_a_run_of_an_earlier_version_goes_on(store, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "checkpoints" / "step-12")
    for path in (copy / "run.json", copy / "checkpoints" / "step-8" / "train.json"):
        settings = json.loads(path.read_text())
        asked = settings["asked"]["config"] if path.name == "run.json" else settings
        asked["train"]["lr_end"] = 0.0
        path.write_text(json.dumps(settings))
    refresh_manifest(copy / "checkpoints" / "step-8")
    report = train(configure("tiny", [*SMALL, "ema=0.9"]), data=[store], out=copy)
    assert (report.resumed, report.step) == (8, 12)
    assert losses(copy) == losses(trained)


def refresh_manifest(folder: Path) -> None:
    """Give a checkpoint that was edited on purpose the digests of what it has now."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"files": digests(folder)}))


@pytest.mark.parametrize("setting", ["lr=1e-4", "model.D=32", "data.shift=false", "seed=1"])
def test_a_run_with_another_config_is_refused_and_the_field_named(store, trained, setting):
    with pytest.raises(ValueError, match=setting.split("=")[0].split(".")[-1]):
        train(configure("tiny", [*SMALL, "ema=0.9", setting]), data=[store], out=trained)


def test_a_run_on_other_data_is_refused(trained, tmp_path):
    other = make_store(tmp_path / "other", turn=3)
    with pytest.raises(ValueError, match="data"):
        train(configure("tiny", [*SMALL, "ema=0.9"]), data=[other], out=trained)


def test_checkpoints_of_an_unknown_run_are_not_touched(store, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    (copy / "run.json").unlink()
    for fresh in (False, True):
        with pytest.raises(ValueError, match=r"is not empty .* not the folder of a run"):
            train(configure("tiny", SMALL), data=[store], out=copy, fresh=fresh)
    assert (copy / "checkpoints" / "step-12").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_is_no_run_is_refused_and_stays_as_it_is(store, tmp_path, fresh):
    out = tmp_path / "model"
    (out / "checkpoints").mkdir(parents=True)
    for name in ("model.safetensors", "log.jsonl", "checkpoints/mine.pt"):
        (out / name).write_text("mine")
    with pytest.raises(ValueError, match=r"model is not empty \(checkpoints is there\)"):
        train(configure("tiny", SMALL), data=[store], out=out, fresh=fresh)
    assert {path.name for path in out.rglob("*")} == {
        "model.safetensors",
        "log.jsonl",
        "checkpoints",
        "mine.pt",
    }


def test_a_run_does_not_remove_the_weights_that_it_starts_from(store, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    before = (copy / "model.safetensors").read_bytes()
    for init in (copy, copy / "checkpoints" / "step-12"):
        config = configure("tiny", [*SMALL, f"init={init}"])
        with pytest.raises(ValueError, match=r"train.init=.* is in --out"):
            train(config, data=[store], out=copy, fresh=True)
    assert (copy / "model.safetensors").read_bytes() == before


def test_a_refused_run_leaves_no_folder(store, tmp_path):
    with pytest.raises(ValueError, match="needs a BlockDenoiser"):
        config = configure("paper_mini", ["objective=all_blocks", "tensorboard=false"])
        train(config, data=[store], out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_second_run_on_one_folder_is_refused_while_the_first_is_at_work(store, tmp_path):
    out, settings = tmp_path / "run", [*SMALL, "steps=400", "save_every=0"]
    first = spawn(settings, [store], out)
    while first.is_alive() and not (out / "log.jsonl").exists():
        time.sleep(0.01)
    with pytest.raises(ValueError, match=r"another `ssdlm train` is writing to .*run"):
        train(configure("tiny", settings), data=[store], out=out)
    assert first.is_alive()
    first.kill()
    first.join(LIMIT)
    with locked(out, ""):
        pass  # a kill unlocks


def test_fresh_starts_over(store, tmp_path):
    for lr in ("1e-3", "2e-3"):
        settings = [*SMALL, "steps=2", f"lr={lr}"]
        report = train(configure("tiny", settings), data=[store], out=tmp_path, fresh=True)
        assert report.resumed == 0
    assert [line["step"] for line in log_of(tmp_path)] == [1, 2]


def test_micro_batches_do_not_change_the_losses(store, tmp_path):
    for name, size in (("one", 0), ("two", 2), ("uneven", 3)):
        settings = [*SMALL, f"micro_batch={size}", "own_share=0.3", "ramp_share=0.3"]
        train(configure("tiny", settings), data=[store], out=tmp_path / name)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    assert losses(tmp_path / "uneven") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


def test_a_mixture_of_stores_is_trained_on(store, tmp_path):
    other = make_store(tmp_path / "other", turn=5)
    settings = [*SMALL, "data.weights=3,1"]
    for name in ("first", "again"):
        train(configure("tiny", settings), data=[store, other], out=tmp_path / name)
    assert losses(tmp_path / "first") == losses(tmp_path / "again")


def test_the_authors_recipe_trains_an_encoder_from_a_masked_lm(store, tmp_path):
    from transformers import AutoConfig, AutoModelForMaskedLM

    backbone = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**ENCODER))
    backbone.save_pretrained(tmp_path / "lm")
    settings = ["steps=3", "batch=4", "micro_batch=2", "share_c=2", "precision=fp32", "B=6"]
    settings += ["max_len=32", f"init={tmp_path / 'lm'}", "log_every=1", "validate_sequences=2"]
    settings += ["validate_points=2", "tensorboard=false"]
    config = configure("paper_rocstories", settings)
    for name in ("one", "again"):
        train(config, data=[store], out=tmp_path / name)
    assert losses(tmp_path / "one") == losses(tmp_path / "again")
    assert "bound" in log_of(tmp_path / "one")[-1]["validation"]
    assert SSDLM.from_pretrained(tmp_path / "one", device="cpu").denoiser.config.B == 6


def test_an_encoder_is_trained_from_random_weights_with_other_settings(store, tmp_path):
    settings = ["objective=one_block", "steps=2", "batch=2", "recompute=true", "levels=band"]
    config = configure("tiny", settings)
    config = replace(config, model=EncoderConfig(backbone=ENCODER, B=6))
    report = train(config, data=[store], out=tmp_path)
    assert report.step == 2


def test_a_block_denoiser_takes_the_papers_objective(store, tmp_path):
    train(configure("tiny", [*SMALL, "objective=one_block"]), data=[store], out=tmp_path)
    assert len(losses(tmp_path)) == 12


def test_init_starts_from_a_checkpoints_weights_alone(store, trained, tmp_path):
    settings = ["steps=4", "rewarmup=2", f"init={trained}", "save_seconds=0", "batch=4"]
    config = configure("tiny", settings)
    assert config.model.D == 16
    assert configure("paper_large", [f"init={trained}", "next_token_weight=0.5"]).model.D == 16
    report = train(config, data=[store], out=tmp_path / "tuned")
    lines = log_of(tmp_path / "tuned")
    assert report.resumed == 0
    assert lines[0]["loss"] < losses(trained)[0]
    assert lines[0]["lr"] == pytest.approx(config.train.lr / 2)


def test_init_reads_raw_or_averaged_weights_also_in_bf16(store, trained, tmp_path):
    newest = trained / "checkpoints" / "step-12"
    for kind, name in (("raw", "model"), ("ema", "ema")):
        denoiser = load_init(configure("tiny", [f"init={trained}", f"init_from={kind}"]))
        expected = load_file(newest / f"{name}.safetensors")
        assert torch.equal(denoiser.words, expected["words"])
    halved = {name: value.bfloat16() for name, value in expected.items()}
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_bytes((newest / "config.json").read_bytes())
    save_file(halved, tmp_path / "half" / "model.safetensors")
    denoiser = load_init(configure("tiny", [f"init={tmp_path / 'half'}"]))
    assert torch.allclose(denoiser.words, expected["words"], atol=0.02)
    assert denoiser.words.dtype == torch.float32


def test_an_autoregressive_model_is_trained_validated_and_resumed(store, tmp_path):
    settings = [*SMALL, "block_weight=0.0", "ema=0.9", "optimizer=muon"]
    whole = train(configure("tiny", settings), data=[store], out=tmp_path / "whole")
    last = log_of(whole.out)[-1]
    assert last["loss"] == last["next_token"] and last["block"] == 0
    figures = last["validation"]
    assert figures["next_token"] > 0 and figures["profile"] == [] and "bound" not in figures
    shutil.copytree(whole.out, tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "step-12")
    report = train(configure("tiny", settings), data=[store], out=tmp_path / "part")
    assert 0 < report.resumed < 12 and losses(report.out) == losses(whole.out)


def test_the_context_stream_may_be_trained_alone_at_first(store, tmp_path):
    settings = [*SMALL, "context_share=0.34", "log_every=1", "weight_decay=0", "keep=3"]
    report = train(configure("tiny", settings), data=[store], out=tmp_path)
    assert [line["block"] == 0 for line in log_of(report.out)] == [True] * 4 + [False] * 8
    first = load_file(tmp_path / "checkpoints" / "step-4" / "model.safetensors")
    last = load_file(tmp_path / "checkpoints" / "step-12" / "model.safetensors")
    torch.manual_seed(mix(0, 0))
    fresh = build(configure("tiny", [*settings, f"V={len(first['words'])}"]).model)
    assert torch.equal(first["own_embed"], fresh.own_embed)
    assert not torch.equal(first["words"], fresh.words)
    assert not torch.equal(last["own_embed"], fresh.own_embed)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bf16 says so
def test_the_optimiser_and_schedule_variants_run(store, tmp_path):
    settings = [*SMALL, "optimizer=muon", "schedule=wsd", "steps=4", "precision=bf16", "clip=0"]
    report = train(configure("tiny", settings), data=[store], out=tmp_path)
    assert report.loss is not None


def test_tensorboard_gets_the_losses(store, tmp_path):
    pytest.importorskip("tensorboard")
    train(configure("tiny", [*SMALL, "tensorboard=true"]), data=[store], out=tmp_path)
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.V=10"], "vocabulary of 10 and the data one of 64"),
        (["max_len=100000"], "less than one sequence"),
        (["objective=one_block", "max_len=8"], "no room for a context"),
        (["objective=one_block", "context_share=0.5"], "context_share=0.5 is of objective=all_bl"),
        (["init=nowhere"], "not the folder of an SSD-LM checkpoint"),
        (["data.weights=1,2"], "2 numbers for 1 data folders"),
        (["tracker=wandb"], "not installed"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_a_remedy(store, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(configure("tiny", settings), data=[store], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_refused_for_its_tracker_leaves_an_earlier_one_as_it_is(store, tmp_path):
    train(configure("tiny", SMALL), data=[store], out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="wandb, which is not installed"):
        train(configure("tiny", [*SMALL, "tracker=wandb"]), data=[store], out=tmp_path, fresh=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_loss_that_is_not_finite_stops_the_run(store, tmp_path):
    with pytest.raises(ValueError, match=r"loss of step .* lower train.lr"):
        train(configure("tiny", [*SMALL, "lr=1e30", "clip=0"]), data=[store], out=tmp_path)


def test_the_unigram_counts_the_training_tokens(store):
    tokens = TokenStore.open(store)
    counts = count_tokens([tokens], tokens.V)
    assert counts.sum() == len(tokens)


def let_steps_take_a_second(monkeypatch, *, die_at: int = 0) -> None:
    """Make time stand still but for steps: the first of each kind takes 100 s, as if compiled."""
    now, seen, real = [0.0], set(), training.train_step

    def train_step(run):
        if run.step == die_at > 0:
            raise KeyboardInterrupt
        kind = run.is_context_only
        now[0] += 1.0 if kind in seen else 100.0
        seen.add(kind)
        return real(run)

    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(training, "train_step", train_step)


BY_THE_CLOCK = [*SMALL, "train.steps=1000", "seconds=20", "warmup=1", "log_every=3"]


@pytest.mark.parametrize("log_every", [1, 3, 50])
def test_a_run_by_the_clock_ends_in_time_whatever_it_compiled(
    log_every, store, tmp_path, monkeypatch
):
    let_steps_take_a_second(monkeypatch)
    settings = [*BY_THE_CLOCK, f"log_every={log_every}", "save_every=0"]
    report = train(configure("tiny", settings), data=[store], out=tmp_path)
    assert report.step == 21
    assert report.validation is not None
    assert (tmp_path / "model.safetensors").exists()


def test_by_the_clock_the_context_comes_first_for_its_share_of_the_time(
    store, tmp_path, monkeypatch
):
    let_steps_take_a_second(monkeypatch)
    settings = [*BY_THE_CLOCK, "context_share=0.5", "log_every=1"]
    report = train(configure("tiny", settings), data=[store], out=tmp_path)
    assert report.step == 22  # two of them were compiled
    is_alone = [line["block"] == 0 for line in log_of(tmp_path)]
    assert is_alone == sorted(is_alone, reverse=True)
    assert 9 <= sum(is_alone) <= 12


def test_by_the_clock_the_learning_rate_falls_to_the_end(store, tmp_path, monkeypatch):
    let_steps_take_a_second(monkeypatch)
    settings = [*BY_THE_CLOCK, "log_every=1", "lr=1.0", "schedule=wsd", "cooldown=0.5"]
    train(configure("tiny", settings), data=[store], out=tmp_path)
    rates = [line["lr"] for line in log_of(tmp_path)]
    assert rates[:10] == [1.0] * 10
    assert rates[-5:] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1], abs=0.05)


def test_a_run_by_the_clock_that_was_stopped_has_the_seconds_left_that_it_had(
    store, tmp_path, monkeypatch
):
    settings = [*BY_THE_CLOCK, "save_every=4"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        let_steps_take_a_second(patch, die_at=10)
        train(configure("tiny", settings), data=[store], out=tmp_path)
    let_steps_take_a_second(monkeypatch)
    report = train(configure("tiny", settings), data=[store], out=tmp_path)
    # Steps 2 to 8 took 7 s; step 9 compiles anew and is not counted; 13 s are left.
    assert (report.resumed, report.step) == (8, 22)
    again = train(configure("tiny", settings), data=[store], out=tmp_path)
    assert (again.resumed, again.step) == (22, 22)


def test_an_encoder_without_a_vocabulary_takes_the_datas(store, tmp_path):
    sizes = ["batch=4", "micro_batch=2", "share_c=2", "max_len=30", "train.steps=1"]
    small = replace(configure("paper_mini", sizes), model=replace(paper_mini().model, B=8))
    backbone = small.model.backbone | {"hidden_size": 16, "num_hidden_layers": 1}
    backbone |= {"num_attention_heads": 2, "intermediate_size": 32}
    small = replace(small, model=replace(small.model, backbone=backbone))
    small = replace(small, train=replace(small.train, precision="fp32", compile=False))
    train(small, data=[store], out=tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["backbone"]["vocab_size"] == tiny.V


def test_a_run_says_at_once_what_it_is_doing(store, tmp_path, capsys):
    train(configure("tiny", [*SMALL, "steps=2"]), data=[store], out=tmp_path / "run")
    first = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(r"training 0\.\dM parameters on cpu in fp32, from step 0 to \d+", first)
