"""Checkpoints with one thing wrong: refused in one line, before memory is filled."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tests import tiny
from tests.mutations import check_reader

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.config import BlockConfig
from ssdlm.storage import checkpoint, files
from ssdlm.tokenizer import load_tokenizer
from ssdlm.train import configure
from ssdlm.train.initial_weights import load_init

RELEASED = Path(__file__).parents[1] / "parity" / "sampling"
MODELS = {"block": tiny.block, "encoder": tiny.encoder}


@pytest.fixture
def folder(tmp_path, request) -> Path:
    """A tiny model, or the authors' layout, on disk."""
    kind, path = getattr(request, "param", "block"), tmp_path / "model"
    if kind == "released":
        return Path(shutil.copytree(RELEASED, path))
    options = DecodeConfig(length=2, B=(2,), T=2)
    SSDLM(MODELS[kind](), tiny.tokenizer(), options).save_pretrained(path)
    return path


def write_something(folder: Path) -> None:
    model = SSDLM.from_pretrained(folder, device="cpu")
    model.generate([[1, 2]], length=2, B=2, T=2)


@pytest.mark.parametrize("folder", ["block", "encoder", "released"], indirect=True)
def test_every_damage_to_a_config_is_refused_in_one_line_or_runs(folder, unchecked):
    assert check_reader(folder / "config.json", lambda: write_something(folder)) > 30


def test_every_damage_to_generation_options_is_refused_in_one_line_or_runs(folder, unchecked):
    path = folder / "generation_config.json"
    assert check_reader(path, lambda: checkpoint.load_options(folder)) > 100


def test_every_damage_to_a_tokenizer_is_refused_in_one_line_or_read(folder, unchecked):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["model"]["vocab"] = dict(list(settings["model"]["vocab"].items())[:3])
    settings["added_tokens"][0]["id"] = 3
    path.write_text(json.dumps(settings))

    def read():
        tokenizer = load_tokenizer(folder)
        tokenizer.decode(tokenizer.encode("a b c"))
        tokenizer.token_strings()

    assert check_reader(path, read) > 60


OTHER_MODELS = {
    "unknown token": {"unk_token": "<none>"},
    "word pieces": {"type": "WordPiece", "unk_token": "<none>", "max_input_chars_per_word": 9},
    "words": {"type": "WordLevel", "unk_token": "<none>"},
    "merge of no tokens": {"merges": [["zz", "qq"]]},
    "merge into no token": {"merges": [["a", "b"]]},
    "the same in one word": {"merges": ["a b"]},
    "merge after a prefix": {"merges": [["a", "b"]], "continuing_subword_prefix": "##"},
    "one merge of three": {"merges": ["a b c"]},
    "merge of one": {"merges": [["a"]]},
    "merge of numbers": {"merges": [[0, 1]]},
    "unknown number": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]},
    "no unknown number": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]},
}


OTHER_PARTS = {
    "prefix": {"model": {"continuing_subword_prefix": "zzz", "merges": [["a", "b"]]}},
    "pieces": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "template": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "X", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("change", OTHER_PARTS)
def test_what_the_library_panics_of_is_refused_in_one_line(folder, change, capfd):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings |= {**OTHER_PARTS[change], "model": settings["model"] | {"type": "BPE"}}
    settings["model"] |= {"merges": []} | OTHER_PARTS[change].get("model", {})
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"json is not a tokenizer [^\n]*; get it anew$"):
        load_tokenizer(folder)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("change", OTHER_MODELS)
def test_tokens_outside_the_vocabulary_are_refused_in_one_line(folder, change, capfd):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["model"] |= {"continuing_subword_prefix": ""} | OTHER_MODELS[change]
    path.write_text(json.dumps(settings))
    words = ["generate", "xyz \u4e2d", "--model", str(folder), "--device", "cpu"]
    assert cli.main(words) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and str(path) in said


@pytest.mark.parametrize(
    ("folder", "change"),
    [
        ("block", {"num_layers": 10**6}),
        ("block", {"D": 10**9}),
        ("block", {"V": 2**31 - 1}),
        ("block", {"K": 1e308}),
        ("block", {"num_heads": 32}),  # one number a head, where two make a rotation
        ("encoder", {"num_hidden_layers": 10**6}),
        ("encoder", {"num_attention_heads": -1}),
        ("encoder", {"vocab_size": 10**10}),
        ("encoder", {"layer_norm_eps": float("nan")}),
        ("encoder", {"layer_norm_eps": -10.0}),
        ("released", {"num_hidden_layers": 10**6}),
        ("released", {"num_attention_heads": -1}),
        ("released", {"layer_norm_eps": float("nan")}),
    ],
    indirect=["folder"],
    ids=str,
)
def test_sizes_are_held_against_the_weights_before_anything_is_built(folder, change, unchecked):
    settings = json.loads((folder / "config.json").read_text())
    settings.get("backbone", settings).update(change)
    (folder / "config.json").write_text(json.dumps(settings))
    began = time.monotonic()
    with pytest.raises(ValueError) as caught:
        SSDLM.from_pretrained(folder, device="cpu")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 5


def test_ids_far_beyond_the_tokens_are_refused(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": 0', '"a": 4000000000'))
    with pytest.raises(ValueError, match=r"64 tokens and ids up to 4000000000; number its tokens"):
        load_tokenizer(path)


ODD_TENSORS = {
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "int8": lambda x: x.to(torch.int8),
    "bool": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD_TENSORS)
@pytest.mark.parametrize("folder", ["released"], indirect=True)
def test_tensors_of_an_odd_kind_are_refused(folder, kind):
    path = folder / "pytorch_model.bin"
    weights = torch.load(path, weights_only=True)
    key = next(key for key, value in weights.items() if value.dim() == 2)
    torch.save(weights | {key: ODD_TENSORS[kind](weights[key])}, path)
    with pytest.raises(ValueError) as caught:
        checkpoint.load_denoiser(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert "tensor; give weights as plain float32" in message or "truncated or corrupt" in message


@pytest.mark.parametrize("kind", [torch.int8, torch.bool])
def test_whole_numbers_without_scales_are_refused(folder, kind):
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {"words": weights["words"].to(kind)}, path)
    with pytest.raises(ValueError, match=r"words is a (int8|bool) tensor; give weights as plain"):
        checkpoint.load_denoiser(folder)


@pytest.mark.parametrize(
    "device", ["hpu", "xla", "privateuseone", "ipu:0", "", "cuda:99", "x" * 999]
)
def test_a_device_that_is_not_there_is_refused_in_one_line(device):
    with pytest.raises(ValueError, match=r"device='.* is not there \(.*\); use auto or cpu") as got:
        checkpoint.resolve_device(device)
    assert "\n" not in str(got.value)
    assert len(str(got.value)) < 600


def test_convert_on_a_full_disk_is_one_line_and_leaves_nothing(folder, monkeypatch, capsys):
    def save(tensors, path, metadata):
        raise SafetensorError("Error: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("ssdlm.storage.tensors.save_file", save)
    target = folder.parent / "converted"
    assert cli.main(["convert", str(folder), str(target)]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1
    assert list(folder.parent.iterdir()) == [folder]


def test_what_a_killed_convert_left_is_taken_up_by_the_next(folder):
    target = folder.parent / "converted"
    left = folder.parent / ".converted.partial"
    left.mkdir()
    (left / "half").touch()
    writing = pytest.raises(ValueError, match="another process is writing")
    with files.locked(left, ""), writing, files.new_folder(target):
        raise AssertionError("two at a time")
    assert cli.main(["convert", str(folder), str(target)]) == 0
    assert sorted(folder.parent.iterdir()) == [target, folder]
    assert not (target / "half").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**6},
        {"num_attention_heads": -1},
        {"hidden_size": 10**9},
        {"vocab_size": "many"},
        {"id2label": [1]},
        {"id2label": {"a": "positive"}},
        {"layer_norm_eps": "x"},
        {"model_type": {}},
        {"guide_lam": [1]},
    ],
    ids=str,
)
def test_a_guide_with_odd_settings_is_refused_in_one_line(tmp_path, unchecked, change):
    folder = tiny.save_classifier(tmp_path / "guide")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | change))
    model, began = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(T=2)), time.monotonic()
    with pytest.raises(ValueError) as caught:
        model.generate("ab", length=2, B=2, control=f"{folder}=positive")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 20


class Deed:
    """What does something when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


def test_a_guide_that_is_a_pickle_with_code_is_refused_without_unsafe_advice(tmp_path, unchecked):
    folder = tiny.save_classifier(tmp_path / "guide")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights | {"more": Deed(tmp_path / "done")}, folder / "pytorch_model.bin")
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(T=2))
    with pytest.raises(ValueError, match=r"wants to run code; get them as safetensors") as caught:
        model.generate("ab", length=2, B=2, control=f"{folder}=positive")
    message = str(caught.value)
    assert str(folder) in message and "\n" not in message
    assert not any(word in message for word in ("weights_only", "torch", "trust", "allowlist"))
    assert not (tmp_path / "done").exists()


def test_a_network_for_which_there_is_no_memory_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"there is no room for a network of V=64, D=2000000000"):
        checkpoint.build(BlockConfig(V=64, D=2_000_000_000, num_layers=1, num_heads=2))


def test_a_run_holds_the_sizes_of_its_first_weights_against_them(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_layers": 10**6}))
    with pytest.raises(ValueError, match=r"num_layers=1000000 does not go with .*safetensors"):
        load_init(configure("tiny", [f"init={folder}"]))
