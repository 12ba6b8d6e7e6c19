"""The weights a run begins with are found by name."""

from pathlib import Path

from tests import tiny

from ssdlm.config import EncoderConfig
from ssdlm.storage.builtin import MODELS
from ssdlm.storage.checkpoint import is_ours
from ssdlm.train.initial_weights import find_init, wrap_masked_lm


def test_init_may_name_what_is_built_in():
    assert find_init("builtin:mini") == MODELS / "mini"
    assert is_ours(find_init("builtin:mini"))
    assert find_init("roberta-large") == Path("roberta-large")


def test_an_encoder_without_a_head_is_started_from_in_silence(tmp_path, capfd):
    tiny.encoder("bert", V=tiny.V).backbone.base_model.save_pretrained(tmp_path)
    capfd.readouterr()
    denoiser = wrap_masked_lm(str(tmp_path), EncoderConfig())
    assert denoiser.V == tiny.V
    assert capfd.readouterr() == ("", "")
