"""Weights on disk: round trips, the authors' layout, and files that are not what they should be."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests import tiny

from ssdlm.api import SSDLM
from ssdlm.config import BlockConfig
from ssdlm.options import DecodeConfig
from ssdlm.storage import checkpoint

RELEASED = Path(__file__).parents[1] / "parity" / "sampling"


def same(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in theirs)


@pytest.fixture
def saved(tmp_path):
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=7, B=(3, 4), T=5))
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


def test_a_saved_model_comes_back_whole(saved):
    model, folder = saved
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    again = SSDLM.from_pretrained(folder, device="cpu")
    assert same(again.denoiser, model.denoiser)
    assert again.options == model.options
    assert again.denoiser.config == model.denoiser.config
    assert again.generate("abc").tokens == model.generate("abc").tokens


def test_a_folder_from_before_plausible_steers_as_it_did(saved):
    folder = saved[1]
    path = folder / "generation_config.json"
    own = json.loads(path.read_text())
    assert own.pop("plausible") > 0
    path.write_text(json.dumps(own | {"threshold": 2.0}))
    options = SSDLM.from_pretrained(folder, device="cpu").options
    assert (options.threshold, options.plausible) == (2.0, 0.0)


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_tied_weights_are_stored_once_and_stay_tied(kind, tmp_path):
    denoiser = tiny.encoder(kind)
    checkpoint.save_denoiser(denoiser, tmp_path)
    stored = checkpoint.read_tensors(tmp_path / "model.safetensors")
    assert len(stored) < len(denoiser.state_dict())
    again = checkpoint.load_denoiser(tmp_path)
    assert same(again, denoiser)
    head = again.backbone.get_output_embeddings().weight
    assert head.data_ptr() == again.words.weight.data_ptr()


def test_the_released_layout_converts_to_ours(tmp_path):
    released = SSDLM.from_pretrained(RELEASED, device="cpu")
    released.save_pretrained(tmp_path / "ours")
    ours = SSDLM.from_pretrained(tmp_path / "ours", device="cpu")
    assert same(ours.denoiser, released.denoiser)
    settings = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert settings["model_type"] == "ssdlm"
    assert settings["denoiser"] == "encoder"


def damaged(tmp_path, source=RELEASED):
    return Path(shutil.copytree(source, tmp_path / "damaged"))


def check_refused(folder, *words):
    with pytest.raises(ValueError) as caught:
        checkpoint.load_denoiser(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "embed_sum_layer.pt", "timestep_layer.pt"])
def test_a_truncated_weight_file_is_refused(tmp_path, name):
    folder = damaged(tmp_path)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    check_refused(folder, name, "truncated or corrupt")


def test_a_missing_file_is_named(tmp_path):
    folder = damaged(tmp_path)
    (folder / "pytorch_model.bin").unlink()
    check_refused(folder, "pytorch_model.bin is missing")
    (folder / "config.json").unlink()
    check_refused(folder, "config.json is missing")


def test_garbage_is_refused(tmp_path):
    folder = damaged(tmp_path)
    (folder / "timestep_layer.pt").write_bytes(b"not a checkpoint")
    check_refused(folder, "timestep_layer.pt", "get it anew")
    (folder / "config.json").write_text("{")
    check_refused(folder, "config.json is not JSON")


def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(tmp_path):
    folder, marker = damaged(tmp_path), tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save({"weight": Evil()}, folder / "timestep_layer.pt")
    check_refused(folder, "timestep_layer.pt", "wants to run code")
    (folder / "timestep_layer.pt").write_bytes(pickle.dumps(Evil()))
    check_refused(folder, "timestep_layer.pt")
    assert not marker.exists()


def test_a_config_that_describes_another_model_is_refused(tmp_path):
    folder = damaged(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    check_refused(folder, "lacks", "config.json describes another model")
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 1}))
    check_refused(folder, "also contains", "config.json describes another model")
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": 90}))
    check_refused(folder, "(96,", "(90,")
    (folder / "config.json").write_text(json.dumps(settings | {"model_type": "no-such-model"}))
    check_refused(folder, "'no-such-model'")


def test_untied_weights_under_a_tied_config_are_refused(tmp_path):
    folder = damaged(tmp_path, RELEASED.parent / "greedy")
    weights = checkpoint.read_tensors(folder / "pytorch_model.bin")
    key = next(key for key in weights if key.endswith("lm_head.decoder.weight"))
    torch.save(weights | {key: weights[key] + 1}, folder / "pytorch_model.bin")
    check_refused(folder, "tie_word_embeddings")


def test_a_masked_lm_alone_is_not_an_ssd_lm(tmp_path):
    folder = damaged(tmp_path)
    (folder / "embed_sum_layer.pt").unlink()
    check_refused(folder, "embed_sum_layer.pt", "train from it with init=")


def test_our_own_files_are_checked_too(saved):
    _, folder = saved
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-100])
    check_refused(folder, "model.safetensors", "truncated or corrupt")
    weights.unlink()
    check_refused(folder, "model.safetensors is missing")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"denoiser": "other"}))
    check_refused(folder, "denoiser='other'")


def test_a_name_that_is_nothing_is_refused():
    for name in ("no-such-folder", "./nowhere/at-all", "a/b/c"):
        with pytest.raises(ValueError, match="not a folder with a checkpoint"):
            checkpoint.find(name)
    with pytest.raises(ValueError, match="the Hub did not give it"):
        checkpoint.find("no-such-org/no-such-model")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": float("nan")}, "K=nan"),
        ({"K": -1.0}, "K=-1.0"),
        ({"B": 0}, "B=0"),
        ({"T": -1}, "T=-1"),
        ({"denoiser": []}, "denoiser="),
        ({"vocab_size": 10**12}, "different models"),
        ({"hidden_size": -32}, "hidden_size=-32 does not go with"),
        ({"hidden_size": "a"}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads=0 does not go with"),
    ],
    ids=str,
)
def test_settings_no_model_can_have_are_refused_before_memory_is_filled(saved, change, words):
    _, folder = saved
    settings = json.loads((folder / "config.json").read_text())
    home = settings if change.keys() <= settings.keys() else settings["backbone"]
    home.update(change)
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=words):
        SSDLM.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("change", [{"V": 0}, {"D": -4}, {"num_heads": 0}, {"num_layers": -1}])
def test_a_block_denoiser_of_impossible_sizes_is_refused(change):
    with pytest.raises(ValueError, match="no network has"):
        checkpoint.build(BlockConfig(**{"V": 50, "D": 32, "num_heads": 2} | change))


def test_a_checkpoint_with_all_keys_of_older_versions_opens(tmp_path):
    model = SSDLM(tiny.block(), tiny.tokenizer())
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert not settings.keys() & {"has_time", "has_tied_head"}
    older = settings | {"has_time": True, "has_tied_head": False}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert same(SSDLM.from_pretrained(tmp_path, device="cpu").denoiser, model.denoiser)
    for name, value in (("has_time", False), ("has_tied_head", True)):
        (tmp_path / "config.json").write_text(json.dumps(older | {name: value}))
        with pytest.raises(ValueError, match=f"{name}={value} is a setting of an earlier version"):
            SSDLM.from_pretrained(tmp_path, device="cpu")


def test_weights_that_are_not_numbers_are_refused(saved):
    _, folder = saved
    tensors = checkpoint.read_tensors(folder / "model.safetensors")
    tensors["time_embed.bias"] = tensors["time_embed.bias"] / 0
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"time_embed\.bias contains infinities or NaN"):
        SSDLM.from_pretrained(folder, device="cpu")


def test_a_device_without_memory_is_refused(saved):
    with pytest.raises(ValueError, match="device='meta'"):
        SSDLM.from_pretrained(saved[1], device="meta")
