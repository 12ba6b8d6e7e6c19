"""Table 2: the paper's recipe against Diffusion-LM, both trained on the same stories.

Ours is trained here, by the library's own training. Diffusion-LM is benchmarks/diffusion_lm.py, and
comes as the file that it wrote: `--model diffusion_lm=texts.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ssdlm.evaluate.judge import MINILM, minilm_folder
from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Definition, Experiment, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.setting import Diffusion, Given, Gold, Options, Setting, TextSource
from ssdlm.reproduce.stories import RECIPE, StoryFiles, prepare_stories, train_on_stories
from ssdlm.reproduce.table import COSTS, Column, columns, row_of, table
from ssdlm.reproduce.table1 import PAPER_SAMPLER, setting_of

SHOWN = ("mauve", "ppl_micro", "dist-1", "dist-2", "dist-3", "zipf", "rep")
HOME = "stories"
OURS, BLOCK, BASELINE = "stories", "stories_block", "diffusion_lm"
"""Roles: a model of the paper's recipe, a BlockDenoiser, and the other's texts."""
LABELS = {
    "gold": "Gold continuation",
    BASELINE: "Diffusion-LM",
    "ours": "SSD-LM, the paper's recipe",
    "block": "BlockDenoiser",
}
COMMANDS = (
    "python benchmarks/diffusion_lm.py train --data {data} --out DIR --size {size}",
    "python benchmarks/diffusion_lm.py generate --model DIR --input {prompts} --length {length} "
    "--output DIR/texts.jsonl",
)


def prepare(experiment: Experiment) -> None:
    """Tokenise the stories, cut prompts, and train our model, unless it is given or left out."""
    scale, files = experiment.scale, StoryFiles(experiment.out / HOME)
    init = experiment.models.get("init") or scale.story_init
    init = str(minilm_folder()) if init == MINILM else init
    if source := experiment.prompts.get(HOME):
        prepare_stories(source, files, tokenizer=init, scale=scale)
    ours = [one for one in settings(experiment) if one.name.startswith(f"{HOME}/ours/")]
    if OURS not in experiment.models and any(map(experiment.includes, ours)):
        train_on_stories(files, init=init, scale=scale, device=experiment.device)


def settings(experiment: Experiment) -> list[Setting]:
    """Return human text, Diffusion-LM where its texts are given, and ours: a text per prompt."""
    scale, prompts = experiment.scale, StoryFiles(experiment.out / HOME).prompts
    if not prompts.exists():
        raise ValueError(
            "there are no stories; give --prompts stories=FILE, a .jsonl with a text per story, "
            "to the stage generate"
        )
    size = replace(scale, features=scale.story_features, num_prompts=scale.stories, num_samples=1)
    stories = replace(experiment, scale=size)
    return [
        setting_of(stories, f"{HOME}/{name}", source, str(prompts), options)
        for name, source, options in sources(experiment)
    ]


def sources(experiment: Experiment) -> Iterator[tuple[str, TextSource, Options]]:
    """Yield name, source and options of each setting."""
    scale, models = experiment.scale, experiment.models
    fixed = {"length": scale.story_length, "seed": scale.seed}
    yield "gold", Gold(), {}
    if BASELINE in models:
        yield BASELINE, Given(models[BASELINE]), {}
    ours = Diffusion(models.get(OURS) or str(StoryFiles(experiment.out / HOME).model))
    for T, top_p in product(scale.story_T, scale.story_top_p):
        options = {"B": scale.B, "T": T, "top_p": top_p, "projection": "sampling"}
        yield f"ours/sampling-p{top_p:g}-T{T}", ours, fixed | PAPER_SAMPLER | options
    if BLOCK in models:
        yield "block/own", Diffusion(models[BLOCK]), fixed


def page(experiment: Experiment, results: Results) -> Page:
    """Return the page: the paper's rows, then ours."""
    scale, judge = experiment.scale, " and ".join(results.judges()) or experiment.scale.judge
    count = next(iter(results.values())).setting.num_prompts
    start = experiment.models.get("init") or scale.story_init
    introduction = (
        f"Scale `{scale.name}`: {count} held-out prompts of {scale.story_length} tokens, one "
        f"continuation of {scale.story_length} tokens each. Ours is recipe `{RECIPE}`, started "
        f"from {start}; Diffusion-LM is trained on the same text. Judge {judge}, "
        f"MAUVE's features from {scale.story_features[0]}. MAUVE, Dist and Rep in percent. Rows "
        "marked [paper] are printed in the paper, measured there on more stories by other judges."
    )
    others = [
        Column(f"mauve_{name}", f"MAUVE, {name}", 2, 100.0) for name in scale.story_features[1:]
    ]
    shown = [*columns(SHOWN), *others]
    rows = {}
    for name, result in results.items():
        if result.report is not None:
            _, kind, *rest = name.split("/")
            label = ", ".join([LABELS[kind], *(part.replace("-", " ") for part in rest)])
            rows[name] = row_of(label, [result], [column.name for column in shown])
    printed = published.rows(published.STORIES, 50)
    parts = [introduction, table([*shown, *COSTS], list(rows.values()), printed)]
    values = {"rows": {name: row.values for name, row in rows.items()}}
    notes = baseline_notes(experiment) + results.notes(experiment)
    return Page("Diffusion-LM and ours on stories", parts, values, notes)


def baseline_notes(experiment: Experiment) -> list[str]:
    """Return how the other model's texts are made, where they were not given."""
    if BASELINE in experiment.models:
        return []
    scale, files = experiment.scale, StoryFiles(experiment.out / HOME)
    size = scale.name if scale.name == "paper" else "mini"
    asked = {"data": files.data, "prompts": files.prompts, "length": scale.story_length}
    commands = "; ".join(f"`{command.format(size=size, **asked)}`" for command in COMMANDS)
    return [f"no texts were given as `{BASELINE}`; they are made by {commands}"]


DEFINITION = Definition(settings, page, (OURS, BLOCK, BASELINE, "init"), prepare)
