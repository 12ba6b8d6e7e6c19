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
from ssdlm.reproduce.table import COSTS, Column, columns, rows_of, table
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
NO_BASELINE = (
    f"no texts were given as `{BASELINE}`; they are made by "
    "`python benchmarks/diffusion_lm.py train --data {data} --out DIR --size {size}`; "
    "`python benchmarks/diffusion_lm.py generate --model DIR --input {prompts} --length {length} "
    "--output DIR/texts.jsonl`"
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
    return [
        setting_of(size, f"{HOME}/{name}", source, str(prompts), options)
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
    """Return the page: the paper's rows, then ours; how the other's texts are made without any."""
    scale, files = experiment.scale, StoryFiles(experiment.out / HOME)
    first, *others = scale.story_features
    count = next(iter(results.values())).setting.num_prompts
    start = experiment.models.get("init") or scale.story_init
    what = (
        f"{count} held-out prompts of {scale.story_length} tokens, one continuation of as many "
        f"each; ours is recipe `{RECIPE}` started from {start}, Diffusion-LM has the same text"
    )
    shown = [*columns(SHOWN), *(Column(f"mauve_{n}", f"MAUVE, {n}", 2, 100.0) for n in others)]
    rows = rows_of(results, HOME, LABELS, [column.name for column in shown])
    parts = [results.introduction(experiment, what, f"MAUVE's features from {first}")]
    parts += [table([*shown, *COSTS], rows.values(), published.rows(published.STORIES, 50))]
    values = {"rows": {f"{HOME}/{name}": row.values for name, row in rows.items()}}
    notes = results.notes(experiment)
    if BASELINE not in experiment.models:
        size = "paper" if scale.name == "paper" else "mini"
        asked = {"data": files.data, "prompts": files.prompts, "length": scale.story_length}
        notes.insert(0, NO_BASELINE.format(size=size, **asked))
    return Page("Diffusion-LM and ours on stories", parts, values, notes)


DEFINITION = Definition(settings, page, (OURS, BLOCK, BASELINE, "init"), prepare)
