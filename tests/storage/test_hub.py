"""What the Hub does not give is one line, and transformers does not ask for it again."""

import pytest
import transformers

from ssdlm.config import EncoderConfig
from ssdlm.evaluate.autoregressive import AutoregressiveLM
from ssdlm.evaluate.judge import load_encoder, load_judge
from ssdlm.guidance import classifier_guide
from ssdlm.serve.guides import Guides
from ssdlm.storage.hub import for_transformers
from ssdlm.tokenizer import load_tokenizer
from ssdlm.train.initial_weights import wrap_masked_lm

OPENED = [
    lambda name: classifier_guide(name, 0),
    lambda name: Guides({"mood": name}),
    load_judge,
    load_encoder,
    load_tokenizer,
    AutoregressiveLM.from_pretrained,
    lambda name: wrap_masked_lm(name, EncoderConfig()),
]


@pytest.mark.parametrize("open_one", OPENED)
def test_a_model_that_the_hub_does_not_give_is_one_line(open_one, monkeypatch):
    def refuse(name, **options):
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    for name in ("AutoModelForSequenceClassification", "AutoModelForCausalLM", "AutoModel"):
        monkeypatch.delattr(getattr(transformers, name), "from_pretrained")
    monkeypatch.delattr(transformers.AutoModelForMaskedLM, "from_pretrained")
    said = r"^no/such is no folder here and the Hub did not give it \(nobody answers\); check"
    with pytest.raises(ValueError, match=said):
        open_one("no/such")


def test_what_is_in_the_cache_is_opened_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    assert for_transformers("org/name") == "org/name"  # its weights are still to come
    (tmp_path / "model.safetensors").touch()
    assert for_transformers("org/name") == "org/name"
    (tmp_path / "vocab.txt").touch()
    assert for_transformers("org/name") == str(tmp_path)
    assert for_transformers(str(tmp_path)) == str(tmp_path)
