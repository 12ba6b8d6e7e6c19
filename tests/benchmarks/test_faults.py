"""A failing disk, in small: benchmarks/faults.py tries every call."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "faults.py"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="calls fail as Linux has them"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_failing_call_leaves_whole_files_and_a_second_start_mends_it():
    command = [sys.executable, str(SCRIPT), "--every", "6", "--seconds", "120"]
    done = subprocess.run(
        [*command, "--commands", "prepare,convert,evaluate,merge"], capture_output=True, text=True
    )
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [row["wrong"] for row in results if row["wrong"]] == [] and done.returncode == 0
    tried = {row["command"]: 0 for row in results}
    for row in results:
        tried[row["command"]] += row["tried"]
    assert tried.keys() == {"prepare", "convert", "evaluate", "merge"}
    assert min(tried.values()) >= 4


def test_a_fault_that_does_harm_is_found(tmp_path):
    """The harness itself: a command that writes in place leaves a cut file behind."""
    program = f"""
import os, sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import faults
from pathlib import Path
from ssdlm import cli
def careless(words):
    target = Path(words[1])
    if not target.exists():
        with open(target, "w") as file:
            for half in ('{{"a": 1, ', '"b": 2}}'):
                file.write(half)
                file.flush()
    return 0
def main(words):
    try:
        return careless(words)
    except OSError as error:
        print("error:", error, file=sys.stderr)
        return 2
cli.main = main
command = faults.Command("careless", "careless @/out.json", "out.json")
folder = Path({str(tmp_path)!r}).resolve()
(folder / "inputs").mkdir()
found = faults.try_command(command, folder / "inputs", folder, list(faults.KINDS), 1, lambda: True)
print([(row.kind, row.calls, len(row.wrong)) for row in found if row.calls])
"""
    (tmp_path / "shim").mkdir()
    library = tmp_path / "shim" / "faults.so"
    source = str(SCRIPT.with_suffix(".c"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), source, "-ldl"], check=True)
    environment = os.environ | {"SSDLM_FAULTS": str(library), "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    # After the first fault half a file is there, and is taken for the whole; what the second keeps
    # from the disk is written when the file is closed.
    assert done.stdout.strip() == "[('write', 2, 2)]", done.stderr
