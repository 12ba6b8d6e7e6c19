"""The weights a run begins with are found by name."""

from pathlib import Path

from ssdlm.storage.builtin import MODELS
from ssdlm.storage.checkpoint import is_ours
from ssdlm.train.weights import folder_of


def test_init_may_name_what_is_built_in():
    assert folder_of("builtin:mini") == MODELS / "mini"
    assert is_ours(folder_of("builtin:mini"))
    assert folder_of("roberta-large") == Path("roberta-large")
