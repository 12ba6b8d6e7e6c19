"""The guides that come with the package: small, ordinary, and right about plain sentences."""

import pytest
import torch

from ssdlm import SSDLM
from ssdlm.guidance import builtin_guides, classifier_guide, load_text_classifier
from ssdlm.storage.builtin import GUIDES

PLAIN = {
    "sentiment": {
        "positive": " What a wonderful evening, I love this place!",
        "negative": " The worst film I have seen, boring and terrible.",
    },
    "tense": {
        "past": " He walked to the market and looked at the bread.",
        "present": " He walks to the market and looks at the bread.",
    },
}


def test_the_guides_are_there_and_small():
    assert builtin_guides() == sorted(PLAIN)
    assert sum(path.stat().st_size for path in GUIDES.rglob("*")) < 8e6


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_plain_sentence_gets_its_label(name):
    classifier = load_text_classifier(GUIDES / name)
    for label, text in PLAIN[name].items():
        assert classifier.labels[classifier.log_probs([text])[0].argmax()] == label


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_transformers_alone_opens_it(name):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(GUIDES / name, dtype=torch.float32)
    encoded = AutoTokenizer.from_pretrained(GUIDES / name)(
        list(PLAIN[name].values()), return_tensors="pt", padding=True
    )
    with torch.no_grad():
        found = model.eval()(**encoded).logits.argmax(-1).tolist()
    assert [model.config.id2label[label] for label in found] == list(PLAIN[name])


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_it_reads_the_nested_vocabulary_and_pulls_towards_its_label(name):
    guide = classifier_guide(name, next(iter(PLAIN[name])))
    nested = ["<|endoftext|>" if s == "</s>" else s for s in guide.token_strings[2:]]
    assert len(nested) == 8192
    fitted = guide.fit(V=8192, token_strings=nested, end_of_text=8191)
    context = torch.tensor([[nested.index("\u0120city")]])
    logits = torch.zeros(1, 10, 8192, requires_grad=True)
    before = fitted(context, logits)
    (grad,) = torch.autograd.grad(before.sum(), logits)
    lam = guide.suggested("logits")
    assert lam < 2000
    assert fitted(context, logits + lam * grad).item() > before.item()


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_its_card_tells_data_command_and_accuracy(name):
    card = (GUIDES / name / "README.md").read_text()
    for words in ("Data:", f"python benchmarks/guides.py {name}", "| test |", "seed="):
        assert words in card


def test_by_default_texts_get_the_sentiment_asked_for_as_a_guide_that_did_not_steer_reads_them():
    model = SSDLM.from_pretrained("builtin:mini", device="cpu")
    reader = load_text_classifier(GUIDES / "sentiment")  # builtin:mini is steered by its own
    usual = {"num_samples": 3, "length": 15, "seed": 0}

    def positive(**control):
        found = model.generate(["The river had", "A man with a grey umbrella"], **usual, **control)
        said = reader.log_probs([one.text for one in found]).argmax(-1)
        return int((said == reader.labels.index("positive")).sum())

    assert positive() <= 3
    assert positive(control="sentiment=positive") >= 5
    assert positive(control="sentiment=negative") <= 1
