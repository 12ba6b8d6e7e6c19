"""Table 2 from end to end at toy size: stories, training, texts of both models, the page."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import cli
from ssdlm.data.shards import TokenStore
from ssdlm.reproduce import table2

pytestmark = pytest.mark.filterwarnings("ignore:.*clustering")

PARTS = (
    ("the dog", "a cat", "my aunt", "we all"),
    ("ran off", "ate a cake", "sat still"),
    ("late", "over", "night"),
)
TEXTS = [f"{who} {what}. then it was {when}." for who, what, when in product(*PARTS)]


@pytest.fixture(scope="module")
def story_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stories") / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="module")
def init(tmp_path_factory) -> Path:
    """A masked LM to start from, with its tokenizer."""
    folder = tmp_path_factory.mktemp("init")
    tiny.encoder("bert", V=tiny.V).backbone.save_pretrained(folder)
    tiny.tokenizer().save(folder)
    return folder


@pytest.fixture(scope="module")
def arguments(story_file, init, toy) -> list[str]:
    models = [f"--model=init={init}", f"--model=stories_block={toy.ours}"]
    return ["--scale", "toy", "--set", f"judge={toy.judge}", "--device", "cpu", *models]


@pytest.fixture(scope="module")
def done(arguments, story_file, tmp_path_factory) -> Path:
    """The table, its stages apart; the other model's texts come in between."""
    out = tmp_path_factory.mktemp("out")
    first = ["reproduce", "table2", *arguments, "--out", str(out)]
    given = [*first, f"--prompts=stories={story_file}"]
    assert cli.main([*given, "--stage", "generate"]) == 0
    texts = out / "texts.jsonl"
    write_texts(out / "stories/prompts.jsonl", texts)
    both = f"--model=diffusion_lm={texts}"
    assert cli.main([*given, both, "--stage", "generate"]) == 0
    assert cli.main([*first, both, "--stage", "evaluate"]) == 0
    return out


def write_texts(prompts: Path, out: Path) -> None:
    """Write what a baseline would, and how it came about."""
    lines = [json.loads(line) for line in prompts.read_text().splitlines()]
    text = {"text": " abcde", "tokens": tiny.tokenizer().encode(" abcde")}
    out.write_text("".join(json.dumps({"prompt": line["prompt"]} | text) + "\n" for line in lines))
    training = {"tokens": 7_000_000, "seconds": 12.0, "data": ["another store"]}
    about = {"training": training, "seconds": 3.0}
    out.with_suffix(".about.json").write_text(json.dumps(about))


def test_the_page_has_the_papers_rows_and_a_row_for_every_model(done):
    page = (done / "table2.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    labels = [row.split("|")[1].strip() for row in rows[2:]]
    assert labels == [
        "[paper] Gold continuation",
        "[paper] Diffusion-LM",
        "[paper] SSD-LM, sampling p 0.5, T 2500",
        "[paper] Diffusion-LM, encoder weights of BERT",
        "Gold continuation",
        "Diffusion-LM",
        "SSD-LM, the paper's recipe, sampling p0.5 T2",
        "BlockDenoiser, own",
    ]
    assert "87.22 | 22.91" in rows[4]
    assert rows[7].endswith("| 7M | 12 | 3 |")
    assert "not all trained on the same data" in page


def test_every_figure_of_the_page_comes_from_a_report(done):
    values = json.loads((done / "table2.json").read_text())["rows"]
    assert len(values) == 4
    for name, row in values.items():
        report = json.loads((done / "cells" / name / "report.json").read_text())
        for metric, value in row.items():
            assert value == report["metrics"].get(metric, 1.0)


def test_ours_is_trained_by_the_recipe_on_the_training_stories(done):
    run = json.loads((done / "stories/ours/run.json").read_text())
    settings = json.dumps(run)
    assert '"objective": "one_block"' in settings and '"max_len": 12' in settings
    made = json.loads((done / "cells/stories/ours/sampling-p0.5-T2/made.json").read_text())
    assert made["training"]["tokens"] == 2 * 2 * 12


def test_held_out_stories_are_in_the_prompts_and_not_in_training(done):
    tokenizer = tiny.tokenizer()
    train, held = (
        tokenizer.decode(TokenStore.open(done / "stories/data", split).read(0, 40).tolist())
        for split in ("train", "holdout")
    )
    kept = [text for i, text in enumerate(TEXTS) if table2.is_held_out(i, 0.2)]
    assert held.startswith(kept[0][:40]) and not train.startswith(kept[0][:40])
    lines = (done / "stories/prompts.jsonl").read_text().splitlines()
    joined = " ".join(kept)
    for line in map(json.loads, lines):
        assert line["prompt"] + line["gold"] in joined
        assert len(line["gold_tokens"]) == 6
    assert len(lines) == 3


def test_sequences_of_prompt_and_gold_share_no_token(done):
    store = TokenStore.open(done / "stories/data", "holdout")
    ids = store.read(0, len(store) - 1).tolist()
    lines = table2.prompts_of(done / "stories/data", length=6, count=100)
    assert len(lines) > 1
    tokenizer, place = tiny.tokenizer(), 0
    for line in lines:
        sequence = tokenizer.encode(line["prompt"]) + line["gold_tokens"]
        while ids[place : place + 12] != sequence:  # each lies behind the one before
            place += 1
            assert place < len(ids)
        place += 12


def test_texts_that_were_not_given_are_asked_for_by_command(arguments, done, tmp_path):
    out = done.rename(tmp_path / "out")
    try:
        code = cli.main(
            ["reproduce", "table2", *arguments, "--out", str(out), "--stage", "evaluate"]
        )
        assert code == 0
        page = (out / "table2.md").read_text()
    finally:
        out.rename(done)
    assert "no texts were given as `diffusion_lm`" in page
    assert "benchmarks/diffusion_lm.py generate --model DIR --input" in page
    assert "Diffusion-LM, " not in page.partition("Gold continuation | 100.00 | -")[2]


def test_nothing_is_trained_where_our_texts_are_not_asked_for(arguments, story_file, tmp_path):
    given = [f"--prompts=stories={story_file}", "--stage", "generate", "--only", "stories/gold"]
    assert cli.main(["reproduce", "table2", *arguments, *given, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "cells/stories/gold/generations.jsonl").exists()
    assert not (tmp_path / "stories/ours").exists()


def test_no_stories_are_refused(arguments, tmp_path, capsys):
    code = cli.main(["reproduce", "table2", *arguments, "--out", str(tmp_path)])
    assert code == 2
    assert "give --prompts stories=FILE" in capsys.readouterr().err


def test_too_few_stories_are_refused(tmp_path):
    with pytest.raises(ValueError, match="leave a part empty"):
        table2.split(["one"], 0.2)


def test_training_goes_where_the_texts_are_written(arguments, story_file, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("ssdlm.train.train", lambda config, **others: asked.append(config))
    given = [*arguments, f"--prompts=stories={story_file}", "--out", str(tmp_path)]
    given += ["--device", "cuda", "--only", "stories/ours/*", "--stage", "generate"]
    assert cli.main(["reproduce", "table2", *given]) == 2  # nothing was trained
    assert asked[0].train.device == "cuda"
