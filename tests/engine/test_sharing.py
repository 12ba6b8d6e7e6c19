"""A file of prompts among several processes."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from tests import tiny
from tests.processes import plant, start_together

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.engine import sharing

PROMPTS = ["the river", "a", "the movie", "", "no", "to be", "so it is", "end", "an"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a model, prompts, and one.jsonl: what one process makes of them."""
    tmp_path = tmp_path_factory.mktemp("prepared")
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=1))
    model.save_pretrained(tmp_path / "model")
    lines = [{"prompt": prompt, "id": i} for i, prompt in enumerate(PROMPTS)]
    lines[2]["num_samples"] = 3
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "prompts.jsonl").write_text(text)
    assert cli.main(list(map(str, arguments(tmp_path, "one.jsonl")))) == 0
    return tmp_path


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "own")


def arguments(folder, output, *more, model="model"):
    paths = ["--input", folder / "prompts.jsonl", "--output", folder / output]
    return ["generate", "--model", folder / model, *paths, "--num-samples", "2", *more]


def run(folder, output, *more, **options):
    """Run the command by two processes; return how each ended and what each said."""
    said = folder / "said"
    said.mkdir(exist_ok=True)
    words = list(map(str, arguments(folder, output, *more, model=options.pop("model", "model"))))
    codes = start_together(command, words, said, count=2, **options)
    return codes, [(said / name).read_text() for name in ("0.err", "1.err")]


def command(words: list[str], said: Path, *, bomb: tuple[str, str, int] | None = None) -> None:
    """Run the command line in a process of its own; with a bomb, one of them dies on the way."""
    rank = os.environ["RANK"]
    sys.stdout, sys.stderr = (said / f"{rank}.out").open("w"), (said / f"{rank}.err").open("w")
    if bomb is not None and bomb[0] == rank:
        plant(*bomb[1:])
    code = cli.main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def test_two_processes_write_the_file_that_one_writes_and_the_first_alone_speaks(folder):
    codes, said = run(folder, "two.jsonl")
    assert codes == [0, 0]
    assert (folder / "two.jsonl").read_bytes() == (folder / "one.jsonl").read_bytes()
    assert len((folder / "two.jsonl").read_bytes().splitlines()) == 2 * 8 + 3
    assert said[0].startswith("generate 9/9  prompts") and said[1] == ""
    assert "19 texts" in (folder / "said" / "0.out").read_text()
    assert (folder / "said" / "1.out").read_text() == ""
    assert not list(folder.glob("*.part"))


def test_a_file_that_was_cut_is_finished_by_two_processes_with_the_same_bytes(folder):
    whole = (folder / "one.jsonl").read_bytes()
    (folder / "two.jsonl.part").write_bytes(whole[: len(whole) // 3])
    assert run(folder, "two.jsonl")[0] == [0, 0]
    assert (folder / "two.jsonl").read_bytes() == whole


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_dies_leaves_whole_lines_and_one_process_goes_on(folder, rank):
    bomb = (rank, "ssdlm.engine.sharing:answer", 2)
    codes, said = run(folder, "two.jsonl", bomb=bomb)
    assert codes[int(rank)] == -signal.SIGKILL
    if rank == "1":
        assert codes[0] == 2
        assert said[0].count("\n") == 1 and "run the same command again to go on" in said[0]
    whole = (folder / "one.jsonl").read_bytes()
    part = (folder / "two.jsonl.part").read_bytes()
    assert part and whole.startswith(part) and part.endswith(b"\n")
    assert not (folder / "two.jsonl").exists()
    assert cli.main(list(map(str, arguments(folder, "two.jsonl")))) == 0
    assert (folder / "two.jsonl").read_bytes() == whole


def test_what_is_wrong_is_said_once_and_leaves_no_file(folder):
    for more, model, words in [
        (["--top-p", "3"], "model", "top_p=3"),
        (["--device", "nowhere"], "model", "device='nowhere'"),
        ([], "missing", "missing"),
        (["a prompt"], "model", "without other prompts"),
    ]:
        codes, said = run(folder, "out.jsonl", *more, model=model)
        assert codes == [2, 0]
        assert said[0].count("\n") == 1 and words in said[0] and said[1] == ""
    assert not list(folder.glob("out*"))


def test_an_error_of_another_process_is_raised_by_the_first():
    shares = [sharing.Share(), sharing.Share(error="OutOfMemoryError: too much")]
    with pytest.raises(ValueError, match="process 1 of 2: OutOfMemoryError: too much"):
        sharing.refuse_failed(shares)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    chosen = []  # where kernels go that are told of no other
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    assert sharing.own_device("auto") == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [sharing.own_device(name) for name in ("auto", "cuda", "cpu", "cuda:0")] == [
        "cuda:1",
        "cuda:1",
        "cpu",
        "cuda:0",
    ]
    assert chosen == [0, 1, 1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="process 3 of this machine finds 2 GPUs"):
        sharing.own_device("auto")
