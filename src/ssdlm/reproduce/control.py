"""`reproduce control`: ways to steer on one bench, by judges that no guide has seen.

Every model writes after the same fresh prompts (`prompts.FRESH`), steered to each label of an
attribute by each arm (`control_arms`). Two or more judges tell the label, their own accuracy on
human texts stands above the table, and stuffing is held against that of human texts.

    control_arms -> [control] -> settings -> texts -> reports -> OUT/control.md, control-texts.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ssdlm.data.labelled import read_labelled
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.evaluate.cache import JudgeCache
from ssdlm.evaluate.control import refuse_guides_as_judges
from ssdlm.evaluate.figures import Metric
from ssdlm.evaluate.judge import load_encoder
from ssdlm.evaluate.mauve import mauve_to_texts
from ssdlm.evaluate.stuffing import TELLING, stuffing, word_counts
from ssdlm.guidance import load_text_classifier
from ssdlm.guidance.linear import LinearJudge
from ssdlm.reproduce.control_arms import LABELS, Arm, Target, arms, guides, targets
from ssdlm.reproduce.experiment import Definition, Experiment, Result, Results
from ssdlm.reproduce.page import Page
from ssdlm.reproduce.prompts import FRESH
from ssdlm.reproduce.setting import Diffusion, Instructed, Options, Setting, read_if_there
from ssdlm.reproduce.table import average, average_interval, code, markdown
from ssdlm.storage.builtin import DEFAULT_MODEL, SMOLLM2
from ssdlm.storage.files import sha256, write_json, write_text
from ssdlm.storage.jsonl import read_jsonl
from ssdlm.tokenizer import load_tokenizer

METRICS = ("ppl", "dist", "self_bleu")
SHOWN_TEXTS = 30
"""Of each arm, the first ones."""
DETAILS = '<details markdown="1">'
"""Begins what a reader unfolds, on GitHub and in MkDocs."""
AS_WRITERS: dict[str, Options] = {SMOLLM2: {"temperature": 1.0}}
"""Options of models that are made for answers: at their own temperature all texts are alike."""
READERS = {SMOLLM2: DEFAULT_MODEL, "builtin:smol": DEFAULT_MODEL}
"""Who reads the texts of a writer for perplexity, where it is not the scale's judge."""


def settings(experiment: Experiment) -> list[Setting]:
    """Return each label under each arm, for every model and attribute that has a guide."""
    refuse_bad_judges(experiment)
    file = Path(experiment.prompt_file("control") or FRESH)
    count = len(read_prompts(file))
    found = []
    for role, model in experiment.models.items():
        for attribute in attributes(experiment):
            some = targets(experiment.scale, attribute)
            texts = experiment.scale.bench_texts[attribute != "sentiment"]
            samples = -(-texts // (count * len(some)))
            for arm in arms(experiment.scale, model):
                for number, target in enumerate(some):
                    found.append(
                        Setting(
                            f"{role}/{attribute}/{arm.name}/{target.name}",
                            Instructed(model, target.instruction())
                            if arm.is_instructed
                            else Diffusion(model),
                            str(file),
                            count,
                            samples,
                            options_of(experiment, model, arm, target, number),
                            measures_of(experiment, target),
                            judge_of(experiment, model),
                            has_reference=False,
                            needs_gradient=arm.needs_gradient,
                        )
                    )
    return found


def attributes(experiment: Experiment) -> list[str]:
    """Return the attributes that have guides, of those asked for; raise where none has."""
    known, asked = guides(experiment.scale), experiment.scale.attributes
    for one in asked:
        targets(experiment.scale, one)  # knows what attributes there are
    found = [one for one in asked if set(one.split("+")) <= known.keys()]
    if not found:
        raise ValueError(
            f"attributes={','.join(asked)} has no guide; give folders named for attributes: --set "
            "bench_guides=FOLDER,FOLDER"
        )
    return found


def options_of(
    experiment: Experiment, model: str, arm: Arm, target: Target, number: int
) -> Options:
    """Return how an arm writes the texts of one target, each target by noise of its own."""
    scale = experiment.scale
    usual = {"length": scale.bench_length, "seed": scale.seed + number}
    usual |= {"never_end": True, "stop_at_end": False}
    control = [] if arm.weight is None else target.controls(scale, arm.weight)
    by = {"control_by": target.description()} if arm.is_described else {}
    usual |= AS_WRITERS.get(model, {})
    return usual | ({"control": control} if control else {}) | by | arm.options


def judge_of(experiment: Experiment, model: str) -> str:
    """Return who reads a model's texts for perplexity: never the model itself."""
    judge = experiment.scale.control_ppl or READERS.get(model) or experiment.scale.judge
    if judge == model:
        raise ValueError(f"control_ppl={judge} would read its own texts; give another judge")
    return judge


def judges_of(experiment: Experiment, attribute: str) -> list[str]:
    """Return the folders of an attribute's judges."""
    return experiment.judges.get(attribute, "").split(",") if attribute in experiment.judges else []


def refuse_bad_judges(experiment: Experiment) -> None:
    """Raise on judges and human texts of no attribute, and on judges that are guides."""
    for name, given in (("judge", experiment.judges), ("human", experiment.human)):
        for attribute in given.keys() - LABELS.keys():
            there = ", ".join(LABELS)
            raise ValueError(f"--{name} {attribute}={given[attribute]}: there is {there}")
    known = guides(experiment.scale)
    for attribute in experiment.judges:
        judges = judges_of(experiment, attribute)
        for folder in judges:
            if not Path(folder).is_dir():
                raise ValueError(f"judge {folder} is no folder; make one with `ssdlm train-judge`")
        one = LABELS[attribute][0]
        refuse_guides_as_judges(
            [f"{home}=0" for home in known.values()], [f"{folder}={one}" for folder in judges]
        )
    for path in experiment.human.values():
        if not Path(path).is_file():
            raise ValueError(f"human texts {path} are no file; give text and label on each line")


def measures_of(experiment: Experiment, target: Target) -> Options:
    """Return the options of `evaluate`, and by `extra` what the bench's own metrics depend on."""
    pairs = list(zip(target.attributes, target.labels, strict=True))
    judges = [f"{home}={label}" for name, label in pairs for home in judges_of(experiment, name)]
    extra = {}
    for attribute, label in pairs:
        if judges_of(experiment, attribute):
            extra[f"stuffing:{attribute}"] = f"{TELLING} words of {label}"
        if attribute in experiment.human and len(pairs) == 1 and experiment.scale.bench_features:
            digest = sha256(Path(experiment.human[attribute]))
            extra["mauve_human"] = f"{experiment.scale.bench_features} {label} {digest}"
    return {"metrics": METRICS, "control_judges": judges, "extra": extra}


def metrics_of(experiment: Experiment, setting: Setting) -> dict[str, Metric]:
    """Return the metrics of a setting that the bench adds to those of `evaluate`."""
    _, name, _, label = setting.name.split("/")
    labels = dict(zip(name.split("+"), label.split("+"), strict=True))
    found: dict[str, Metric] = {}
    for metric in setting.measures["extra"]:
        if metric == "mauve_human":
            human = human_texts(experiment, name)[label]
            human = human[: setting.num_prompts * setting.num_samples]
            encoder = encoder_of(experiment.scale.bench_features)
            readings = JudgeCache(experiment.out / "readings", is_writable=True)
            found[metric] = partial(mauve_to_texts, human=human, model=encoder, cache=readings)
        else:
            attribute = metric.partition(":")[2]
            words = telling_words(tuple(judges_of(experiment, attribute)))[labels[attribute]]
            found[metric] = partial(stuffing, telling=words)
    return found


@cache
def encoder_of(name: str):
    """Return what MAUVE's features are of, loaded once."""
    return load_encoder(name, None)


@cache
def telling_words(judges: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Return the words that tell each label most, by the first linear one of some judges."""
    for folder in judges:
        judge = load_text_classifier(folder)
        if isinstance(judge, LinearJudge):
            return {label: frozenset(judge.telling(label, TELLING)) for label in judge.labels}
    raise ValueError(
        f"none of {', '.join(judges)} is linear, and telling words are by its weights; make one "
        "with `ssdlm train-judge --linear`"
    )


def human_texts(experiment: Experiment, attribute: str) -> dict[str, list[str]]:
    """Return held-out human texts by label, cut to as many tokens as are written."""
    tokenizer, found = load_tokenizer(DEFAULT_MODEL), {label: [] for label in LABELS[attribute]}
    for row in read_labelled(experiment.human[attribute]):
        if row.label not in found:
            there = ", ".join(found)
            raise ValueError(
                f"{experiment.human[attribute]} has the label {row.label!r}; there is {there}"
            )
        ids = tokenizer.encode(row.text)[: experiment.scale.bench_length]
        found[row.label].append(tokenizer.decode(ids))
    if lacking := [label for label, texts in found.items() if not texts]:
        raise ValueError(f"{experiment.human[attribute]} has no text of {lacking[0]}; add some")
    return found


def examine(experiment: Experiment) -> None:
    """Write human.json: how judges do on human texts, and what share of these is telling words."""
    found: Options = {}
    for attribute in experiment.human:
        texts, judges = human_texts(experiment, attribute), judges_of(experiment, attribute)
        own: Options = {"texts": {label: len(some) for label, some in texts.items()}}
        found[attribute] = own
        own["accuracy"] = {judge: accuracies(judge, texts) for judge in judges}
        if judges:
            words = telling_words(tuple(judges))
            own["stuffing"] = {label: share(some, words[label]) for label, some in texts.items()}
    write_json(experiment.out / "human.json", found)


def accuracies(judge: str, texts: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the share of texts of each label that a judge gets right."""
    classifier = load_text_classifier(judge)
    found = {}
    for label, some in texts.items():
        said = classifier.log_probs(some).argmax(-1)
        found[label] = float((said == classifier.labels.index(label)).float().mean())
    return found


def share(texts: Iterable[str], words: frozenset[str]) -> float:
    """Return the share of telling words in texts."""
    counts = [word_counts(text, words) for text in texts]
    return sum(one for one, _ in counts) / sum(total for _, total in counts)


def record(experiment: Experiment) -> None:
    """Write control-texts.md: the first texts of each arm, unchosen."""
    parts = [f"# Texts under control\n\nThe first {SHOWN_TEXTS} of each arm, unchosen."]
    for role, model in experiment.models.items():
        for attribute in attributes(experiment):
            some = targets(experiment.scale, attribute)
            for arm in arms(experiment.scale, model):
                each = -(-SHOWN_TEXTS // len(some))
                rows = [
                    [target.name, code(line["prompt"] + line["text"])]
                    for target in some
                    for line in first_texts(
                        experiment, f"{role}/{attribute}/{arm.name}/{target.name}", each
                    )
                ]
                if rows:
                    table = markdown(["steered to", "text"], rows, words=2)
                    summary = f"<summary>{len(rows)} texts</summary>"
                    parts += [f"## {role}, {attribute}: {arm.name}", DETAILS + summary, table,
                              "</details>"]  # fmt: skip
    write_text(experiment.out / "control-texts.md", "\n\n".join(parts) + "\n")


def first_texts(experiment: Experiment, name: str, count: int) -> list[Options]:
    """Return the first text of each of the first prompts of a setting, none if it has none."""
    path = experiment.out / "cells" / name / "generations.jsonl"
    lines = read_jsonl(path) if path.exists() else []
    return [line for line in lines if line.get("sample", 0) == 0][:count]


def page(experiment: Experiment, results: Results) -> Page:
    """Return the page: judges on human texts, then a table for each model and attribute."""
    scale = experiment.scale
    human = read_if_there(experiment.out / "human.json")
    parts = [
        f"{scale.bench_length} tokens after each prompt; brackets are 95 % intervals over prompts. "
        "PPL is the macro average by a model that is not the writer, and its ratio to texts "
        "without control. Stuffing is the share of words that are among the "
        f"{TELLING} that tell the label most, and its ratio to human texts of the label.",
        "## Judges on human texts",
        judges_table(human),
    ]
    values: Options = {"human": human, "rows": []}
    for role, model in experiment.models.items():
        every = list(arms(scale, model))
        for attribute in attributes(experiment):
            rows = [row_of(experiment, results, role, attribute, arm, human) for arm in every]
            done = [row for row in rows if row]
            if not done:
                continue
            values["rows"] += done
            heading = list(dict.fromkeys(key for row in done for key in row["cells"]))
            cells = [[row["arm"], *(row["cells"].get(key, "") for key in heading)] for row in done]
            parts += [f"## {role}: {attribute}", markdown(["arm", *heading], cells)]
    described = dict.fromkeys(f"{a.name}: {a.about}" for m in experiment.models.values()
                              for a in arms(scale, m))  # fmt: skip
    parts += ["## Arms", "\n".join(f"- {line}" for line in described)]
    return Page("Control", parts, values, lacking(experiment) + results.notes(experiment))


def lacking(experiment: Experiment) -> list[str]:
    """Return a note on each attribute that misses its guide, its judges or its human texts."""
    asked = experiment.scale.attributes
    notes = [
        f"{one} has no guide and is left out; give folders named for attributes: --set "
        "bench_guides=FOLDER,FOLDER"
        for one in asked if one not in attributes(experiment)
    ]  # fmt: skip
    given = (
        ("judge", experiment.judges, "accuracy or stuffing", "FOLDER,FOLDER (`ssdlm train-judge`)"),
        ("human", experiment.human, "MAUVE, and judges no accuracy of their own", "FILE"),
    )
    for name, known, what, value in given:
        names = dict.fromkeys(part for one in attributes(experiment) for part in one.split("+"))
        notes += [
            f"texts of {one} have no {what}: give --{name} {one}={value} and run this again, which "
            "writes nothing anew"
            for one in names if one not in known
        ]  # fmt: skip
    return notes


def judges_table(human: Options) -> str:
    """Return the accuracy of every judge on human texts of each label, in percent."""
    rows = []
    for attribute, own in human.items():
        counts = ", ".join(f"{label} {count:,}" for label, count in own["texts"].items())
        for judge, shares in own["accuracy"].items():
            each = ", ".join(f"{label} {100 * value:.1f}" for label, value in shares.items())
            mean = sum(shares.values()) / len(shares)
            rows.append([attribute, Path(judge).name, f"{100 * mean:.1f}", each, counts])
    if not rows:
        return "No judge, or no human texts: give --judge and --human."
    return markdown(["attribute", "judge", "accuracy", "by label", "texts"], rows, words=2)


def row_of(
    experiment: Experiment, results: Results, role: str, attribute: str, arm: Arm, human: Options
) -> Options:
    """Return an arm's figures over all labels and of each, nothing until all are measured."""
    some = targets(experiment.scale, attribute)
    found = [results[f"{role}/{attribute}/{arm.name}/{target.name}"] for target in some]
    if any(one.report is None for one in found):
        return {}
    plain = [results.value(f"{role}/{attribute}/none/{one.name}", "ppl_macro") for one in some]
    lines = [line for one in found for line in one.texts()]
    cells: dict[str, str] = {}
    for name in attribute.split("+"):
        for home in judges_of(experiment, name):
            judged = [
                (one, accuracy_name(one, f"{home}={target.labels[target.attributes.index(name)]}"))
                for one, target in zip(found, some, strict=True)
            ]
            title = Path(home).name
            cells[title] = shown(judged, percent=True)
            for label, which in by_label(name, some).items():
                cells[f"{title}: {label}"] = shown([judged[one] for one in which], percent=True)
    cells["PPL"] = shown([(one, "ppl_macro") for one in found])
    ppl, base = average(one.value("ppl_macro") for one in found), average(plain)
    cells["ratio"] = f"{ppl / base:.2f}" if ppl and base else "-"
    cells["MAUVE"] = shown([(one, "mauve_human") for one in found], percent=True)
    for name in attribute.split("+"):
        shares, metric = human.get(name, {}).get("stuffing", {}), f"stuffing:{name}"
        for label, which in by_label(name, some).items():
            value = average(found[one].value(metric) for one in which)
            if value is not None:
                beside = f" ({value / shares[label]:.2f} x)" if shares.get(label) else ""
                each = shown([(found[one], metric) for one in which], percent=True)
                cells[f"stuffing: {label}"] = each + beside
    for metric, title in (("dist-2", "Dist-2"), ("self_bleu", "self-BLEU")):
        cells[title] = shown([(one, metric) for one in found], percent=True)
    passes = average(line["passes_per_token"] for line in lines)
    seconds = [one.made.get("seconds") for one in found]
    cells["passes per token"] = f"{passes:.2f}"
    known = [one for one in seconds if one is not None]
    cells["seconds"] = f"{sum(known):.0f}" if len(known) == len(seconds) else "-"
    cells["texts"] = str(len(lines))
    return {"model": role, "attribute": attribute, "arm": arm.name, "cells": cells}


def by_label(attribute: str, some: Sequence[Target]) -> dict[str, list[int]]:
    """Return which of some targets have each label of an attribute."""
    return {
        label: [number for number, one in enumerate(some) if label in one.labels]
        for label in LABELS[attribute]
    }


def accuracy_name(result: Result, judge: str) -> str:
    """Return what a report calls the accuracy by a judge: its name only where there are several."""
    asked = result.setting.measures["control_judges"]
    return "control_external" if len(asked) == 1 else f"control_external:{judge}"


def shown(pairs: Sequence[tuple[Result, str]], *, percent: bool = False) -> str:
    """Return the mean of some figures with its interval, as a cell has it."""
    unit = 100 if percent else 1
    value = average(one.value(name) for one, name in pairs)
    if value is None:
        return "-"
    interval = average_interval([one.interval(name) for one, name in pairs])
    if interval is None:
        return f"{unit * value:.1f}"
    low, high = interval[0], min(interval[1], 1.0) if percent else interval[1]
    return f"{unit * value:.1f} [{unit * low:.1f}, {unit * high:.1f}]"


DEFINITION = Definition(settings, page, record=record, metrics=metrics_of, examine=examine)
