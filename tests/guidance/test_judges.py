"""Judges of finished texts: a network over words, trained from files, and a count of verbs."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from ssdlm.cli import main
from ssdlm.evaluate.run import evaluate
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.judges import (
    VERBS,
    VerbCounter,
    WordConfig,
    WordJudge,
    WordNetwork,
    count_verbs,
    load_text_judge,
    save_text_judge,
)
from ssdlm.guidance.training import train_judge

FILLER = [
    "the",
    "film",
    "of",
    "a",
    "man",
    "who",
    "went",
    "to",
    "town",
    "with",
    "it",
    "and",
    "then",
    "some",
    "more",
]
SIDES = {"good": ["lovely", "superb", "moving"], "bad": ["dull", "awful", "boring"]}


def texts(count, seed, extra=()):
    """Rows with a word that tells their label among others that do not."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        label = ("good", "bad")[number % 2]
        words = draw.choices(FILLER, k=12)
        words.insert(draw.randrange(12), draw.choice(SIDES[label]))
        rows.append({"text": " ".join([*words, *extra]), "label": label})
    return rows


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A judge of two labels, and its report."""
    folder = tmp_path_factory.mktemp("judge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssdlm.guidance.training.judge.WordConfig.num_words", 512)
        report = train_judge(
            [write(folder / "train.jsonl", texts(700, 0))],
            test=write(folder / "test.jsonl", texts(60, 1)),
            out=folder / "judge",
        )
    return report


def test_a_judge_learns_and_says_how_well_on_what_it_did_not_see(made):
    assert made.score.texts == 60
    assert made.score.accuracy > 0.7
    assert f"accuracy {100 * made.score.accuracy:.1f} % on 60 texts" in str(made)
    judge = load_text_classifier(made.out)
    assert judge.labels == ["bad", "good"]
    rows = texts(60, 1)
    guesses = judge.log_probs([row["text"] for row in rows]).argmax(-1).tolist()
    pairs = zip(rows, guesses, strict=True)
    right = sum(row["label"] == judge.labels[guess] for row, guess in pairs)
    assert right / 60 == made.score.accuracy, "what was measured is what was stored"


def test_a_texts_answer_does_not_depend_on_its_neighbours(made):
    judge = load_text_classifier(made.out)
    some = ["lovely", "", "dull " * 30, "A man. who went, 5 times!"]
    together = judge.log_probs(some)
    alone = torch.cat([judge.log_probs([text]) for text in some])
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(together.exp().sum(-1), torch.ones(4))


def test_the_same_files_and_seed_give_the_same_judge(tmp_path):
    data = write(tmp_path / "data.jsonl", texts(80, 2))
    for name in ("one", "two"):
        train_judge([data], out=tmp_path / name, seed=3)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_words_that_it_is_to_go_without_change_nothing(tmp_path, capsys):
    told = texts(80, 4)
    rows = [row | {"text": f"{row['text']} {row['label']}ness"} for row in told]
    data = write(tmp_path / "data.jsonl", rows)
    words = ["train-judge", str(data), "--out", str(tmp_path / "judge")]
    assert main([*words, "--without", "goodness", "Badness"]) == 0
    assert "wrote" in capsys.readouterr().out
    judge = load_text_classifier(tmp_path / "judge")
    bare, full = judge.log_probs(["a lovely film", "a lovely film Badness goodness"])
    assert torch.equal(bare, full)
    assert judge.encode("a goodness film") == judge.encode("a film") != judge.encode("a filmy film")


def test_verbs_are_counted_as_the_rule_says():
    assert count_verbs('He was here, wasn\'t he? "Is" it so. Had I known!') == {
        "past": 3,
        "present": 1,
    }
    counter = load_text_classifier("verbs")
    assert counter == VerbCounter() and counter.labels == [*VERBS, "neither"]
    said = counter.log_probs(["it was", "it is", "it goes", "it is and was", ""])
    assert said.argmax(-1).tolist() == [0, 1, 2, 2, 2]


def test_judges_are_named_as_other_classifiers_are(made):
    rows = [
        {"prompt": "It", "text": " was lovely and superb, and moving.", "tokens": [1]},
        {"prompt": "He", "text": " was moving; lovely and superb too.", "tokens": [1]},
        {"prompt": "We", "text": " are in a dull and awful boring film.", "tokens": [1]},
    ]
    asked = [f"{made.out}=good", "verbs=past", "verbs=present"]
    report = evaluate(rows, metrics=("dist",), control_judges=asked)
    found = [report.metrics[f"control_external:{one}"] for one in asked]
    assert found == pytest.approx([2 / 3, 2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "is not whole"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "is not whole"),
        (lambda folder: change(folder, D=7), "is not whole"),
        (lambda folder: change(folder, widths=None), "is not whole"),
        (lambda folder: change(folder, id2label={"1": "a"}), "is not whole"),
    ],
)
def test_a_broken_folder_is_refused_in_one_line(made, tmp_path, break_it, message):
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(made.out, folder)
    break_it(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load_text_classifier(folder)
    assert "\n" not in str(caught.value)


def change(folder, **values):
    """Change settings of a judge's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_labels_that_cannot_be_told_apart_are_refused(tmp_path):
    rows = [{"text": f"text {number}", "label": "one"} for number in range(30)]
    with pytest.raises(ValueError, match="1 label"):
        train_judge([write(tmp_path / "data.jsonl", rows)], out=tmp_path / "judge")
    assert not (tmp_path / "judge").exists()


def test_sizes_are_held_against_the_weights_before_they_take_memory(tmp_path, monkeypatch):
    config = WordConfig(("a", "b"), num_words=8, D=4, num_filters=2)
    save_text_judge(WordJudge(WordNetwork(config), config), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"num_words": 1 << 20}))
    made = []
    monkeypatch.setattr(
        torch.nn.Embedding, "reset_parameters", lambda self: made.append(self.weight.device.type)
    )
    with pytest.raises(ValueError, match="is not whole"):
        load_text_judge(tmp_path)
    assert made == ["meta"]
