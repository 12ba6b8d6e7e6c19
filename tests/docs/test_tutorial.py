"""The tutorial works: its shell blocks are run as written, in order, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert [len(text["tokens"]) for text in texts] == [20] * 8
    assert [text["text"] for text in texts] != [text["text"] for text in steered]
    report = json.loads((here / "steered.json").read_text())
    assert 0 <= report["metrics"]["control_internal"] <= 1
