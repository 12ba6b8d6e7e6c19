"""Classifiers of RoBERTa's kind are read without transformers, to the bit as it reads them."""

import json
import shutil

import pytest
import torch
from tests import tiny

from ssdlm.guidance.classifiers import load_by_transformers, load_classifier
from ssdlm.guidance.roberta import RobertaClassifier, load_roberta
from ssdlm.storage.builtin import GUIDES, builtin_guides

PADDING = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"num_hidden_layers": 2, "pad_token_id": PADDING, "hidden_act": "gelu"}
    return tiny.save_classifier(tmp_path_factory.mktemp("roberta") / "c", **sizes)


def folders(folder):
    return [folder, *(GUIDES / name for name in builtin_guides())]


def log_prob_and_gradient(classifier, words, mask):
    words = words.clone().requires_grad_()
    log_prob = classifier(inputs_embeds=words, attention_mask=mask).logits.log_softmax(-1)[:, 1]
    return log_prob, torch.autograd.grad(log_prob.sum(), words)[0]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_classifier_without_transformers_matches_transformers(folder, kernel):
    for place in folders(folder):
        ours, theirs = load_roberta(place), load_by_transformers(str(place)).eval()
        assert ours is not None
        assert {k: v.shape for k, v in ours.state_dict().items()} == {
            k: v.shape for k, v in theirs.state_dict().items()
        }
        for classifier in (ours, theirs):
            classifier.set_attn_implementation(kernel)
        ids = torch.randint(2, ours.config.vocab_size, (3, 12))
        is_text = torch.ones_like(ids)
        is_text[1, 7:] = 0
        ids[1, 7:] = PADDING
        for mask in (None, torch.ones_like(ids), is_text):
            found, expected = ours(ids, mask).logits, theirs(ids, mask).logits
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        words = torch.randn(3, 12, ours.config.hidden_size)
        added = torch.zeros(3, 1, 12, 12)
        added[2, :, :, 5:] = torch.finfo(torch.float32).min
        for mask in (None, added):
            pairs = zip(
                log_prob_and_gradient(ours, words, mask),
                log_prob_and_gradient(theirs, words, mask),
                strict=True,
            )
            for found, expected in pairs:
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "silu"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"architectures": ["RobertaForMaskedLM"]},
        {"architectures": None},
        {"num_attention_heads": 3},
        {"pad_token_id": None},
    ],
)
def test_what_is_not_exactly_such_a_classifier_is_left_to_transformers(folder, tmp_path, changes):
    shutil.copytree(folder, tmp_path / "c")
    stored = json.loads((folder / "config.json").read_text())
    (tmp_path / "c" / "config.json").write_text(json.dumps(stored | changes))
    assert load_roberta(tmp_path / "c") is None


def test_a_setting_that_is_left_out_has_the_default_of_transformers(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "c")
    stored = json.loads((folder / "config.json").read_text())
    assert isinstance(load_classifier(tmp_path / "c"), RobertaClassifier)
    del stored["eos_token_id"]
    (tmp_path / "c" / "config.json").write_text(json.dumps(stored))
    assert load_classifier(tmp_path / "c").config.eos_token_id == 2
