"""Off-the-shelf classifiers, fitted to a model's vocabulary."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM
from ssdlm import guidance as guides
from ssdlm.guidance import builtin_guides, classifier_guide, grammar, load_guide, parse_control
from ssdlm.guidance.classifiers import frame_ids, load_by_transformers
from ssdlm.guidance.fitting import suggested_lam
from ssdlm.guidance.grammar import check_lam, label_index


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save_classifier(tmp_path_factory.mktemp("guide") / "classifier")


def one_hot(ids):
    return 1000.0 * torch.nn.functional.one_hot(ids, tiny.V).float()


CONTEXT, BLOCK = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])


@pytest.mark.parametrize(
    ("sees", "special", "ids"),
    [
        ("block", False, [8, 9]),
        ("block", True, [0, 8, 9, 2]),
        ("context", False, [5, 6, 7, 8, 9]),
        ("context", True, [0, 5, 6, 7, 8, 9, 2]),
    ],
)
def test_a_certain_simplex_is_read_as_its_tokens(folder, sees, special, ids):
    guide = classifier_guide(folder, "positive", sees=sees, has_special_tokens=special)
    got = guide.fit(V=tiny.V)(CONTEXT, one_hot(BLOCK))
    scores = guide.classifier(torch.tensor([ids])).logits.log_softmax(-1)
    assert_close(got, scores[:, 2], roundings=NETWORK)


def test_log_prob_has_a_gradient_in_every_row(folder):
    guide = classifier_guide(folder, 0).fit(V=tiny.V)
    logits = torch.randn(2, 3, tiny.V, requires_grad=True)
    (grad,) = torch.autograd.grad(guide(CONTEXT.expand(2, -1), logits).sum(), logits)
    assert (grad.abs().amax((1, 2)) > 0).all()


def test_a_long_text_keeps_its_latest_part(folder):
    guide = classifier_guide(folder, "positive").fit(V=tiny.V)
    context = torch.randint(tiny.V, (1, 200), generator=torch.Generator().manual_seed(0))
    cut = guide(context[:, -60:], one_hot(BLOCK))
    assert_close(guide(context, one_hot(BLOCK)), cut, roundings=NETWORK)


def test_labels_go_by_name_or_number(folder):
    assert classifier_guide(folder, "Positive").label == 2
    assert classifier_guide(folder, 1).label == 1
    with pytest.raises(ValueError, match="label='happy' is not one of") as caught:
        classifier_guide(folder, "happy")
    assert "0: negative, 1: neutral, 2: positive" in str(caught.value)
    with pytest.raises(ValueError, match="label=3 is not one of") as caught:
        classifier_guide(folder, 3)
    assert str(folder) in str(caught.value)


def test_a_label_that_is_called_by_a_number_is_meant_by_its_name():
    names = {0: "-1", 1: "0", 2: "1"}
    assert [label_index(names, name) for name in ("-1", "0", "1", "2")] == [0, 1, 2, 2]
    assert [label_index(names, number) for number in (0, 1, 2)] == [0, 1, 2]
    cases = {0: "Yes", 1: "yes", 2: "no"}
    assert [label_index(cases, name) for name in ("Yes", "yes", "NO")] == [0, 1, 2]
    with pytest.raises(ValueError, match="label='YES' is the name of 2 labels"):
        label_index(cases, "YES")


def test_another_vocabulary_without_tokenizers_is_refused(folder):
    with pytest.raises(ValueError, match="64 tokens where the model has 65"):
        classifier_guide(folder, 0).fit(V=65)


def test_tokens_are_matched_by_their_strings():
    rows = guides.rows_by_string(["b", "a", "<eot>"], ["a", "x", "b", "</s>"], 2, 3)
    assert rows.tolist() == [2, 0, 3]
    # RoBERTa's vocabulary has GPT-2's end of text as well, untrained.
    rows = guides.rows_by_string(["a", "<eot>"], ["<s>", "</s>", "a", "<eot>"], 1, 1)
    assert rows.tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"lacks 2 of the model's 3 tokens \(such as 'q', 'z'\)"):
        guides.rows_by_string(["a", "q", "z"], ["a"], None, None)


def test_a_nested_vocabulary_reads_the_classifiers_own_rows(folder, tmp_path):
    """The same tokens under other ids give the same log-probability."""
    tokenizer = tiny.tokenizer()
    tokenizer.save(tiny.save_classifier(tmp_path / "with-tokenizer"))
    guide = classifier_guide(tmp_path / "with-tokenizer", "positive")
    strings = tokenizer.token_strings()
    order = [8, 9, 63, 5, 6, 7]
    fitted = guide.fit(V=6, token_strings=[strings[i] for i in order], end_of_text=2)
    logits = torch.tensor([[[9.0, 0, 0, 0, 0, 0], [0, 9.0, 0, 0, 0, 0]]])
    wide = torch.full((1, 2, tiny.V), -torch.inf)
    wide[:, :, order] = logits
    whole = guide.fit(V=tiny.V, token_strings=strings, end_of_text=63)
    got = fitted(torch.tensor([[3, 4, 5]]), logits)
    assert_close(got, whole(CONTEXT, wide), roundings=NETWORK)


def test_a_table_longer_than_its_vocabulary_is_padded(tmp_path):
    tokenizer = tiny.tokenizer()
    tokenizer.save(tiny.save_classifier(tmp_path / "c"))
    guide = classifier_guide(tmp_path / "c", "positive")
    fitted = guide.fit(V=70, token_strings=tokenizer.token_strings(), end_of_text=63)
    assert fitted.table.shape == (70, 32)
    assert fitted(CONTEXT, torch.randn(1, 2, 70)).isfinite().all()


def test_a_text_is_framed_by_configured_or_by_named_tokens():
    class Config:
        bos_token_id = 5

    assert frame_ids(Config()) == ([5], [])
    strings = ["a", "[CLS]", "[SEP]"]
    assert frame_ids(Config(), strings) == ([5], [2])
    assert frame_ids(object(), strings) == ([1], [2])


def test_a_model_that_is_no_classifier_is_refused(tmp_path):
    tiny.encoder().backbone.save_pretrained(tmp_path / "masked-lm")
    with pytest.raises(ValueError, match="no trained weights for classifier"):
        classifier_guide(tmp_path / "masked-lm", 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is not a sequence classifier that can be loaded"):
        classifier_guide(tmp_path / "empty", 0)
    with pytest.raises(ValueError, match="nor a folder of that name"):
        classifier_guide(tmp_path / "nothing", 0)


@pytest.mark.parametrize(
    ("text", "name", "label", "avoid", "lam"),
    [
        ("sentiment=positive", "sentiment", "positive", False, None),
        ("toxicity!=toxic", "toxicity", "toxic", True, None),
        ("toxicity!=toxic:30.5", "toxicity", "toxic", True, 30.5),
        ("cardiffnlp/twitter-roberta=2:2000", "cardiffnlp/twitter-roberta", "2", False, 2000.0),
        ("runs/lr=3/guide=a", "runs/lr=3/guide", "a", False, None),
        ("runs/a!b!=a", "runs/a!b", "a", True, None),
        (" sentiment = positive : 5 ", "sentiment", "positive", False, 5.0),
    ],
)
def test_a_control_names_classifier_label_and_weight(text, name, label, avoid, lam):
    assert parse_control(text) == grammar.ControlSpec(name, label, avoid, lam)


@pytest.mark.parametrize(
    "text",
    ["", "sentiment", "=positive", "!=positive", "a=", "a=b:", "a=b:x", "a==b", "a!!=b", "a=b:nan"],
)
def test_what_is_no_control_is_refused(text):
    with pytest.raises(ValueError, match="is not CLASSIFIER=LABEL"):
        parse_control(text)


@pytest.mark.parametrize("number", ["-1", "inf", "1e300"])
def test_a_weight_that_cannot_be_meant_is_refused(number):
    with pytest.raises(ValueError, match="is out of range; use 0") as caught:
        parse_control(f"sentiment=positive:{number}")
    assert f"control 'sentiment=positive:{number}'" in str(caught.value)


@pytest.mark.parametrize("lam", ["5", None, True, [1.0]])
def test_a_weight_that_is_no_number_is_refused(lam):
    with pytest.raises(ValueError, match="is not a number"):
        check_lam(lam)


def test_numbers_of_numpy_are_weights():
    for lam in (5, 5.0, np.float32(5), np.int64(5)):
        assert check_lam(lam) == 5.0
        assert type(check_lam(lam)) is float


def test_a_label_cannot_be_sought_and_avoided(folder):
    model = SSDLM(tiny.encoder(), tiny.tokenizer())
    respelt = folder.parent / "." / "x" / ".." / folder.name
    (folder.parent / "x").mkdir()
    for other in (f"{folder}!=positive", f"{folder}!=2:3", f"{respelt}!=positive"):
        with pytest.raises(ValueError, match="'positive' is to be sought and avoided"):
            model.requests("a", {"control": [f"{folder}=positive", other]})
    model.requests("a", {"control": [f"{folder}=positive", f"{folder}!=neutral"]})
    assert model.engine.controls.apply(model.options) is model.denoiser
    with pytest.raises(ValueError, match="reduction='max'"):
        model.requests("a", {"control": f"{folder}=positive", "reduction": "max"})


def test_a_classifier_that_could_not_steer_is_refused_in_one_line(folder, tmp_path):
    from transformers import T5Config, T5ForSequenceClassification

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    T5ForSequenceClassification(T5Config(vocab_size=tiny.V, **sizes)).save_pretrained(
        tmp_path / "t5"
    )
    with pytest.raises(ValueError, match="is an encoder with a decoder"):
        classifier_guide(tmp_path / "t5", 0).fit(V=tiny.V)
    broken = load_by_transformers(str(folder))
    broken.classifier.out_proj.weight.data.fill_(torch.nan)
    broken.save_pretrained(tmp_path / "nan")
    with pytest.raises(ValueError, match="has weights that are not finite"):
        classifier_guide(tmp_path / "nan", 0)
    strings = tuple(f"t{number}" for number in range(tiny.V + 1))
    longer = replace(classifier_guide(folder, 0), token_strings=strings)
    with pytest.raises(ValueError, match=f"embeddings of {tiny.V} tokens and a tokenizer of"):
        longer.fit(V=tiny.V + 1, token_strings=strings)


def changed(folder, out, **settings):
    """A copy of a classifier with other lines in its config.json."""
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text()) | settings
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_labels_are_numbered_as_the_head_numbers_them(folder, tmp_path):
    labels = {"id2label": {0: "a", 1: "b", 3: "d"}, "label2id": {"a": 0, "b": 1, "d": 3}}
    with pytest.raises(ValueError, match="numbers its labels 0, 1, 3; number them from 0"):
        classifier_guide(changed(folder, tmp_path / "gap", **labels), "d")


def test_a_head_of_another_size_is_refused_in_one_line(folder, tmp_path):
    labels = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    with pytest.raises(ValueError, match="weights have other sizes than"):
        classifier_guide(changed(folder, tmp_path / "other", **labels), "a")


def test_a_special_token_must_be_in_the_table(folder, tmp_path):
    far = classifier_guide(changed(folder, tmp_path / "far", bos_token_id=50256), 0)
    with pytest.raises(ValueError, match="names the special token 50256; put bos_token_id"):
        far.fit(V=tiny.V)
    several = classifier_guide(changed(folder, tmp_path / "several", eos_token_id=[2, 7]), 0)
    alone = classifier_guide(folder, 0)
    got, expected = (guide.fit(V=tiny.V)(CONTEXT, one_hot(BLOCK)) for guide in (several, alone))
    assert torch.equal(got, expected)


def test_what_cannot_read_embeddings_is_refused_before_anything_is_written(tmp_path):
    from transformers import CanineConfig, CanineForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 16, "num_hash_buckets": 8, "max_position_embeddings": 64}
    CanineForSequenceClassification(CanineConfig(**sizes, **more)).save_pretrained(tmp_path / "c")
    with pytest.raises(ValueError, match="has no table of word embeddings"):
        classifier_guide(tmp_path / "c", 0).fit(V=tiny.V)
    guide = classifier_guide(tiny.save_classifier(tmp_path / "bert", "bert"), 0)
    guide.classifier.forward = lambda **inputs: inputs["input_ids"]
    with pytest.raises(ValueError, match="cannot read what is still uncertain"):
        guide.fit(V=tiny.V)


def test_a_decoder_without_padding_reads_several_rows_as_each_alone(tmp_path):
    folder = tiny.save_classifier(tmp_path / "gpt2", "gpt2")
    folder = changed(folder, tmp_path / "unpadded", pad_token_id=None)
    guide = classifier_guide(folder, "positive", has_special_tokens=False)
    assert guide.classifier.config.pad_token_id is None
    fitted, block = guide.fit(V=tiny.V), torch.tensor([[8, 9], [10, 11]])
    both = fitted(CONTEXT.expand(2, -1), one_hot(block))
    alone = [fitted(CONTEXT, one_hot(row[None])) for row in block]
    assert_close(both, torch.cat(alone), roundings=NETWORK)


@pytest.mark.parametrize("guide_lam", [-1, 1e9])
def test_a_suggested_weight_out_of_range_names_the_guide(folder, guide_lam):
    guide = classifier_guide(folder, 0)
    guide.classifier.config.guide_lam = guide_lam
    with pytest.raises(ValueError, match=r"guide_lam in the config.json of .*classifier"):
        guide.suggested("logits")


@pytest.mark.parametrize("guide_lam", [[1], "abc", {"logits": "5"}])
def test_a_suggested_weight_that_is_no_number_is_named(folder, guide_lam):
    guide = classifier_guide(folder, 0)
    guide.classifier.config.guide_lam = guide_lam
    with pytest.raises(ValueError, match=r"guide_lam=.* is no weight; write a number"):
        guide.suggested("logits")


def test_an_unknown_bare_name_lists_what_there_is():
    with pytest.raises(ValueError, match="no built-in guide 'mood'") as caught:
        classifier_guide("mood", "good")
    for name in builtin_guides():
        assert name in str(caught.value)


def test_avoiding_a_label_is_seeking_all_others(folder):
    logits = torch.randn(2, 3, tiny.V, generator=torch.Generator().manual_seed(0))
    context = CONTEXT.expand(2, -1)

    def chance(text):
        return load_guide(f"{folder}{text}").fit(V=tiny.V)(context, logits).exp()

    assert_close(chance("!=positive"), 1 - chance("=positive"), roundings=NETWORK, size=1.0)
    others = chance("=negative") + chance("=neutral")
    assert_close(chance("!=positive"), others, roundings=NETWORK, size=1.0)


def test_avoiding_keeps_its_gradient_where_the_label_is_certain(folder):
    guide = classifier_guide(folder, "positive", avoid=True)
    scores = torch.tensor([[0.0, 0.0, 200.0]], requires_grad=True)
    guide.label_log_prob(scores).sum().backward()
    assert guide.label_log_prob(scores).item() == pytest.approx(-200 + 0.6931, abs=1e-2)
    assert scores.grad[0, 2].item() == pytest.approx(-1.0, abs=1e-4)


def test_labels_of_their_own_are_read_one_by_one(folder):
    seek = classifier_guide(folder, "positive")
    avoid = classifier_guide(folder, "positive", avoid=True)
    scores = torch.tensor([[5.0, 5.0, 1.0]])
    for guide, expected in ((seek, 0.7311), (avoid, 0.2689)):
        guide.classifier.config.problem_type = "multi_label_classification"
        assert guide.label_log_prob(scores).exp().item() == pytest.approx(expected, abs=1e-4)


def test_a_guide_suggests_its_weight_unless_one_is_given(folder, tmp_path):
    plain = classifier_guide(folder, 0)
    assert (plain.suggested("logits"), plain.suggested("simplex")) == (2000.0, 10.0)
    shutil.copytree(folder, tmp_path / "own")
    settings = json.loads((folder / "config.json").read_text())
    both = {"logits": 70.0, "simplex": 3.0}
    for suggestion, logits, simplex in ((120.0, 120, 10), (both, 70, 3), (0, 0, 10)):
        changed_settings = json.dumps(settings | {"guide_lam": suggestion})
        (tmp_path / "own" / "config.json").write_text(changed_settings)
        guide = load_guide(f"{tmp_path / 'own'}=0")
        assert (guide.suggested("logits"), guide.suggested("simplex")) == (logits, simplex)
        assert load_guide(f"{tmp_path / 'own'}=0:5").suggested("logits") == 5.0
    assert suggested_lam(lambda context, logits: logits.sum((1, 2)), "logits") == 2000.0


def test_weights_stored_by_halves_are_read_in_full(folder, tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.half().save_pretrained(tmp_path / "half")
    assert classifier_guide(tmp_path / "half", 0).classifier.dtype == torch.float32


def test_a_tokenizer_that_cannot_be_read_is_an_error(tmp_path):
    folder = tiny.save_classifier(tmp_path / "c")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        classifier_guide(folder, 0)
