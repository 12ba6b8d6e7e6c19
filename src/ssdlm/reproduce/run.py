"""An experiment from end to end: a table by name, its settings run, its page written.

scale, models, prompts -> experiment -> [run]: settings -> generation -> measurement -> page
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from ssdlm.engine.prompt_files import read_prompts
from ssdlm.reproduce.experiment import Definition, Experiment, Results, read_results
from ssdlm.reproduce.generation import generate, gold_texts
from ssdlm.reproduce.scale import scale_of
from ssdlm.reproduce.setting import FORMER_ROLE, ROLE, Options, Setting
from ssdlm.storage.builtin import SMOLLM2, builtin_folder
from ssdlm.values import choose, renamed

DTYPES = ("float32", "bfloat16")
TABLES = ("table1", "table2", "table3", "figures", "control")
STAGES = ("generate", "read", "evaluate", "page", "both")


def reproduce(
    name: str,
    *,
    out: str | Path,
    scale: str = "mini",
    stage: str = "both",
    models: Sequence[str] = (),
    prompts: Sequence[str] = (),
    judges: Sequence[str] = (),
    human: Sequence[str] = (),
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int = 32,
) -> list[Path]:
    """Run an experiment, or what is left of it; return the files of its page, none before them.

    `models` are ROLE=FOLDER, `prompts` are NAME=FILE, `judges` ATTRIBUTE=FOLDER,FOLDER, `human`
    ATTRIBUTE=FILE, `overrides` are FIELD=VALUE of the scale.
    """
    choose("stage", stage, STAGES)
    choose("dtype", dtype, DTYPES)
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    table: Definition = import_module(f"ssdlm.reproduce.{name}").DEFINITION
    size, given = scale_of(scale, overrides), models_by_role(models)
    for role in given:
        if table.roles is not None and role not in table.roles:
            there = ", ".join(table.roles)
            raise ValueError(f"{name} has no use for a model as {role!r}; there are {there}")
    every = models_by_role(size.models) | given
    files = by_name(prompts, "prompts", "50=prompts-50.jsonl", bare="all")
    outside = by_name(judges, "judge", "sentiment=judges/linear,judges/network")
    labelled = by_name(human, "human", "sentiment=reviews.test.jsonl")
    places = (Path(out), every, files, outside, labelled)
    experiment = Experiment(size, *places, device, dtype, batch_size, only=tuple(only))
    for path in files.values():
        if not Path(path).is_file():
            raise ValueError(f"prompts {path!r} are no file; make one with `ssdlm prompts`")
    if stage in ("generate", "both"):
        table.prepare(experiment)
    settings = checked(table.settings(experiment))
    chosen = [setting for setting in settings if experiment.includes(setting)]
    if settings and not chosen:
        some = ", ".join(one.name for one in settings[:: -(-len(settings) // 6)])
        asked = " or ".join(only)
        raise ValueError(f"no setting of {name} is named {asked}; there are {some}, ...")
    if stage == "both":
        refuse_uninstalled(experiment, chosen)
    if stage in ("generate", "both"):
        generate(experiment, chosen)
        table.record(experiment)
    if stage in ("read", "evaluate", "both"):
        from ssdlm.reproduce.measurement import measure

        measure(experiment, chosen, table.metrics, only_read=stage == "read")
    if stage in ("evaluate", "both"):
        table.examine(experiment)
    if stage in ("generate", "read"):
        return []
    results = read_results(experiment, settings)
    page = table.page(experiment, results)
    return replace(page, values=page.values | facts(experiment, results)).save(name, experiment.out)


def refuse_uninstalled(experiment: Experiment, settings: Sequence[Setting]) -> None:
    """Raise on a judge that comes with a package of its own which is not here, before any text."""
    from ssdlm.evaluate.judge import MINILM, minilm_folder

    asked = {setting.judge or experiment.scale.judge for setting in settings}
    extra = [str(one) for setting in settings for one in setting.measures.get("extra", {}).values()]
    if SMOLLM2 in asked:
        builtin_folder(SMOLLM2)
    if any(one.split()[0] == MINILM for one in extra):
        minilm_folder()


def by_name(texts: Sequence[str], what: str, example: str, bare: str = "") -> dict[str, str]:
    """Return NAME=VALUE as a mapping; `bare` is the name of a value without one."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = bare, text
        if not name or not value:
            raise ValueError(f"{what} {text!r} is not NAME=VALUE; write for example {example}")
        if name in values:
            raise ValueError(f"{what} {name} is given twice; give it once")
        values[name] = value
    return values


def models_by_role(models: Sequence[str]) -> dict[str, str]:
    """Return ROLE=MODEL as a mapping, with roles as they are named now."""
    has_former = any(text.startswith(f"{FORMER_ROLE}=") for text in models)
    role = renamed("role", FORMER_ROLE, ROLE, until="0.4") if has_former else ROLE
    named = [re.sub(f"^{FORMER_ROLE}=", f"{role}=", text) for text in models]
    return by_name(named, "model", "ours=runs/mini")


def checked(settings: Sequence[Setting]) -> list[Setting]:
    """Return each setting once, with no more prompts than its file has, and the gold it needs."""
    known: dict[str, Setting] = {}
    for setting in settings:
        if known.setdefault(setting.name, setting) != setting:
            raise ValueError(f"two different settings are named {setting.name}; name them apart")
    found = []
    for setting in known.values():
        count = len(read_prompts(Path(setting.prompts)))
        found.append(replace(setting, num_prompts=min(setting.num_prompts, count)))
        if setting.has_reference:
            gold_texts(found[-1])
    return found


def facts(experiment: Experiment, results: Results) -> Options:
    """Return what a page's JSON has of every experiment: its size, models, and all settings."""
    kept = ("metrics", "intervals", "reference", "counts", "notes", "versions")
    settings = {
        name: {"options": result.setting.options, "made": result.made}
        | {key: (result.report or {}).get(key) for key in kept}
        for name, result in results.items()
    }
    scale = asdict(experiment.scale)
    return {"scale": scale, "models": dict(experiment.models), "cells": settings}
