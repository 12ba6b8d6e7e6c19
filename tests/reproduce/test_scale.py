"""How large an experiment is."""

import pytest

from ssdlm.options import GenerateOptions, known_options
from ssdlm.reproduce.scale import MINI, PAPER, SCALES, Scale, scale_of
from ssdlm.reproduce.table1 import PAPER_SAMPLER


def test_the_papers_scale_has_the_papers_numbers():
    scale = PAPER
    assert scale.lengths == (25, 50, 100) and scale.control_lengths == (12, 20, 50)
    assert scale.num_prompts * scale.num_samples == 5000
    assert len(scale.top_p) == 8 and scale.T == (1000, 2500)
    assert scale.lams == (0, 100, 500, 2000) and len(scale.seeds) == 5
    assert "gpt2-xl=gpt2-xl" in scale.models


def test_mini_asks_nothing_of_the_hub():
    names = (MINI.judge, *MINI.features, *MINI.models, *MINI.control_judges)
    assert not any("/" in name for name in names)


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_knows_its_name(name):
    assert scale_of(name).name == name


def test_fields_are_overridden_by_name():
    scale = scale_of("mini", ["T=8,16", "judge=gpt2", "top_p=0.5", "num_samples=2"])
    assert (scale.T, scale.judge, scale.top_p, scale.num_samples) == ((8, 16), "gpt2", (0.5,), 2)
    assert isinstance(scale, Scale)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("huge", [], "no scale 'huge'; the scales are mini, paper"),
        ("mini", ["T"], "'T' has no value"),
        ("mini", ["topp=1"], "no field 'topp'; the nearest is 'top_p'"),
        ("mini", ["name=x"], "no field 'name'"),
        ("mini", ["bench_words=1-4"], "THRESHOLD:LAMBDA:PLAUSIBLE, as 0.5:2; not '1-4'"),
        ("mini", ["T=many"], "T=many is not a whole number"),
    ],
)
def test_a_wrong_override_is_named(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        scale_of(name, overrides)


def test_the_papers_sampler_leaves_nothing_of_a_models_own():
    varied = {"length", "B", "T", "projection", "top_p"}
    ends_or_steers = {"stop_at_end", "gradient", "threshold", "plausible", "band"}
    of_other_grids = {"width"}
    names = {name for name, about in known_options().items() if about.is_stored}
    assert set(PAPER_SAMPLER) == names - varied - ends_or_steers - of_other_grids
    authors = GenerateOptions()
    assert {name: getattr(authors, name) for name in PAPER_SAMPLER} == PAPER_SAMPLER
