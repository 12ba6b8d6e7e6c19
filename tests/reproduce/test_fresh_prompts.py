"""The prompts on which control is reported."""

from __future__ import annotations

from ssdlm.engine.prompt_files import read_prompts
from ssdlm.guidance.judges import count_verbs
from ssdlm.reproduce.prompts import FRESH


def test_fresh_prompts_are_sixty_short_openings_without_a_tense():
    prompts = [line["prompt"] for line in read_prompts(FRESH)]
    assert len(prompts) == len(set(prompts)) == 60
    for prompt in prompts:
        assert 3 <= len(prompt.split()) <= 9
        assert not any(count_verbs(prompt).values())
