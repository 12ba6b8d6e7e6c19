"""How large an experiment is: the paper's size, or one GPU's.  [scale] -> experiment

`ssdlm reproduce table1 --scale mini --set KEY=VALUE ...` starts from one of these and changes what
is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import get_type_hints

from ssdlm.settings import nearest, parse

SAMPLER = re.compile(r"(top_p|typical_p)=(0?\.\d*[1-9]\d*|1(\.0*)?)")
"""How an autoregressive model draws, with a share of probability above 0 and up to 1."""

MINI_STORIES = (
    "steps=1500", "lr=3e-4", "warmup=150", "micro_batch=128", "share_c=128", "shift=true",
    "precision=bf16", "log_every=50", "validate_every=250", "save_every=0", "save_seconds=60",
)  # fmt: skip
"""One GPU and few stories: other cuts every epoch, fewer steps, a context length for more rows."""


@dataclass(frozen=True)
class Scale:
    """Counts, lengths and grids of all experiments, and the models that judge them.

    The defaults are the paper's, with the models of the Hub that it names.
    """

    name: str = "paper"
    judge: str = "EleutherAI/gpt-neo-1.3B"
    """Causal LM for perplexity."""
    features: tuple[str, ...] = ("gpt2-large",)
    """Models for MAUVE's features; the first one's is the score."""
    models: tuple[str, ...] = (
        "paper=xhan77/ssdlm",
        "gpt2-medium=gpt2-medium",
        "gpt2-large=gpt2-large",
        "gpt2-xl=gpt2-xl",
    )
    """ROLE=NAME for what is not given by --model."""
    resamples: int = 1000
    """Draws of prompts behind each interval."""
    B: int = 25
    """Block length of the paper's sampler."""

    # Tables of unconstrained generation, and the figures.
    lengths: tuple[int, ...] = (25, 50, 100)
    """Tokens to write; the prompt is as long."""
    num_prompts: int = 1000
    num_samples: int = 5
    """Texts per prompt."""
    projections: tuple[str, ...] = ("sampling", "multi_hot")
    top_p: tuple[float, ...] = (0.0, 0.1, 0.2, 0.5, 0.7, 0.9, 0.95, 0.99)
    T: tuple[int, ...] = (1000, 2500)
    samplers: tuple[str, ...] = ("top_p=0.9", "top_p=0.95", "typical_p=0.2", "typical_p=0.95")
    """How the autoregressive models draw."""
    free_top_p: tuple[float, ...] = ()
    """Nuclei of our own sampler, beside the one that a model's folder names."""
    seeds: tuple[int, ...] = (2022, 2023, 2024, 2025, 2026)
    """Runs of each autoregressive sampler; their spread is reported."""
    seed: int = 0
    """Of the diffusion models."""
    calls: tuple[int, ...] = (4, 8, 16, 32, 64, 200, 1000)
    """Calls per block, for the figure of quality against cost."""
    blocks: tuple[int, ...] = (5, 10, 25)
    """Block lengths, for the same figure."""
    figure_samples: int = 1
    """Texts per prompt, for the same figure."""

    # The comparison with Diffusion-LM.
    stories: int = 2700
    """Held-out sequences: prompt and continuation."""
    story_length: int = 50
    """Tokens of the one, and of the other."""
    story_holdout: float = 0.05
    """Share of the stories that is kept from training."""
    story_init: str = "bert-base-uncased"
    """Masked LM that training starts from; its tokenizer is everyone's."""
    story_train: tuple[str, ...] = ()
    """What is changed of the recipe paper_rocstories."""
    story_T: tuple[int, ...] = (2500,)
    story_top_p: tuple[float, ...] = (0.5,)
    story_features: tuple[str, ...] = ("bert-base-uncased",)
    """As `features`: the stories are in lower case."""

    # Controlled generation.
    control_lengths: tuple[int, ...] = (12, 20, 50)
    control_samples: int = 20
    """Texts per prompt and label."""
    control_T: tuple[int, ...] = (1000, 2500, 5000)
    control_top_p: tuple[float, ...] = (0.2, 0.5, 0.9)
    lams: tuple[float, ...] = (0.0, 100.0, 500.0, 2000.0)
    own_top_p: tuple[float, ...] = (0.5, 0.9, 0.95)
    own_lams: tuple[float, ...] = (0.0, 2.0, 4.0, 5.0, 5.5, 6.0)
    """Of our model's own sampler with gradient=words: nats by which a word is moved."""
    second: tuple[str, ...] = ("tense=past:4", "tense=present:4")
    """A second control beside the first, for two at once; each as `--control` takes it."""
    guide: str = "cardiffnlp/twitter-roberta-base-sentiment"
    labels: tuple[str, ...] = ("positive", "negative")
    control_judges: tuple[str, ...] = ("textattack/bert-base-uncased-yelp-polarity",)
    """Classifiers that had no part in it, each a folder or a Hub id."""
    control_ppl: str = "gpt2-xl"
    """Judge of controlled texts, where it is another one."""


PAPER = Scale()
MINI = replace(
    PAPER,
    name="mini",
    judge="smollm2",
    features=("judge", "minilm"),
    models=("ours=builtin:mini",),
    top_p=(0.0, 0.5, 0.9, 0.95, 0.99),
    T=(64, 200),
    free_top_p=(0.95, 1.0),
    stories=1000,
    story_holdout=0.2,
    story_init="minilm",
    story_train=MINI_STORIES,
    story_T=(200,),
    story_top_p=(0.5, 0.9),
    story_features=("minilm", "judge"),
    control_T=(200,),
    guide="sentiment",
    control_judges=(),
    control_ppl="",
)
"""For one GPU and models of 34M parameters; `make judge` brings the judge, SmolLM2."""
SCALES = {scale.name: scale for scale in (MINI, PAPER)}


def scale_of(name: str, overrides: Sequence[str] = ()) -> Scale:
    """Return a scale by name with `field=value` applied in order."""
    if name not in SCALES:
        raise ValueError(f"there is no scale {name!r}; the scales are {', '.join(SCALES)}")
    scale, hints = SCALES[name], get_type_hints(Scale)
    for assignment in overrides:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{assignment!r} has no value; write KEY=VALUE")
        if key not in hints or key == "name":
            names = [item.name for item in fields(Scale) if item.name != "name"]
            raise ValueError(f"a scale has no field {key!r}; {nearest(key, names)}")
        scale = replace(scale, **{key: parse(hints[key], text, key)})
    check(scale)
    return scale


def check(scale: Scale) -> None:
    """Raise on counts and samplers that cannot be meant."""
    for name, kind in get_type_hints(Scale).items():
        value = getattr(scale, name)
        if kind in (int, tuple[int, ...]) and name not in ("seed", "seeds"):
            for number in value if isinstance(value, tuple) else (value,):
                if number < 1:
                    raise ValueError(f"{name}={number} is not a count; use 1 or more")
    for sampler in scale.samplers:
        if not SAMPLER.fullmatch(sampler):
            raise ValueError(f"samplers={sampler} is no sampler; write top_p=0.9 or typical_p=0.2")
