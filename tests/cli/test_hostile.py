"""The command line in a hostile world: closed pipes, full disks, empty and endless words."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ssdlm import cli
from ssdlm.data.prepare import prepare
from ssdlm.train import configure, train


def refused(capsys, *words: str) -> str:
    """Return the one line with which a command is refused."""
    try:
        code = cli.main(words)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def start(*words: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "ssdlm", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("words", [["models"], ["--help"]])
def test_a_reader_who_has_seen_enough_is_left_in_silence(words):
    process = start(*words, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.communicate()[1] == ""
    assert process.returncode in (0, 141)  # as a program that SIGPIPE ends; argparse says 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_full_disk_behind_standard_output_is_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = start("models", stdout=full)
        error = process.communicate()[1]
    assert error == "error: [Errno 28] No space left on device: standard output\n"
    assert process.returncode == 2


def test_an_interrupt_while_arguments_are_read_is_one_word(capsys, monkeypatch):
    def parse(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parse", parse)
    assert cli.main(["models"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_termination_that_a_library_takes_for_its_own_fault_is_one_word(capsys, monkeypatch):
    def parse(argv):
        return argparse.Namespace(run=run)

    def run(arguments):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as error:
            raise ImportError("could not import a module") from error

    monkeypatch.setattr(cli, "parse", parse)
    assert cli.main(["models"]) == 143
    assert capsys.readouterr().err == "terminated\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "terminated\n")],
)
def test_a_signal_ends_a_command_with_one_word_and_leaves_nothing(tmp_path, number, code, word):
    os.mkfifo(tmp_path / "part")
    process = start("merge", str(tmp_path / "part"), "--output", str(tmp_path / "out"))
    with open(tmp_path / "part", "w"):  # waits until it is read
        process.send_signal(number)
        assert process.communicate()[1] == word
    assert process.returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_want_of_memory_is_one_line(capsys, monkeypatch):
    def run(arguments):
        raise MemoryError

    monkeypatch.setattr("ssdlm.cli.models.run_models", run)
    assert "there is not enough memory" in refused(capsys, "models")


def test_errors_quote_no_more_than_a_few_lines(capsys, tmp_path):
    long = "x" * 1_000_000
    assert len(refused(capsys, "generate", f"--{long}")) < 1200
    assert len(refused(capsys, "generate", "--top-p", long)) < 1200
    assert len(refused(capsys, "generate", "--model", long)) < 1200
    assert len(refused(capsys, "train", "--recipe", long, "--data", "a", "--out", "b")) < 1200
    table = tmp_path / "table.csv"
    table.write_text(f"{long}\n1\n")
    with pytest.raises(ValueError, match="no column 'text'") as caught:
        prepare([table], tokenizer="builtin:mini", out=tmp_path / "store")
    assert len(str(caught.value)) < 500
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "' + "y" * 1_000_000 + '\\ud800"}\n')
    files = ["--input", str(source), "--output", str(tmp_path / "out.jsonl")]
    error = refused(capsys, "generate", "--device", "cpu", *files)
    assert "is not UTF-8" in error
    assert len(error) < 1200


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "", "--tokenizer", "builtin:mini", "--out", "x"],
        ["prepare", "a.txt", "--tokenizer", "builtin:mini", "--out", ""],
        ["train", "--recipe", "tiny", "--data", "", "--out", "x"],
        ["train", "--recipe", "tiny", "--data", "x", "--out", ""],
        ["generate", "--input", "", "--output", "x"],
        ["generate", "--model="],
        ["convert", "builtin:mini", ""],
        ["plot", ""],
        ["evaluate", "x.jsonl", "--out", " "],
    ],
    ids=" ".join,
)
def test_an_empty_name_is_refused(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert "is empty; give the name of a file or folder" in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_is_refused_in_python_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a text")
    with pytest.raises(ValueError, match="out is empty"):
        prepare(["a.txt"], tokenizer="builtin:mini", out="")
    with pytest.raises(ValueError, match="out is empty"):
        train(configure("tiny"), data=["x"], out="")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_tilde_after_an_equals_sign_is_the_home_folder(capsys, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    (home / "a.txt").write_text("one text\n\nanother text")
    command = ["prepare", "~/a.txt", "--tokenizer=builtin:mini", "--out=~/store"]
    assert cli.main(command) == 0
    assert (home / "store" / "index.json").exists()
    assert list(here.iterdir()) == []


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"prompt": "The river", "length": 2}\n')
    files = ["--input", str(source), "--output", str(target)]
    assert cli.main(["generate", "--device", "cpu", *files]) == 0
    assert target.read_text().startswith('{"prompt": "The river"')


ROWS = "".join(
    json.dumps({"prompt": f"{w} {i}", "text": f" {i} {w} " * 9, "label": w}) + "\n"
    for i in range(40)
    for w in ("good", "bad")
)
FILLING = {
    "prepare": ["prepare", "a.jsonl", "--tokenizer=builtin:mini", "--out=out", "--holdout=0"],
    "part": ["prepare", "a.jsonl", "--tokenizer=builtin:mini", "--out=out", "--shard=0/2"],
    "generate": ["generate", "--device=cpu", "--length=1", "--input=a.jsonl", "--output=out"],
    "evaluate": ["evaluate", "a.jsonl", "--metrics=dist", "--out=out"],
    "convert": ["convert", "builtin:mini", "out"],
    "tokenizer": ["tokenizer", "nested", "--from=builtin:mini", "--size=300", "--out=out"],
    "prompts": ["prompts", "a.jsonl", "--count=80", "--out=out"],
    "train-judge": ["train-judge", "a.jsonl", "--out=out"],
}


@pytest.mark.parametrize("name", FILLING)
def test_a_disk_that_fills_up_is_said_of_the_file(tmp_path, monkeypatch, capsys, name):
    resource = pytest.importorskip("resource")
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(ROWS)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported here would be cut, too
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        assert cli.main(FILLING[name]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    *_, said = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"error: \[Errno 27\] File too large: '.*out.*'", said), said
    if name not in ("prepare", "part", "generate"):  # which take up later what they have
        assert sorted(os.listdir()) == ["a.jsonl"]


COMPLETING = {name: FILLING[name] for name in ("convert", "tokenizer", "prompts", "train-judge")}
COMPLETING["train-guide"] = ["train-guide", "a.jsonl", "--out=out", "--tokenizer=builtin:mini"]
COMPLETING["train-guide"] += ["epochs=1", "holdout=0.2"]
OTHERWISE = {
    "convert": ["--quantise=int8"],
    "tokenizer": ["--size=301"],
    "prompts": ["--count=7"],
    "train-judge": ["--seed=1"],
    "train-guide": ["seed=1"],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", COMPLETING)
def test_a_command_that_is_repeated_finds_its_result_complete(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(ROWS)
    assert cli.main(COMPLETING[name]) == 0
    made = contents(tmp_path)
    capsys.readouterr()
    assert cli.main(COMPLETING[name]) == 0
    assert "out is already complete" in capsys.readouterr().out
    assert cli.main([*COMPLETING[name], *OTHERWISE[name]]) == 2
    assert "out exists already" in capsys.readouterr().err
    assert contents(tmp_path) == made
    largest = max(
        (path for path in made if "a.jsonl" not in path), key=lambda path: len(made[path])
    )
    Path(largest).write_bytes(made[largest][:-1] + b"x")
    assert cli.main(COMPLETING[name]) == 2
    assert "out exists already" in capsys.readouterr().err
    assert Path(largest).read_bytes() == made[largest][:-1] + b"x"
