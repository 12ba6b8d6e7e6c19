"""Table 2: the paper's recipe against Diffusion-LM, both trained on the same stories.

Ours is trained here, by the library's own training. Diffusion-LM is benchmarks/diffusion_lm.py, and
comes as the file that it wrote: `--model diffusion_lm=texts.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

from ssdlm.reproduce import published
from ssdlm.reproduce.experiment import Findings, Order
from ssdlm.reproduce.page import Page, number, percent, table
from ssdlm.reproduce.setting import Author, Cell, Diffusion, Given, Gold
from ssdlm.reproduce.stories import (
    RECIPE,
    StoryPlace,
    prepare_stories,
    start_of,
    train_on_stories,
)
from ssdlm.reproduce.table1 import PAPER_SAMPLER, cost, of_models

METRICS = ("mauve", "ppl", "dist", "zipf", "rep")
COLUMNS = {
    "mauve": "MAUVE",
    "ppl_micro": "PPL",
    "dist-1": "Dist-1",
    "dist-2": "Dist-2",
    "dist-3": "Dist-3",
    "zipf": "Zipf",
    "rep": "Rep",
}
HOME = "stories"
OURS, BLOCK, BASELINE = "stories", "stories_block", "diffusion_lm"
"""Roles: a model of the paper's recipe, a BlockDenoiser, and the other's texts."""
ROLES = (OURS, BLOCK, BASELINE, "init")
COMMANDS = """python benchmarks/diffusion_lm.py train --data {data} --out DIR --size {size}
python benchmarks/diffusion_lm.py generate --model DIR --input {prompts} --length {length} \\
    --output DIR/texts.jsonl"""


def place_of(order: Order) -> StoryPlace:
    """Return where the stories are."""
    return StoryPlace(order.out / HOME)


def prepare(order: Order) -> None:
    """Tokenise the stories, cut prompts, and train our model, unless given or not wanted."""
    scale, place = order.scale, place_of(order)
    init = start_of(order.model("init") or scale.story_init)
    if source := order.prompts.get(HOME):
        prepare_stories(
            source,
            place,
            tokenizer=init,
            holdout=scale.story_holdout,
            length=scale.story_length,
            count=scale.stories,
        )
    require_prompts(order)
    if order.model(OURS) is None and wants_ours(order):
        train_on_stories(
            place,
            init=init,
            length=scale.story_length,
            B=scale.B,
            device=order.device,
            settings=scale.story_train,
        )


def wants_ours(order: Order) -> bool:
    """Tell whether a text of our model is asked for."""
    names = [cell.name for cell in all_cells(order) if cell.name.startswith(f"{HOME}/ours/")]
    return not order.only or any(fnmatch(name, wish) for name in names for wish in order.only)


def require_prompts(order: Order) -> None:
    """Raise where the stories have not been prepared."""
    if not place_of(order).prompts.exists():
        raise ValueError(
            "there are no stories; give --prompts stories=FILE, a .jsonl with a text a story, "
            "to the stage generate"
        )


def cells(order: Order) -> list[Cell]:
    """Return people, Diffusion-LM where its texts are given, and ours."""
    require_prompts(order)
    return list(all_cells(order))


def all_cells(order: Order) -> Iterator[Cell]:
    """Yield the settings."""
    scale = order.scale
    fixed = {"length": scale.story_length, "seed": scale.seed}
    yield cell(order, f"{HOME}/gold", Gold(), {})
    if texts := order.model(BASELINE):
        yield cell(order, f"{HOME}/{BASELINE}", Given(texts), {})
    model = Diffusion(order.model(OURS) or str(place_of(order).model))
    for T in scale.story_T:
        for top_p in scale.story_top_p:
            options = fixed | PAPER_SAMPLER | {"B": scale.B, "T": T, "top_p": top_p}
            options |= {"projection": "sampling"}
            yield cell(order, f"{HOME}/ours/sampling-p{top_p:g}-T{T}", model, options)
    if block := order.model(BLOCK):
        yield cell(order, f"{HOME}/block/own", Diffusion(block), fixed)


def cell(order: Order, name: str, author: Author, options: dict[str, Any]) -> Cell:
    """Return a cell of this table: one text a prompt, as in the paper."""
    is_gold = isinstance(author, Gold)
    features = {} if is_gold else {"features": order.scale.story_features}
    return Cell(
        name=name,
        author=author,
        prompts=str(place_of(order).prompts),
        num_prompts=order.scale.stories,
        options=options,
        measures={"metrics": METRICS[1:] if is_gold else METRICS} | features,
        has_reference=not is_gold,
    )


def page(order: Order, found: Findings) -> Page:
    """Return the page: the paper's rows, then ours."""
    columns = COLUMNS | {
        f"mauve_{name}": f"MAUVE, {name}" for name in order.scale.story_features[1:]
    }
    measured = [name for name, finding in found.items() if finding.report is not None]
    values = {name: figures(found, name, columns) for name in measured}
    heading = ["", *columns.values(), "tokens seen", "training s", "writing s"]
    rows = [shown(f"[paper] {method}", row, columns) for method, row in printed()]
    rows += [shown(label(name), values[name], columns, cost(found, [name])) for name in measured]
    parts = [introduction(order, found), table(heading, rows)]
    return Page("Diffusion-LM and ours on stories", parts, {"rows": values}, notes(order, found))


def introduction(order: Order, found: Findings) -> str:
    """Return what the figures are."""
    scale, judge = order.scale, " and ".join(found.judges()) or order.scale.judge
    count = next(iter(found.values())).cell.num_prompts
    start = order.model("init") or scale.story_init
    return (
        f"Scale `{scale.name}`: {count} held-out prompts of {scale.story_length} tokens, one "
        f"continuation of {scale.story_length} tokens each. Ours is recipe `{RECIPE}`, started "
        f"from {start}; Diffusion-LM is trained on the same text. Judge {judge}, "
        f"MAUVE's features from {scale.story_features[0]}. MAUVE, Dist and Rep in percent. Rows "
        "marked [paper] are printed in the paper, measured there on more stories by other judges."
    )


def figures(found: Findings, name: str, columns: dict[str, str]) -> dict[str, float | None]:
    """Return a cell's figures; people are the measure of themselves."""
    known = {metric: found.value(name, metric) for metric in columns}
    is_gold = isinstance(found[name].cell.author, Gold)
    return known | ({"mauve": 1.0} if is_gold else {})


def printed() -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the paper's rows."""
    for row in published.rows(published.STORIES, 50):
        yield ", ".join(filter(None, (row.model, row.setting))), row.values


def shown(
    name: str,
    values: dict[str, Any],
    columns: dict[str, str],
    costs: Sequence[str] = ("", "", ""),
) -> list[str]:
    """Return a row as the paper prints it."""
    forms = [percent if is_percent(metric) else number for metric in columns]
    cells = [form(values.get(metric)) for form, metric in zip(forms, columns, strict=True)]
    return [name, *cells, *costs]


def is_percent(metric: str) -> bool:
    """Tell whether a figure is printed in percent."""
    return metric.startswith("mauve") or metric in published.PERCENT


def label(name: str) -> str:
    """Return a cell in words."""
    names = {
        "gold": "Gold continuation",
        BASELINE: "Diffusion-LM",
        "ours": "SSD-LM, the paper's recipe",
        "block": "BlockDenoiser",
    }
    _, kind, *setting = name.split("/")
    return ", ".join([names[kind], *(part.replace("-", " ") for part in setting)])


def notes(order: Order, found: Findings) -> list[str]:
    """Return what is missing, and how it is made."""
    scale, place, said = order.scale, place_of(order), []
    if order.model(BASELINE) is None:
        size = scale.name if scale.name == "paper" else "mini"
        asked = {"data": place.data, "prompts": place.prompts, "length": scale.story_length}
        commands = COMMANDS.format(size=size, **asked).replace("\\\n    ", "").splitlines()
        told = "; ".join(f"`{command}`" for command in commands)
        said.append(f"no texts were given as `{BASELINE}`; they are made by {told}")
    if len(of_models(found, "training", "data")) > 1:
        said.append("the models were not all trained on the same data")
    if missing := found.missing():
        said.append(f"{len(missing)} cells are not measured yet: {', '.join(missing)}")
    return said
