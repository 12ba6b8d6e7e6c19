"""Guides without a tokenizer: small, found by a model's tokens, refused by other ones."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests import causal, tiny
from tests.guidance.test_training import QUICK, data, train  # noqa: F401

from ssdlm import SSDLM, classifier_guide
from ssdlm.cli import main
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.slim import KEY, WORDS, Binder, FramedTokenizer, tokenizer_digest
from ssdlm.guidance.training import train_guide
from ssdlm.serve.guides import Guides
from ssdlm.storage.builtin import GUIDES, unpacked_smollm2
from ssdlm.tokenizer import load_tokenizer

UNPACKED = unpacked_smollm2()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return causal.save(tmp_path_factory.mktemp("causal") / "llama", "llama")


@pytest.fixture(scope="module")
def made(data, folder):  # noqa: F811
    """An ordinary guide, and in its folder a slim one for the model."""
    report = train(data, data / "guide")
    slim = {"out": data / "guide" / "llama", "config": replace(QUICK, epochs=4)}
    return train(data, words=folder, is_slim=True, **slim), report.out


@pytest.fixture(scope="module")
def model(folder):
    return SSDLM.from_pretrained(folder)


def test_a_slim_guide_learns_and_has_no_tokenizer(made, data):  # noqa: F811
    report, _ = made
    assert report.held_out.accuracy > 0.9
    out = data / "guide" / "llama"
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip
    assert load_file(out / "model.safetensors")[WORDS].dtype == torch.int8
    assert json.loads((out / "config.json").read_text())[KEY] == tokenizer_digest(tiny.tokenizer())


def test_the_same_command_finds_it_complete(made, data, folder):  # noqa: F811
    config = replace(QUICK, epochs=4)
    out = data / "guide" / "llama"
    again = train(data, out, words=folder, is_slim=True, config=config)
    assert again.was_finished
    assert again.held_out == made[0].held_out


def test_ids_are_two_higher_and_mean_the_same():
    own = tiny.tokenizer()
    framed = FramedTokenizer(own)
    (ids,) = framed.encode_plain(["a river"])
    strings = framed.token_strings()
    assert [strings[token] for token in ids] == [
        own.token_strings()[t] for t in own.encode("a river")
    ]
    assert strings[framed.end_of_text] == own.token_strings()[own.end_of_text]
    assert framed.V == len(strings) == own.V + 2


def test_the_guide_of_the_models_tokens_is_found_by_any_name(made, model):
    report, ordinary = made
    controls = model.engine.controls
    texts = {}
    for name in (ordinary, report.out):
        assert controls.binder.knows(str(name))
        for control in (f"{name}=last", classifier_guide(name, "last")):
            guide = controls.guide(control, model.options)
            assert isinstance(guide.tokenizer, FramedTokenizer)
            assert guide is controls.guide(control, model.options)
            texts[model.generate("the river", length=12, control=control, seed=1).text] = control
    served = Guides({"letters": ordinary})
    options = model.options.change(control=["letters=last"])
    texts[model.generate("the river", options=served.fitted(options), length=12, seed=1).text] = 0
    (steered,) = texts
    assert steered != model.generate("the river", length=12, seed=1).text
    assert sum(map(steered.count, "zy")) > sum(map(steered.count, "ab"))


def test_it_weighs_particles_as_it_reads_texts(made, model):
    report, _ = made
    (way,) = model.engine.controls.ways(
        model.options.change(control=[f"{report.out}=last"], particles=4)
    )
    assert way.scorer is not None
    assert way.guide is not None
    last, first = way.scorer(["zzyz", "aab"])
    assert last > 0 > first


def test_another_model_of_other_tokens_is_refused_in_one_line(
    made, model, folder, tmp_path, capsys
):
    report, ordinary = made
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "tokenizer.json").write_text(
        (folder / "tokenizer.json").read_text().replace('"z":', '"Z":')
    )
    command = ["generate", "a", "--model", str(other), "--length", "2", "--control"]
    assert main([*command, f"{report.out}=last"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {report.out} was made for another tokenizer")
    assert "train it again" in line
    assert not SSDLM.from_pretrained(other).engine.controls.binder.knows(str(report.out))
    # The ordinary guide, in whose folder it is, has words of its own.
    guide = SSDLM.from_pretrained(other).engine.controls.guide(f"{ordinary}=last", model.options)
    assert guide.tokenizer is None


@pytest.mark.parametrize("names", [("first", "other"), ("last", "first")])
def test_labels_of_other_names_or_in_another_order_are_refused(made, model, tmp_path, names):
    _, ordinary = made
    guide = shutil.copytree(ordinary, tmp_path / "guide")
    path = guide / "llama" / "config.json"
    settings = json.loads(path.read_text()) | {"id2label": dict(enumerate(names))}
    path.write_text(json.dumps(settings | {"label2id": {name: i for i, name in enumerate(names)}}))
    with pytest.raises(ValueError, match=r"llama has the labels .*; train it again with") as caught:
        model.generate("the river", length=2, control=f"{guide}=last")
    assert "\n" not in str(caught.value)


def test_a_folder_where_a_config_should_be_is_one_line(made, model, tmp_path):
    _, ordinary = made
    guide = shutil.copytree(ordinary, tmp_path / "guide")
    (guide / "junk" / "config.json").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"junk/config\.json is a folder and not a JSON file;"):
        model.generate("the river", length=2, control=f"{guide}=last")


def test_it_reads_no_text_without_its_model(made):
    with pytest.raises(ValueError, match="reads texts by a model's tokenizer"):
        load_text_classifier(made[0].out)
    with pytest.raises(ValueError, match="slim guides are new ones"):
        train_guide(["a.jsonl"], out="b", start="c", is_slim=True)


@pytest.mark.parametrize(
    ("home", "most", "V"),
    [
        (GUIDES / "sentiment" / "smollm2", 2e6, 49152),
        (GUIDES / "tense" / "smollm2", 2e6, 49152),
        (GUIDES / "sentiment" / "mini", 4e5, 8192),
    ],
)
def test_those_that_are_built_in_are_small_and_have_the_labels_of_the_other(home, most, V):
    assert sum(path.stat().st_size for path in home.iterdir()) < most
    assert not list(home.glob("tokenizer*"))
    small, other = (json.loads((each / "config.json").read_text()) for each in (home, home.parent))
    assert small["id2label"] == other["id2label"]
    assert small["vocab_size"] == V + 2


def test_builtin_mini_is_steered_by_its_own():
    binder = Binder(load_tokenizer("builtin:mini"))
    guide = binder.find(classifier_guide("sentiment", "positive"))
    assert guide.home == str(GUIDES / "sentiment" / "mini")
    assert binder.find(classifier_guide("tense", "past")).home == str(GUIDES / "tense")


@pytest.mark.skipif(not UNPACKED.is_dir(), reason="smollm2 is not unpacked here")
@pytest.mark.parametrize("name", ["sentiment", "tense"])
def test_those_for_smollm2_are_made_for_its_tokenizer(name):
    digest = tokenizer_digest(load_tokenizer(UNPACKED))
    assert json.loads((GUIDES / name / "smollm2" / "config.json").read_text())[KEY] == digest
