"""Table 2: the paper's recipe against Diffusion-LM, both trained on the same stories.

Ours is trained here, by the library's own training. Diffusion-LM is benchmarks/diffusion_lm.py, and
comes as the file that it wrote: `--model diffusion_lm=texts.jsonl`. As in the paper's appendix C, a
split is one text without marks between stories, cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ssdlm.data.formats import Tally
from ssdlm.data.prepare import prepare as prepare_store
from ssdlm.data.shards import TokenStore
from ssdlm.data.sources import find_sources
from ssdlm.data.writer import is_held_out
from ssdlm.evaluate.judge import MINILM, minilm_folder
from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Definition, Experiment, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.prompts import distinct, split_window
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Diffusion, Given, Gold, Options, Setting, TextSource
from ssdlm.reproduce.table import COSTS, Column, columns, rows_of, table
from ssdlm.reproduce.table1 import PAPER_SAMPLER, setting_of
from ssdlm.storage.jsonl import read_jsonl, write_jsonl
from ssdlm.tokenizer import load_tokenizer

SHOWN = ("mauve", "ppl_micro", "dist-1", "dist-2", "dist-3", "zipf", "rep")
HOME, RECIPE = "stories", "paper_rocstories"
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


class StoryFiles:
    """The files of the stories: both splits as texts, their tokens, prompts, and our model."""

    def __init__(self, out: Path) -> None:
        self.folder = folder = out / HOME
        self.texts, self.data = folder / "texts.jsonl", folder / "data"
        self.prompts, self.model = folder / "prompts.jsonl", folder / "ours"


def prepare(experiment: Experiment) -> None:
    """Tokenise the stories, cut prompts, and train our model, unless it is given or left out."""
    scale, files = experiment.scale, StoryFiles(experiment.out)
    init = experiment.models.get("init") or scale.story_init
    init = str(minilm_folder()) if init == MINILM else init
    if source := experiment.prompts.get(HOME):
        prepare_stories(source, files, tokenizer=init, scale=scale)
    ours = [one for one in settings(experiment) if one.name.startswith(f"{HOME}/ours/")]
    if OURS not in experiment.models and any(map(experiment.includes, ours)):
        from ssdlm.train import configure, train

        given = [f"init={init}", f"max_len={2 * scale.story_length}", f"model.B={scale.B}"]
        given += [f"device={experiment.device}", *scale.story_train]
        train(configure(RECIPE, given), data=[files.data], out=files.model)


def prepare_stories(source: str, files: StoryFiles, *, tokenizer: str, scale: Scale) -> None:
    """Write the token store and the prompts; what is there of the same stories is left."""
    files.folder.mkdir(parents=True, exist_ok=True)
    pieces = [piece for one in find_sources([source]) for piece in one.pieces(Tally())]
    stories = [" ".join(piece.text.split()) for piece in pieces]
    train, held = split(stories, scale.story_holdout)
    # Of two documents the library keeps back one of its own choice: that one is the held-out text.
    documents = [held, train] if is_held_out(0, 0.5) else [train, held]
    write_if_other(files.texts, [{"text": " ".join(stories)} for stories in documents])
    prepare_store([files.texts], tokenizer=tokenizer, out=files.data, holdout=0.5)
    prompts = prompts_of(files.data, length=scale.story_length, count=scale.stories)
    write_if_other(files.prompts, prompts)


def split(stories: Sequence[str], holdout: float) -> tuple[list[str], list[str]]:
    """Return the stories for training, and those kept from it."""
    parts: tuple[list[str], list[str]] = ([], [])
    for number, story in enumerate(stories):
        parts[is_held_out(number, holdout)].append(story)
    if not all(parts):
        raise ValueError(
            f"{len(stories)} stories with a share of {holdout} held out leave a part empty; "
            "give more stories or another --set story_holdout"
        )
    return parts


def prompts_of(data: Path, *, length: int, count: int) -> list[Options]:
    """Return up to `count` prompts with gold, cut from sequences that share no token."""
    store, tokenizer = TokenStore.open(data, "holdout"), load_tokenizer(data)
    ids = store.read(0, len(store) - 1).tolist()
    starts = range(0, len(ids) - 2 * length + 1, 2 * length)
    windows = [split_window(tokenizer, ids[i : i + 2 * length], length) for i in starts]
    lines = [line | {"source": "stories"} for line in windows if line is not None]
    if not lines:
        raise ValueError(
            f"the held-out stories have {len(ids)} tokens, too few for one sequence of "
            f"{2 * length}; give more stories"
        )
    return list(distinct(lines))[:count]


def write_if_other(path: Path, lines: Sequence[Options]) -> None:
    """Write JSON lines, unless they are there: what depends on a file goes by its digest."""
    if not path.exists() or read_jsonl(path) != list(lines):
        write_jsonl(path, lines)


def settings(experiment: Experiment) -> list[Setting]:
    """Return human text, Diffusion-LM where its texts are given, and ours: a text per prompt."""
    scale, prompts = experiment.scale, StoryFiles(experiment.out).prompts
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
    ours = Diffusion(models.get(OURS) or str(StoryFiles(experiment.out).model))
    for T, top_p in product(scale.story_T, scale.story_top_p):
        options = {"B": scale.B, "T": T, "top_p": top_p, "projection": "sampling"}
        yield f"ours/sampling-p{top_p:g}-T{T}", ours, fixed | PAPER_SAMPLER | options
    if BLOCK in models:
        yield "block/own", Diffusion(models[BLOCK]), fixed


def page(experiment: Experiment, results: Results) -> Page:
    """Return the page: the paper's rows, then ours; how the other's texts are made without any."""
    scale, files = experiment.scale, StoryFiles(experiment.out)
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
