"""The stages `read` and `evaluate`: a setting's report, written by the library's own evaluation.

generation -> [measurement] -> OUT/cells/NAME/report.json, measured.json -> page

Judges `read` the texts on a GPU, and OUT/readings keeps what they find for `evaluate` anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ssdlm.evaluate.cache import JudgeCache
from ssdlm.evaluate.figures import Metric
from ssdlm.evaluate.judge import Judge, load_judge
from ssdlm.evaluate.run import Observe, evaluate, fill_cache
from ssdlm.progress import bar
from ssdlm.reproduce.experiment import Experiment, Metrics, as_json, no_more, refuse_others
from ssdlm.reproduce.generation import gold_texts
from ssdlm.reproduce.setting import Gold, Options, Setting, read_if_there
from ssdlm.storage.files import sha256, write_json

Load = Callable[[str], Judge]
"""Opens a judge by name."""


def measure(
    experiment: Experiment,
    settings: Sequence[Setting],
    metrics: Metrics = no_more,
    only_read: bool = False,
) -> None:
    """Write the reports that settings with texts lack; or let the judges read, and report none."""
    stage = "read" if only_read else "evaluate"
    load = cache(lambda name: load_judge(name, device_of(experiment)))
    with bar(stage, len(settings), is_shown=experiment.is_shown) as show:
        for number, setting in enumerate(settings):

            def observe(what: str, done: int, total: int) -> None:
                show(number, f"{setting.name}: {what} {done}/{total}")  # noqa: B023

            if experiment.files(setting).generations.exists():
                extra = partial(metrics, experiment, setting)
                measure_setting(experiment, setting, load, observe, extra, only_read)
            show(number + 1, setting.name)


def measure_setting(
    experiment: Experiment,
    setting: Setting,
    load: Load,
    observe: Observe,
    extra: Callable[[], Mapping[str, Metric]],
    only_read: bool,
) -> None:
    """Write one setting's report, unless it is there and of these texts and measures."""
    files, scale = experiment.files(setting), experiment.scale
    refuse_others(setting, read_if_there(files.made))
    is_compared = setting.has_reference and not isinstance(setting.source, Gold)
    judge = setting.judge or scale.judge
    inputs = {
        "generations": sha256(files.generations),
        "reference": sha256(Path(setting.prompts)) if is_compared else None,
        "judge": judge,
        "resamples": scale.resamples,
        "measures": as_json(setting.measures),
    }
    if not only_read and files.report.exists() and read_if_there(files.measured) == inputs:
        return
    metrics = setting.measures.get("metrics", ("ppl",))
    arguments: Options = {
        "reference": gold_texts(setting) if is_compared else None,
        "judge": load(judge) if {"ppl", "mauve"} & set(metrics) else judge,
        "device": device_of(experiment),
        "cache": JudgeCache(experiment.out / "readings", is_writable=only_read),
        "observe": observe,
        **{name: value for name, value in setting.measures.items() if name != "extra"},
    }
    if only_read:
        fill_cache(files.generations, **arguments)
    else:
        arguments |= {"extra_metrics": extra(), "num_resamples": scale.resamples}
        evaluate(files.generations, out=files.report, **arguments)
        write_json(files.measured, inputs)


def device_of(experiment: Experiment) -> str | None:
    """Return where judges run; None lets them choose."""
    return None if experiment.device == "auto" else experiment.device
