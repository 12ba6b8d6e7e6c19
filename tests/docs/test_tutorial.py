"""The tutorial works: its shell blocks are run as written, in order, in an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ssdlm import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial.md"


def blocks() -> list[str]:
    """The shell blocks of the page."""
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def environment(folder: Path) -> dict[str, str]:
    """An environment in which `ssdlm` is this checkout's command and nothing can be fetched."""
    command = folder / "ssdlm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ssdlm "$@"\n')
    command.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.nightly
def test_every_command_of_the_tutorial_runs_as_written(tmp_path):
    (tmp_path / "bin").mkdir()
    here, env, outputs = tmp_path / "work", environment(tmp_path / "bin"), []
    here.mkdir()
    for block in blocks():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=here,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        outputs.append(done.stdout)
    assert len(outputs) >= 10
    texts, steered = (
        [json.loads(line) for line in (here / name).read_text().splitlines()]
        for name in ("texts.jsonl", "steered.jsonl")
    )
    assert [len(text["tokens"]) for text in texts] == [20] * 16
    assert "<|endoftext|>" not in "".join(outputs)
    assert "<|endoftext|>" not in "".join(text["text"] for text in texts + steered)
    assert winters(steered) >= winters(texts) + 0.3
    plain, reached = (
        json.loads((here / name).read_text())["metrics"]["control_internal"]
        for name in ("report.json", "steered.json")
    )
    assert reached >= plain + 0.3


def winters(texts: list[dict]) -> float:
    """The share of texts with more words of winter than of summer: no guide has a say in it."""
    seasons = (("winter", "snow", "cold", "crow"), ("summer", "sun", "warm", "bees", "flower"))
    counts = [[sum(t["text"].count(word) for word in words) for words in seasons] for t in texts]
    return sum(winter > summer for winter, summer in counts) / len(texts)


def test_the_prompts_of_the_tutorial_end_where_a_word_ends(tmp_path, monkeypatch):
    """Its commands up to the tokens, and the one that takes prompts, as written."""
    monkeypatch.chdir(tmp_path)
    text = next(block for block in blocks() if "seasons.txt" in block)
    subprocess.run(["bash", "-euc", text], check=True)
    for command in ("ssdlm prepare", "ssdlm prompts"):
        (line,) = (
            line for block in blocks() for line in block.splitlines() if line.startswith(command)
        )
        assert cli.main(shlex.split(line)[1:]) == 0
    lines = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert [line["gold"][0] for line in lines] == [" ", " "]
