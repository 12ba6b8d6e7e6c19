"""Prompts through standard input, texts through standard output."""

import io
import json
import sys

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.cli.generate import piped_prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipes") / "model"
    SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4)).save_pretrained(
        path
    )
    return path


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Run `ssdlm generate` with bytes on standard input."""

    def call(piped: bytes, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        code = cli.main(["generate", "--model", str(folder), "--device", "cpu", *words])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("piped", [b"the river\n", b"the river", b"\xef\xbb\xbfthe river\r\n"])
def test_what_is_piped_is_a_prompt(run, folder, piped):
    code, out, _ = run(piped)
    expected = SSDLM.from_pretrained(folder, device="cpu").generate("the river").text
    assert (code, out) == (0, f"the river{expected}\n")


def test_a_text_of_several_lines_is_one_prompt(run):
    code, out, _ = run(b"a\n\nb\n", "--json")
    assert (code, json.loads(out)["prompt"]) == (0, "a\n\nb")


def test_nothing_piped_is_the_empty_prompt(run):
    code, out, _ = run(b"", "--json")
    assert (code, json.loads(out)["prompt"]) == (0, "")


def test_a_terminal_is_not_waited_for(monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert piped_prompt() == ""


def test_a_prompt_on_the_command_line_goes_before_the_pipe(run):
    code, out, _ = run(b"the river", "a", "--json")
    assert (code, json.loads(out)["prompt"]) == (0, "a")


def test_a_pipe_that_is_not_utf8_is_refused_in_one_line(run):
    code, out, err = run(b"the \xff")
    assert (code, out) == (2, "")
    assert err == "error: standard input is not UTF-8 (byte 4); save or type it as UTF-8\n"


@pytest.mark.usefixtures("unchecked")  # pytest's own standard output is no IO[str] to the checker
def test_files_of_prompts_go_through_pipes_too(run, tmp_path):
    lines = b'{"prompt": "the river", "mark": 7}\n{"prompt": "a", "seed": 3}\n'
    (tmp_path / "in.jsonl").write_bytes(lines)
    code, _, _ = run(b"", "--input", f"{tmp_path}/in.jsonl", "--output", f"{tmp_path}/out.jsonl")
    expected = (tmp_path / "out.jsonl").read_text()
    assert code == 0 and json.loads(expected.splitlines()[0])["mark"] == 7
    code, out, err = run(lines, "--input", "-", "--output", "-")
    assert (code, out) == (0, expected)
    assert err == "wrote standard output: 2 texts\n"
    code, out, _ = run(b"", "--input", f"{tmp_path}/in.jsonl", "--output", "-")
    assert (code, out) == (0, expected)
    code, _, _ = run(lines, "--input", "-", "--output", f"{tmp_path}/other.jsonl")
    assert (code, (tmp_path / "other.jsonl").read_text()) == (0, expected)


def test_a_bad_line_of_a_pipe_is_named_by_its_number(run):
    code, _, err = run(b'{"prompt": "a"}\n{"x": 1}\n', "--input", "-", "--output", "-")
    assert code == 2
    assert err.startswith("error: standard input line 2 has no text")
