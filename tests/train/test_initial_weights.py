"""The weights a run begins with are found by name."""

from pathlib import Path

from ssdlm.storage.builtin import MODELS
from ssdlm.storage.checkpoint import is_ours
from ssdlm.train.initial_weights import find_init


def test_init_may_name_what_is_built_in():
    assert find_init("builtin:mini") == MODELS / "mini"
    assert is_ours(find_init("builtin:mini"))
    assert find_init("roberta-large") == Path("roberta-large")
