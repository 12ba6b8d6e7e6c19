"""How large an experiment is: the paper's size, or one GPU's.  [scale] -> experiment

`ssdlm reproduce table1 --scale mini --set KEY=VALUE ...` starts from one and changes what is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args, get_type_hints

from ssdlm.config import MOST_OF_ANY
from ssdlm.options import SeesName
from ssdlm.settings import nearest, parse
from ssdlm.values import choose, require

SAMPLER = re.compile(r"(top_p|typical_p)=(0?\.\d*[1-9]\d*|1(\.0*)?)")
"""How an autoregressive model draws, with a share of probability above 0 and up to 1."""


WORDS = re.compile(r"\d+(\.\d+)?(:\d+(\.\d+)?){1,2}")
"""How gradient=words is written: threshold, lambda, and maybe plausible."""


@dataclass(frozen=True)
class Scale:
    """Counts, lengths and grids of all experiments, and their judges; the defaults are the paper's.

    Models are folders, names of what is built in, or ids of the Hub.
    """

    name: str = "paper"
    judge: str = "EleutherAI/gpt-neo-1.3B"  # causal LM for perplexity
    features: tuple[str, ...] = ("gpt2-large",)  # for MAUVE; the first one's is the score
    models: tuple[str, ...] = (  # ROLE=NAME for what is not given by --model
        "paper=xhan77/ssdlm", "gpt2-medium=gpt2-medium", "gpt2-large=gpt2-large", "gpt2-xl=gpt2-xl"
    )  # fmt: skip
    resamples: int = 1000  # draws of prompts behind each interval
    B: int = 25  # block length of the paper's sampler

    # Tables of unconstrained generation, and the figures.
    lengths: tuple[int, ...] = (25, 50, 100)  # tokens to write; the prompt is as long
    num_prompts: int = 1000
    num_samples: int = 5  # texts per prompt
    projections: tuple[str, ...] = ("sampling", "multi_hot")
    top_p: tuple[float, ...] = (0.0, 0.1, 0.2, 0.5, 0.7, 0.9, 0.95, 0.99)
    T: tuple[int, ...] = (1000, 2500)
    samplers: tuple[str, ...] = ("top_p=0.9", "top_p=0.95", "typical_p=0.2", "typical_p=0.95")
    free_top_p: tuple[float, ...] = ()  # of our own sampler, beside the one in a model's folder
    seeds: tuple[int, ...] = (2022, 2023, 2024, 2025, 2026)  # of the autoregressive samplers
    seed: int = 0  # of the diffusion models
    calls: tuple[int, ...] = (4, 8, 16, 32, 64, 200, 1000)  # per block: quality against cost
    blocks: tuple[int, ...] = (5, 10, 25)  # block lengths, for the same figure
    figure_samples: int = 1  # texts per prompt, for the same figure

    # The comparison with Diffusion-LM.
    stories: int = 2700  # held-out sequences: prompt and continuation
    story_length: int = 50  # tokens of the one, and of the other
    story_holdout: float = 0.05  # share of the stories that is kept from training
    story_init: str = "bert-base-uncased"  # training starts from it; its tokenizer is everyone's
    story_train: tuple[str, ...] = ()  # what is changed of the recipe paper_rocstories
    story_T: tuple[int, ...] = (2500,)
    story_top_p: tuple[float, ...] = (0.5,)
    story_features: tuple[str, ...] = ("bert-base-uncased",)  # the stories are in lower case

    # Controlled generation.
    control_lengths: tuple[int, ...] = (12, 20, 50)
    control_samples: int = 20  # texts per prompt and label
    control_T: tuple[int, ...] = (1000, 2500, 5000)
    control_top_p: tuple[float, ...] = (0.2, 0.5, 0.9)
    control_sees: tuple[str, ...] = ("context", "block")  # what the guide reads: the paper's text
    # says context and block; its figures came from the block alone, without special tokens
    lams: tuple[float, ...] = (0.0, 100.0, 500.0, 2000.0)
    own_top_p: tuple[float, ...] = (0.5, 0.9, 0.95)  # of our own sampler with gradient=words
    own_lams: tuple[float, ...] = (0.0, 2.0, 4.0, 5.0, 5.5, 6.0)  # nats by which a word is moved
    second: tuple[str, ...] = ("tense=past:4", "tense=present:4")  # beside the first control
    own_particles: tuple[int, ...] = (1, 8)  # beside that gradient, 1 for none
    particle_lams: tuple[float, ...] = (0.0, 3.0, 4.0)  # of the gradient where there are some
    particle_second: tuple[str, ...] = ("tense=past:3", "tense=present:3")  # the same
    particle_weights: tuple[float, ...] = (8.0, 4.0)  # of the first control's scores, the second's
    scorer: str = ""  # a classifier that weighs particles without any gradient; "" for the guide
    scorer_particles: tuple[int, ...] = (16,)  # that it weighs, at the largest length
    scorer_step: int = 3  # tokens between two weighings
    guide: str = "cardiffnlp/twitter-roberta-base-sentiment"
    labels: tuple[str, ...] = ("positive", "negative")
    control_judges: tuple[str, ...] = ("textattack/bert-base-uncased-yelp-polarity",)
    second_judges: tuple[str, ...] = ()  # of the second control: folders of `train-judge`, or verbs
    control_ppl: str = "gpt2-xl"  # judge of controlled texts, where it is another one

    # The bench of ways to steer.
    attributes: tuple[str, ...] = ("sentiment", "tense", "source", "sentiment+tense")
    bench_guides: tuple[str, ...] = ("sentiment", "tense")  # built in, or folders of that name
    bench_texts: tuple[int, ...] = (600, 200)  # of an arm for sentiment, and for all others
    bench_length: int = 50  # tokens of each
    bench_particles: int = 8  # and texts of which the best is kept
    bench_lams: tuple[float, ...] = (500.0,)  # of the paper's gradient; chosen on its 15 prompts
    bench_words: tuple[str, ...] = ("2:5", "0:3:0.03", "0.5:2.5")  # of gradient=words; the same
    bench_both: tuple[str, ...] = ()  # the same, with particles beside it
    bench_fudge: tuple[float, ...] = (8.0,)  # weights of what the next token would make of a text
    bench_features: str = "minilm"  # for MAUVE against human texts of a label; empty for none
    instructed: tuple[str, ...] = ("smollm2",)  # models that are also told what to write


PAPER = Scale()
MINI_STORIES = (
    "steps=1500", "lr=3e-4", "warmup=150", "micro_batch=128", "share_c=128", "shift=true",
    "precision=bf16", "log_every=50", "validate_every=250", "save_every=0", "save_seconds=60",
)  # fmt: skip
"""One GPU and few stories: other cuts every epoch, fewer steps, a context length for more rows."""
MINI = replace(
    PAPER, name="mini", models=("ours=builtin:mini",),
    judge="smollm2", features=("judge", "minilm"),
    top_p=(0.0, 0.5, 0.9, 0.95, 0.99), T=(64, 200), free_top_p=(0.95, 1.0),
    stories=1000, story_holdout=0.2, story_init="minilm", story_train=MINI_STORIES,
    story_T=(200,), story_top_p=(0.5, 0.9), story_features=("minilm", "judge"),
    control_T=(200,), control_sees=("context",), guide="sentiment", control_judges=(),
    control_ppl="",
)  # fmt: skip
"""For one GPU and models of 34M parameters; `make judge` brings the judge, SmolLM2."""
SCALES = {scale.name: scale for scale in (MINI, PAPER)}


def scale_of(name: str, overrides: Sequence[str] = ()) -> Scale:
    """Return a scale by name with `field=value` applied in order."""
    if name not in SCALES:
        raise ValueError(f"there is no scale {name!r}; the scales are {', '.join(SCALES)}")
    scale, hints = SCALES[name], get_type_hints(Scale)
    del hints["name"]
    for assignment in overrides:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{assignment!r} has no value; write KEY=VALUE")
        if key not in hints:
            raise ValueError(f"a scale has no field {key!r}; {nearest(key, list(hints))}")
        scale = replace(scale, **{key: parse(hints[key], text, key)})
    for key in [key for key, kind in hints.items() if kind in (int, tuple[int, ...])]:
        value = getattr(scale, key)
        for number in value if isinstance(value, tuple) else (value,):
            if number < 1 and key not in ("seed", "seeds"):
                raise ValueError(f"{key}={number} is not a count; use 1 or more")
            require(abs(number) <= MOST_OF_ANY, key, number, f"use at most {MOST_OF_ANY}")
    if not scale.particle_weights:
        raise ValueError("particle_weights is empty; give a number for one control or for each")
    for number in scale.scorer_particles:
        require(number > 1, "scorer_particles", number, "one alone is not weighed; use 2 or more")
    for sees in scale.control_sees:
        choose("control_sees", sees, get_args(SeesName))
    for sampler in scale.samplers:
        if not SAMPLER.fullmatch(sampler):
            raise ValueError(f"samplers={sampler} is no sampler; write top_p=0.9 or typical_p=0.2")
    for pair in (*scale.bench_words, *scale.bench_both):
        if not WORDS.fullmatch(pair):
            raise ValueError(
                f"bench_words and bench_both are THRESHOLD:LAMBDA or THRESHOLD:LAMBDA:PLAUSIBLE, "
                f"as 0.5:2; not {pair!r}"
            )
    return scale
