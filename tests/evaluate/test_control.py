"""Accuracy of control: on hand-made verdicts, and from end to end."""

import json

import numpy as np
import pytest
import torch
from tests import tiny

from ssdlm.cli import main
from ssdlm.evaluate import control
from ssdlm.evaluate.bootstrap import Bootstrap
from ssdlm.evaluate.samples import Pool, Sample
from ssdlm.guidance import TextClassifier
from ssdlm.guidance.grammar import parse_control

POOLS = [
    Pool("a ", (Sample("good", None), Sample("bad", None))),
    Pool("the ", (Sample("dull", None), Sample("good", None))),
]


class Oracle(TextClassifier):
    """A classifier of three words that finds neutral likelier than all; it keeps what it read."""

    @property
    def labels(self):
        return ["negative", "neutral", "positive"]

    def log_probs(self, texts, *, batch_size=64):
        self.model.extend(texts)
        scores = {"bad": [0.4, 0.5, 0.1], "good": [0.1, 0.5, 0.4], "dull": [0.25, 0.5, 0.25]}
        return torch.tensor([scores[text.split()[-1]] for text in texts]).log()


def oracle():
    return Oracle([], tiny.tokenizer())


@pytest.mark.parametrize(
    ("spec", "right"),
    [
        ("x=positive", [1, 1]),
        ("x=2", [1, 1]),
        ("x!=negative", [1, 1]),
        ("x=negative", [1, 1]),
        ("x=neutral", [2, 2]),
    ],
)
def test_neutral_is_left_out_unless_it_is_asked_for(spec, right):
    found = control.accuracy(POOLS, oracle(), parse_control(spec))
    assert found.total.tolist() == right


class Lone(Oracle):
    """A classifier of one label, which some texts have."""

    @property
    def labels(self):
        return ["spam"]

    def log_probs(self, texts, *, batch_size=64):
        return super().log_probs(texts)[:, :1].add(0.5)


@pytest.mark.parametrize(("spec", "right"), [("x=spam", [1, 0]), ("x!=spam", [1, 2])])
def test_a_label_alone_is_there_where_it_is_more_likely_than_not(spec, right):
    found = control.accuracy(POOLS, Lone([], tiny.tokenizer()), parse_control(spec))
    assert found.total.tolist() == right


def test_a_text_is_prompt_and_continuation():
    classifier = oracle()
    control.accuracy(POOLS, classifier, parse_control("x=positive"))
    assert classifier.model == ["a good", "a bad", "the dull", "the good"]


def test_prompts_count_as_often_as_they_are_drawn():
    share = control.accuracy(POOLS, Lone([], tiny.tokenizer()), parse_control("x=spam"))
    assert share(np.ones(2)) == 0.25
    assert share(np.array([2.0, 0.0])) == 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.save_classifier(tmp_path_factory.mktemp("control") / "classifier")
    tiny.tokenizer().save(path)
    return path


def test_one_control_has_a_plain_name_and_several_their_own(folder):
    one = control.control_figures(POOLS, Bootstrap(2, 20), guides=[f"{folder}=positive"])
    assert [figure.name for figure in one] == ["control_internal"]
    wishes = [f"{folder}=positive", f"{folder}!=positive"]
    two = control.control_figures(POOLS, Bootstrap(2, 20), judges=wishes)
    assert [figure.name for figure in two] == [f"control_external:{spec}" for spec in wishes]
    assert two[0].value + two[1].value == pytest.approx(1.0)


def test_the_command_reports_both_accuracies(folder, tmp_path, capsys):
    rows = [{"prompt": "a", "text": " good one", "tokens": [1, 2]}]
    (tmp_path / "g.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["evaluate", str(tmp_path / "g.jsonl"), "--metrics", "dist"]
    arguments += ["--out", str(tmp_path / "r.json"), "--control-guide", f"{folder}=positive"]
    other = tiny.save_classifier(tmp_path / "other", seed=3)
    tiny.tokenizer().save(other)
    assert main([*arguments, "--control-judge", f"{other}=2"]) == 0
    metrics = json.loads((tmp_path / "r.json").read_text())["metrics"]
    assert metrics["control_internal"] in (0.0, 1.0)
    assert metrics["control_external"] in (0.0, 1.0)
    assert main([*arguments, "--control-judge", f"{folder}=2"]) == 2
    assert f"is also the guide {folder}=positive" in capsys.readouterr().err
    assert main([*arguments, "--control-judge", f"{other}=happy"]) == 2
    assert "0: negative, 1: neutral, 2: positive" in capsys.readouterr().err
