"""Experiments from end to end, at toy size."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ssdlm import cli
from ssdlm.evaluate import mauve, perplexity
from ssdlm.reproduce import control_grid, figures, generation, measurement, table1, table2
from ssdlm.reproduce.experiment import Experiment, Result, Results, read_results
from ssdlm.reproduce.run import by_name, checked, models_by_role
from ssdlm.reproduce.scale import scale_of
from ssdlm.reproduce.setting import Diffusion, Given, Gold, Setting

pytestmark = pytest.mark.filterwarnings("ignore:.*clustering")


@pytest.fixture(scope="module")
def done(toy, tmp_path_factory) -> Path:
    """Table 1 and the figures, in two stages, the second where the models are not."""
    out = tmp_path_factory.mktemp("out")
    arguments = [*toy.arguments(6), f"--prompts=owt-6={toy.prompts[6]}", "--out", str(out)]
    for table in ("table1", "figures"):
        assert cli.main(["reproduce", table, *arguments, "--stage", "generate"]) == 0
    assert not list(out.rglob("report.json"))
    hidden = Path(toy.ours).rename(f"{toy.ours}-hidden")
    try:
        for table in ("table1", "figures"):
            assert cli.main(["reproduce", table, *arguments, "--stage", "evaluate"]) == 0
    finally:
        hidden.rename(toy.ours)
    return out


@pytest.mark.parametrize("table", ["table1", "figures"])
def test_writing_needs_no_library_of_the_judges(table, toy, tmp_path, monkeypatch):
    absent = ("rich", "matplotlib", "mauve", "faiss", "sklearn", "scipy", "datasets")
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("ssdlm.evaluate")]:
        monkeypatch.delitem(sys.modules, name)
    arguments = [*toy.arguments(3), "--out", str(tmp_path), "--stage", "generate"]
    only = ["--only", "3/ours/own", "--only", "3/autoregressive/top_p*"]
    assert cli.main(["reproduce", table, *arguments, *only]) == 0
    assert (tmp_path / "cells/3/ours/own/generations.jsonl").exists()
    loaded = {name for name in sys.modules if name.startswith("ssdlm.evaluate")}
    assert loaded <= {"ssdlm.evaluate", "ssdlm.evaluate.autoregressive"}


def test_table1_has_a_row_for_every_setting_and_a_figure_from_every_report(done):
    values = json.loads((done / "table1.json").read_text())
    rows = {row["label"]: row for row in values["tables"]["6"]}
    assert list(rows) == [
        "Gold continuation",
        "autoregressive, top_p 0.9",
        "autoregressive, typical_p 0.95",
        "the paper's recipe, greedy p0 T2",
        "the paper's recipe, sampling p0.9 T2",
        "the paper's recipe, multi_hot p0.9 T2",
        "ours, greedy p0 T2",
        "ours, sampling p0.9 T2",
        "ours, multi_hot p0.9 T2",
        "ours, own",
        "ours, own p0.5",
        "the built-in model, own",
        "the built-in model, own p0.5",
    ]
    report = json.loads((done / "cells/6/ours/own/report.json").read_text())
    for metric, value in rows["ours, own"]["values"].items():
        assert value == report["metrics"][metric] is not None
    assert rows["Gold continuation"]["values"]["mauve"] == 1.0
    assert report["counts"] == {"prompts": 4, "samples": 8, "gold": 4}


def test_a_samplers_row_is_the_mean_and_spread_of_its_seeds(done):
    values = json.loads((done / "table1.json").read_text())["tables"]["6"][1]
    seeds = [
        json.loads((done / f"cells/6/autoregressive/top_p-0.9/seed-{seed}/report.json").read_text())
        for seed in (1, 2)
    ]
    one, two = (report["metrics"]["ppl_micro"] for report in seeds)
    assert values["values"]["ppl_micro"] == pytest.approx((one + two) / 2)
    assert values["spread"]["ppl_micro"] == pytest.approx(abs(one - two) / 2**0.5)


def test_prompts_without_gold_stand_apart(done):
    page = (done / "table1.md").read_text()
    apart = page.partition("## Length 6, OpenWebText prompts, no gold")[2]
    assert "ours, own | - |" in apart and "Gold continuation" not in apart
    report = json.loads((done / "cells/owt-6/ours/own/report.json").read_text())
    assert report["settings"]["reference"] is None and "mauve" not in report["metrics"]


def test_the_figures_have_their_plots_trajectories_and_examples(done):
    names = {path.name for path in done.glob("*.png")}
    assert names == {"projection-ours.png", "projection-paper.png", "calls.png"}
    values = json.loads((done / "figures.json").read_text())
    assert [(point["B"], point["T"]) for point in values["calls"]] == [
        (2, 2),
        (2, 3),
        (3, 2),
        (3, 3),
    ]
    assert {point["projection"] for point in values["projection-ours"]} == {
        "greedy",
        "sampling",
        "multi_hot",
    }
    page = (done / "figures.md").read_text()
    assert page.count("### Trajectory of") == 3 and "## Examples" in page
    paths = json.loads((done / "trajectory.json").read_text())
    assert [row["t"] for row in paths["ours, the paper's sampler"]["rows"]] == [2, 1]


def test_what_is_done_is_not_done_again(done, toy, monkeypatch):
    monkeypatch.setattr(generation, "generate_file", refuse)
    monkeypatch.setattr(measurement, "evaluate", refuse)
    before = {path: path.stat().st_mtime_ns for path in done.rglob("generations.jsonl")}
    arguments = [*toy.arguments(6), "--out", str(done)]
    assert cli.main(["reproduce", "table1", *arguments]) == 0
    own = done / "cells/6/ours/own/generations.jsonl"
    assert own.stat().st_mtime_ns == before[own]


def test_what_was_read_elsewhere_gives_the_same_report_and_is_not_read_again(
    done, toy, tmp_path, monkeypatch
):
    cell = "6/autoregressive/top_p-0.9/seed-1"
    shutil.copytree(done / "cells" / cell, tmp_path / "cells" / cell)
    plain = json.loads((tmp_path / "cells" / cell / "report.json").read_text())
    for name in ("report.json", "measured.json"):
        (tmp_path / "cells" / cell / name).unlink()
    arguments = [*toy.arguments(6), "--out", str(tmp_path), "--only", cell]
    with monkeypatch.context() as patch:
        for name in ("mauve", "faiss", "sklearn", "scipy", "matplotlib"):
            patch.setitem(sys.modules, name, None)
        assert cli.main(["reproduce", "table1", *arguments, "--stage", "read"]) == 0
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "readings").iterdir())
    assert names == ["features", "features", "nats", "nats"]
    monkeypatch.setattr(perplexity, "nats", refuse)
    monkeypatch.setattr(mauve, "features", refuse)
    assert cli.main(["reproduce", "table1", *arguments, "--stage", "evaluate"]) == 0
    assert json.loads((tmp_path / "cells" / cell / "report.json").read_text()) == plain


def refuse(*args, **options):
    raise AssertionError("this was done already")


def test_a_page_is_written_from_reports_alone(done, toy, tmp_path):
    shutil.copytree(done / "cells/6", tmp_path / "cells/6")
    for path in tmp_path.rglob("generations.jsonl"):
        path.unlink()
    arguments = [*toy.arguments(6), "--out", str(tmp_path), "--stage", "page"]
    assert cli.main(["reproduce", "table1", *arguments, "--set", "judge=elsewhere"]) == 0
    old, new = (json.loads((out / "table1.json").read_text()) for out in (done, tmp_path))
    assert new["tables"]["6"] == old["tables"]["6"]


def test_texts_of_another_model_are_not_taken_for_this_ones(done, toy, tmp_path, capsys):
    out = tmp_path / "out"
    cell = "cells/6/ours/own"
    shutil.copytree(done / cell, out / cell)
    arguments = ["--out", str(out), "--only", "6/ours/own", "--stage", "generate"]
    models = [word.replace(f"ours={toy.ours}", f"ours={toy.paper}") for word in toy.arguments(6)]
    assert cli.main(["reproduce", "table1", *models, *arguments]) == 2
    assert "was not written from these prompts with these settings" in capsys.readouterr().err


def test_a_report_of_other_texts_is_made_anew(done, toy, tmp_path):
    shutil.copytree(done / "cells/6/ours/own", tmp_path / "cells/6/ours/own")
    place = tmp_path / "cells/6/ours/own"
    lines = (place / "generations.jsonl").read_text().splitlines()
    changed = [json.loads(line) | {"text": "aaaaaa", "tokens": [0] * 6} for line in lines]
    (place / "generations.jsonl").write_text("\n".join(map(json.dumps, changed)) + "\n")
    old = json.loads((place / "report.json").read_text())["metrics"]["dist-1"]
    arguments = [*toy.arguments(6), "--out", str(tmp_path), "--stage", "evaluate"]
    assert cli.main(["reproduce", "table1", *arguments, "--only", "6/ours/own"]) == 0
    assert json.loads((place / "report.json").read_text())["metrics"]["dist-1"] < old


def test_a_report_of_other_texts_or_measures_is_not_shown(done, toy, tmp_path):
    words = [*toy.arguments(6), "--out", str(tmp_path), "--stage", "page"]
    place = tmp_path / "cells/6/ours/own"
    for change in ("generations", "measures"):
        shutil.rmtree(tmp_path / "cells", ignore_errors=True)
        shutil.copytree(done / "cells/6/ours/own", place)
        if change == "generations":
            (place / "generations.jsonl").write_text("changed\n")
        extra = ["--set", "features=minilm"] if change == "measures" else []
        assert cli.main(["reproduce", "table1", *words, *extra]) == 0
        assert "ours, own" not in (tmp_path / "table1.md").read_text()


def test_figures_by_different_judges_are_told_apart(done, toy, tmp_path):
    shutil.copytree(done / "cells/6/ours", tmp_path / "cells/6/ours")
    measured = tmp_path / "cells/6/ours/own/measured.json"
    measured.write_text(json.dumps(json.loads(measured.read_text()) | {"judge": "other"}))
    words = [*toy.arguments(6), "--out", str(tmp_path), "--stage", "page"]
    assert cli.main(["reproduce", "table1", *words]) == 0
    page = (tmp_path / "table1.md").read_text()
    assert f"not one judge but several: {toy.judge}, other" in page
    assert f"Judge {toy.judge} and other, MAUVE's features" in page


def test_a_page_names_who_judged_and_refuses_texts_of_other_options(done, toy, tmp_path, capsys):
    shutil.copytree(done / "cells/6/ours", tmp_path / "cells/6/ours")
    words = [*toy.arguments(6), "--out", str(tmp_path)]
    assert cli.main(["reproduce", "table1", *words, "--stage", "page", "--set", "judge=nope"]) == 0
    page = (tmp_path / "table1.md").read_text()
    assert f"Judge {toy.judge}," in page and "nope" not in page
    for stage in ("page", "evaluate", "read"):
        assert cli.main(["reproduce", "table1", *words, "--stage", stage, "--set", "seed=77"]) == 2
        assert "was written with seed=0, not 77; ask for that" in capsys.readouterr().err


def test_a_row_of_some_seeds_says_so(done, toy, tmp_path):
    shutil.copytree(
        done / "cells/6/autoregressive/top_p-0.9/seed-1",
        tmp_path / "cells/6/autoregressive/top_p-0.9/seed-1",
    )
    words = [*toy.arguments(6), "--out", str(tmp_path), "--stage", "page"]
    assert cli.main(["reproduce", "table1", *words]) == 0
    assert "| autoregressive, top_p 0.9 (1 of 2 seeds) |" in (tmp_path / "table1.md").read_text()


@pytest.mark.filterwarnings("default::FutureWarning")
def test_a_role_may_have_its_former_name_and_its_folders_are_found(
    done, toy, tmp_path, monkeypatch, capsys
):
    shutil.copytree(done / "cells/6/autoregressive", tmp_path / "cells/6/twin")
    texts = {path: path.read_bytes() for path in tmp_path.rglob("generations.jsonl")}
    monkeypatch.setattr(generation, "generate_file", refuse)
    monkeypatch.setattr(measurement, "evaluate", refuse)
    words = [*toy.arguments(6), "--out", str(tmp_path)]
    former = [word.replace("=autoregressive=", "=twin=") for word in words]
    for given, only in ((words, "6/autoregressive/*"), (former, "6/twin/*")):
        assert cli.main(["reproduce", "table1", *given, "--only", only]) == 0
        assert "| autoregressive, top_p 0.9 |" in (tmp_path / "table1.md").read_text()
    assert {path: path.read_bytes() for path in tmp_path.rglob("generations.jsonl")} == texts
    assert cli.main(["reproduce", "table1", *words, "--model", f"twin={toy.ours}"]) == 2
    told = capsys.readouterr().err
    assert "warning: role twin is now autoregressive; the old name works until 0.4" in told
    assert "model autoregressive is given twice; give it once" in told


def test_a_setting_is_written_by_one_process_at_a_time(toy, tmp_path, capsys):
    fcntl = pytest.importorskip("fcntl")
    words = [*toy.arguments(6), "--out", str(tmp_path), "--only", "6/ours/own"]
    part = tmp_path / "cells/6/ours/own/generations.jsonl.part"
    part.parent.mkdir(parents=True)
    with part.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert cli.main(["reproduce", "table1", *words, "--stage", "generate"]) == 2
    assert "is being written by another process; wait for it" in capsys.readouterr().err
    assert cli.main(["reproduce", "table1", *words, "--stage", "generate"]) == 0
    made = part.parent / "made.json"
    made.unlink()
    assert cli.main(["reproduce", "table1", *words, "--stage", "generate"]) == 0
    assert json.loads(made.read_text())["seconds"] is None  # it was written before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "6/theirs"], "no setting of table1 is named 6/theirs; there are 6/gold"),
        (["--set", "num_prompts=-1"], "num_prompts=-1 is not a count; use 1 or more"),
        (["--set", "T=0"], "T=0 is not a count"),
        (["--set", "samplers=topp"], "samplers=topp is no sampler; write top_p=0.9"),
        (["--set", "samplers=top_k=5"], "samplers=top_k=5 is no sampler"),
        (["--dtype", "float16"], "dtype='float16'"),
        (["--model", "runs"], "model 'runs' is not NAME=VALUE; write for example ours=runs/mini"),
        (["--prompts", "7=nowhere.jsonl"], "prompts 'nowhere.jsonl' are no file; make one with"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(toy, tmp_path, capsys, words, told):
    assert cli.main(["reproduce", "table1", *toy.arguments(6), "--out", str(tmp_path), *words]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_a_role_that_a_table_has_no_use_for_is_refused(toy, tmp_path, capsys):
    words = ["--scale", "toy", "--model", f"ourz={toy.ours}", "--out", str(tmp_path)]
    assert cli.main(["reproduce", "table3", *words]) == 2
    assert (
        "table3 has no use for a model as 'ourz'; there are paper, ours" in capsys.readouterr().err
    )


def test_what_is_missing_is_told_and_not_made_up(done, toy, tmp_path):
    words = [
        word for word in toy.arguments(6) if "paper=" not in word and "autoregressive=" not in word
    ]
    words = [word.replace("lengths=6", "lengths=3,6") for word in words]
    shutil.copytree(done / "cells/6/ours/own", tmp_path / "cells/6/ours/own")
    arguments = ["--out", str(tmp_path), "--stage", "evaluate"]
    assert cli.main(["reproduce", "table1", *words, *arguments]) == 0
    page = (tmp_path / "table1.md").read_text()
    assert (
        "no model was given as `autoregressive`" in page and "no model was given as `paper`" in page
    )
    assert "no prompts were given for length 3" in page
    assert "7 settings are not measured yet: 6/gold" in page
    assert "twin," not in page and "ours, own" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "there is no table 'table9'; there are table1, table2, table3, figures"),
        (["table1", "--scale", "huge"], "there is no scale 'huge'"),
        (["table1"], "there are no prompts; give --prompts 50=FILE"),
        (["table1", "--stage", "never"], "stage='never' is unknown"),
        (["table1", "--prompts", "50=none.jsonl"], "none.jsonl"),
        (["table1", "--prompts", "=x"], "is not NAME=VALUE"),
        (["table1", "--model", "ours=a", "--model", "ours=b"], "model ours is given twice"),
    ],
)
def test_bad_requests_are_refused_in_a_line(words, message, tmp_path, capsys):
    assert cli.main(["reproduce", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_bare_value_is_for_all_names():
    named = by_name(["a.jsonl", "50=b.jsonl"], "prompts", "50=a.jsonl", bare="all")
    assert named == {"all": "a.jsonl", "50": "b.jsonl"}
    with pytest.raises(ValueError, match="model 'runs/a' is not NAME=VALUE; write for example a=b"):
        by_name(["runs/a"], "model", "a=b")


def experiment(toy, out: Path) -> Experiment:
    scale = scale_of("toy", [f"judge={toy.judge}"])
    return Experiment(scale, out, prompts={"6": toy.prompts[6]}, is_shown=False)


def test_a_file_given_by_others_is_measured_as_it_is(toy, tmp_path):
    lines = [json.loads(line) for line in Path(toy.prompts[6]).read_text().splitlines()]
    theirs = tmp_path / "theirs.jsonl"
    texts = [{"prompt": line["prompt"], "text": "abc abc"} for line in lines]
    theirs.write_text("\n".join(map(json.dumps, texts)) + "\n")
    asked = experiment(toy, tmp_path / "out")
    setting = Setting(
        "given", Given(str(theirs)), toy.prompts[6], 4, measures={"metrics": ("dist",)}
    )
    generation.generate(asked, [setting])
    measurement.measure(asked, [setting])
    results = read_results(asked, [setting])
    assert results.value("given", "dist-1") == 0.5
    assert results.value("other", "dist-1") is None
    assert results.notes(asked) == []


def test_gold_needs_gold(toy, tmp_path):
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a"}\n')
    with pytest.raises(ValueError, match="prompt 1 of 1 has no gold continuation"):
        generation.generate(experiment(toy, tmp_path), [Setting("gold", Gold(), str(bare), 1)])


def test_gold_that_is_counted_needs_its_tokens(toy, tmp_path):
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a", "gold": " b"}\n')
    counted = Setting("gold", Gold(), str(bare), 1, measures={"metrics": ("ppl", "zipf", "rep")})
    with pytest.raises(ValueError, match="has no gold_tokens, which zipf, rep count"):
        checked([counted])
    assert len(checked([replace(counted, measures={"metrics": ("ppl",)})])) == 1


def test_missing_gold_is_found_before_anything_is_written(toy, tmp_path, capsys):
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a"}\n')
    words = [word for word in toy.arguments(6) if "--prompts" not in word]
    arguments = ["--prompts", f"6={bare}", "--out", str(tmp_path / "out")]
    assert cli.main(["reproduce", "table1", *words, *arguments]) == 2
    assert "has no gold continuation" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_names_of_settings_are_paths_and_one_each(toy):
    with pytest.raises(ValueError, match="no path of letters"):
        Setting("../x", Gold(), toy.prompts[6], 1)
    setting = Setting("x", Diffusion("m"), toy.prompts[6], 1000)
    assert checked([setting, setting]) == [replace(setting, num_prompts=4)]
    with pytest.raises(ValueError, match="two different settings are named x"):
        checked([setting, replace(setting, num_samples=2)])


def test_training_costs_are_read_from_the_runs_log(tmp_path):
    compiling = {"step": 1, "tokens": 20, "tokens_per_s": 0.1}
    later = [(5, 100, 40.0), (15, 300, 100.0)]
    records = [{"step": s, "tokens": n, "tokens_per_s": speed} for s, n, speed in later]
    records = [compiling, *records]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    (tmp_path / "run.json").write_text('{"asked": {"config": {}, "data": ["x"]}}')
    assert generation.training_costs(str(tmp_path)) == {
        "tokens": 300,
        "seconds": 4.0,
        "data": ["x"],
    }
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert generation.training_costs(str(tmp_path)) == generation.training_costs("gpt2") == {}


def test_the_papers_grid_has_greedy_once(toy, tmp_path):
    names = [name for name, _ in table1.grid(scale_of("toy"), 6)]
    assert names == ["greedy-p0-T2", "sampling-p0.9-T2", "multi_hot-p0.9-T2"]


def test_no_model_may_end_its_text_before_the_others(toy, tmp_path):
    models = dict.fromkeys(("paper", "ours", "builtin"), str(toy.ours))
    experiment = Experiment(scale_of("toy"), tmp_path, models, {"6": str(toy.prompts[6])})
    writing = [s for s in table1.settings(experiment) if isinstance(s.source, Diffusion)]
    assert {setting.name.split("/")[1] for setting in writing} == set(models)
    assert all(setting.options["never_end"] for setting in writing)


def test_the_papers_sampler_may_end_a_text_in_every_table_but_the_first(toy, tmp_path):
    """The authors' decoder suppresses no token; that table 1 differs is a note on its page."""
    models = {"paper": toy.paper, "ours": toy.ours, "stories": toy.paper}
    prompts = {"6": toy.prompts[6], "pplm": toy.prompts[6]}
    asked = Experiment(scale_of("toy"), tmp_path, models, prompts)
    controlled = [one.options for one in control_grid.samplers(asked, 6) if one.role == "paper"]
    told = [options for name, _, options in table2.sources(asked) if name.startswith("ours/")]
    assert controlled and told
    assert not any(options["never_end"] for options in controlled + told)
    figures.record(asked)
    known = json.loads((tmp_path / figures.TRAJECTORIES).read_text())
    paper = [one["asked"] for name, one in known.items() if name.endswith("the paper's sampler")]
    assert len(paper) == 2 and not any(one["options"]["never_end"] for one in paper)


@pytest.mark.parametrize("table", ["table1", "figures"])
def test_a_page_of_texts_that_may_not_end_says_so(done, table):
    assert "no text may end before its length (`never_end`)" in (done / f"{table}.md").read_text()


def test_models_of_other_data_or_tokenizers_are_told_apart(toy, tmp_path):
    asked = experiment(toy, tmp_path)
    setting = Setting("6/ours/own", Diffusion("m"), toy.prompts[6], 1)
    one = {"settings": {"model": {"tokenizer.json": "a"}}, "training": {"data": ["x"]}}
    two = {"settings": {"model": "gpt2"}, "training": {"data": ["y"]}}
    files = [Result(setting, None, made, tmp_path / "none") for made in (one, two)]
    notes = Results({str(n): one for n, one in enumerate(files)}).notes(asked)
    assert "the models were not all trained on the same data" in notes
    assert not any("tokenizers" in note for note in notes)


def test_at_the_papers_scale_all_models_are_the_hubs(toy, tmp_path):
    scale = scale_of("paper")
    models, files = models_by_role(scale.models), {"50": toy.prompts[6]}
    settings = table1.settings(Experiment(scale, tmp_path, models, files))
    assert len(settings) == 1 + 3 * 4 * 5 + 2 * (1 + 2 * 7)
    sources = {(type(one.source).__name__, getattr(one.source, "model", "")) for one in settings}
    gpt2 = {("Autoregressive", f"gpt2-{size}") for size in ("medium", "large", "xl")}
    assert sources == {("Gold", ""), ("Diffusion", "xhan77/ssdlm"), *gpt2}
    measured = {(one.measures["features"], one.has_reference) for one in settings[1:]}
    assert measured == {(("gpt2-large",), True)}
