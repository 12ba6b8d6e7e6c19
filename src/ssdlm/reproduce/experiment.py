"""What was asked for: a scale, models by role, prompts by name; and what came out of it.

scale, setting -> [experiment] -> run, tables
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Options, Setting, SettingFiles, read_if_there
from ssdlm.storage.files import sha256
from ssdlm.storage.jsonl import read_jsonl

if TYPE_CHECKING:
    from ssdlm.evaluate.figures import Metric
    from ssdlm.reproduce.page import Page


@dataclass(frozen=True)
class Experiment:
    """One run of a table."""

    scale: Scale
    out: Path
    models: Mapping[str, str] = field(default_factory=dict)
    """Role -> folder or Hub id."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name -> file; the name `all` stands for every name that is not there."""
    judges: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> folders of classifiers, with commas."""
    human: Mapping[str, str] = field(default_factory=dict)
    """Attribute -> file of labelled texts that trained neither guides nor judges."""
    device: str = "auto"
    dtype: str = "float32"
    batch_size: int = 32
    only: tuple[str, ...] = ()
    """Patterns of names of settings; nothing means all."""
    is_shown: bool = True
    """Show progress."""

    def files(self, setting: Setting) -> SettingFiles:
        """Return the files of a setting, in the folder of its former name where there is one."""
        former, now = (self.out / "cells" / n for n in (setting.former_name, setting.name))
        return SettingFiles(former if former.exists() else now)

    def prompt_file(self, name: str) -> str | None:
        """Return the prompts of a name, None where none were given."""
        return self.prompts.get(name, self.prompts.get("all"))

    def includes(self, setting: Setting) -> bool:
        """Tell whether a setting is one of those asked for, by its name now or before."""
        names = (setting.name, setting.former_name)
        return not self.only or any(fnmatch(*pair) for pair in product(names, self.only))


@dataclass(frozen=True)
class Result:
    """What is known of a setting."""

    setting: Setting
    report: Options | None
    """What `evaluate` wrote; None where the setting was not measured."""
    made: Options
    """How its generations came about; empty where there are none."""
    generations: Path
    judge: str = ""
    """The judge of the report."""

    def value(self, metric: str) -> float | None:
        """Return a figure, None where it was not measured."""
        return None if self.report is None else self.report["metrics"].get(metric)

    def interval(self, metric: str) -> list[float] | None:
        """Return the ends of a figure's interval over prompts, None where it has none."""
        return None if self.report is None else self.report["intervals"].get(metric)

    def texts(self) -> list[Options]:
        """Return the lines of the generations, none where there are none."""
        return read_jsonl(self.generations) if self.generations.exists() else []


class Results(dict[str, Result]):
    """What is known of all settings, by name."""

    def value(self, name: str, metric: str) -> float | None:
        """Return a setting's figure, None where it was not measured."""
        return self[name].value(metric) if name in self else None

    def judges(self) -> list[str]:
        """Return the judges of the reports, which need not be the one this scale would ask."""
        return sorted({one.judge for one in self.values() if one.report is not None})

    def introduction(self, experiment: Experiment, what: str, how: str, judge: str = "") -> str:
        """Return what a table's page begins with: what was written, who judged it and how."""
        judges = " and ".join(self.judges()) or judge or experiment.scale.judge
        return (
            f"Scale `{experiment.scale.name}`: {what}. Judge {judges}, {how}. MAUVE, accuracies, "
            "Dist and Rep in percent. Rows marked [paper] are printed in the paper, measured there "
            "on other text by other judges: compare shapes, not digits."
        )

    def notes(self, experiment: Experiment, roles: Iterable[str] = ()) -> list[str]:
        """Return what is missing, and in what the figures of one page are not alike."""
        lacking = [role for role in roles if role not in experiment.models]
        notes = [f"no model was given as `{role}`; its rows are missing" for role in lacking]
        if len(self.facts("settings", "model", "tokenizer.json")) > 1:
            notes.append("the models have different tokenizers: a length is in each one's tokens")
        if len(self.facts("training", "data")) > 1:
            notes.append("the models were not all trained on the same data")
        if missing := [name for name, one in self.items() if one.report is None]:
            some = ", ".join(missing[:8])
            notes.append(f"{len(missing)} settings are not measured yet: {some}")
        if len(judges := self.judges()) > 1:
            notes.append(f"not one judge but several: {', '.join(judges)}")
        return notes

    def facts(self, *path: str) -> set[str]:
        """Return the different values of a fact about how texts were made, where it is known."""
        known: list[Any] = [result.made for result in self.values()]
        for key in path:
            known = [fact.get(key) for fact in known if isinstance(fact, dict)]
        return {str(fact) for fact in known if fact}


def no_more(experiment: Experiment, setting: Setting) -> Mapping[str, Metric]:
    """Return no metrics beside those of `evaluate`."""
    del experiment, setting
    return {}


Metrics = Callable[[Experiment, Setting], "Mapping[str, Metric]"]
"""Gives a setting's metrics by name."""


@dataclass(frozen=True)
class Definition:
    """What a module of a table offers to `run`."""

    settings: Callable[[Experiment], list[Setting]]
    page: Callable[[Experiment, Results], Page]
    roles: Sequence[str] | None = None
    """Roles that a model may be given as; None stands for any."""
    prepare: Callable[[Experiment], None] = lambda experiment: None
    """Makes what the settings need, before they are listed."""
    record: Callable[[Experiment], None] = lambda experiment: None
    """Writes what belongs to no setting, while models are at hand."""
    metrics: Metrics = no_more
    """Gives a setting's metrics beside those of `evaluate`; its `extra` measure names them."""
    examine: Callable[[Experiment], None] = lambda experiment: None
    """Measures what belongs to no setting, while judges are at hand."""


def read_results(experiment: Experiment, settings: Iterable[Setting]) -> Results:
    """Return what the files of an experiment say of its settings."""
    results = Results()
    for setting in settings:
        files = experiment.files(setting)
        made, measured = read_if_there(files.made), read_if_there(files.measured)
        refuse_others(setting, made)
        is_current = measured.get("measures") == as_json(setting.measures) and (
            not files.generations.exists() or measured["generations"] == sha256(files.generations)
        )
        report = read_if_there(files.report) if is_current else {}
        judge = measured.get("judge", "")
        results[setting.name] = Result(setting, report or None, made, files.generations, judge)
    return results


def refuse_others(setting: Setting, made: Mapping[str, Any]) -> None:
    """Raise where a setting's texts were written with other options than it has."""
    known = made.get("settings", {}).get("options", setting.options)
    asked = as_json(setting.options)
    for key in sorted(known.keys() | asked.keys()):
        if known.get(key) != asked.get(key):
            raise ValueError(
                f"{setting.name} was written with {key}={known.get(key)!r}, not "
                f"{asked.get(key)!r}; ask for that, or give another --out"
            )


def as_json(value: Options) -> Options:
    """Return options as a JSON file gives them back: tuples are lists there."""
    return json.loads(json.dumps(value))
