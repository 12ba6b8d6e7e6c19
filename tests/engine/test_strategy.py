"""From options to how a block is denoised."""

from typing import get_args

import pytest

from ssdlm.engine.strategy import strategy_for
from ssdlm.options import GenerateOptions, ProjectionName


@pytest.mark.parametrize("name", get_args(ProjectionName))
def test_every_projection_is_built_by_its_name(name):
    options = GenerateOptions(projection=name, nucleus="logits", returns="logits")
    assert type(strategy_for(options, K=5.0).project).__name__ == name


def test_unknown_names_and_impossible_masses_are_refused():
    with pytest.raises(ValueError, match=r"projection='even'.*greedy"):
        GenerateOptions().change(projection="even")
    with pytest.raises(ValueError, match=r"top_p=1\.5"):
        GenerateOptions().change(top_p=1.5)
