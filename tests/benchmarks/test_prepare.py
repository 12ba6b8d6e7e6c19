"""A corpus prepared within a limit of memory and killed on the way, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "prepare.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")


def run(*words):
    command = [sys.executable, str(SCRIPT), "--megabytes", "2", "--part-tokens", "50000", *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes():
    done = run()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"] and [run["name"] for run in found["runs"]] == ["undisturbed", "killed"]
    assert found["runs"][0]["kills"] == [] and len(found["runs"][1]["kills"]) >= 1
    assert all(20 < run["peak_megabytes"] < found["limit"] for run in found["runs"])


def test_a_run_that_takes_more_memory_than_it_may_fails():
    done = run("--limit", "30")
    assert done.returncode == 1 and "undisturbed: status" in done.stderr


def test_text_is_made_alone_and_is_always_the_same(tmp_path):
    for name in ("a", "b"):
        assert run("text", str(tmp_path / name), "--megabytes", "1").returncode == 0
    text = (tmp_path / "a").read_text()
    assert text == (tmp_path / "b").read_text() and 1_000_000 <= len(text) < 1_010_000
    documents = text.split("\n\n")
    assert len(set(documents)) == len(documents) > 500
