"""Command lines that nobody meant: right ones with words changed, doubled, left out or added."""

import json
import shutil
from functools import cache

import pytest
from tests import bpe, tiny

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tests.properties.odd import TEXTS  # noqa: E402

from ssdlm import SSDLM, DecodeConfig, cli  # noqa: E402
from ssdlm.data.parts import prepare_part  # noqa: E402
from ssdlm.data.prepare import prepare  # noqa: E402
from ssdlm.storage.parts import Shard  # noqa: E402

COMMANDS = {
    "generate": "--input p.jsonl --output out --model model --device cpu --T 2 --length 2",
    "prepare": "a.txt --tokenizer tokenizer --out out",
    "merge": "part-1 part-0 --output out",
    "convert": "model out",
    "estimate": "--recipe tiny --gpu h200",
    "evaluate": "t.jsonl --metrics dist --out out",
    "tokenizer nested": "--from builtin:mini --size 300 --out out",
    "prompts": "store --out out --count 2 --prompt-length 3 --length 3",
}
FILES = ["a.txt", "p.jsonl", "t.jsonl", "model", "store", "part-0", "part-1", "out", "missing", "."]
LONG_WORK = {"--ray", "--judge", "--features", "--workers"}
"""Flags that start clusters, load judges, or hundreds of threads."""


@cache
def flags_of(name: str) -> list[str]:
    """Return the flags of a command."""
    (command,) = (
        parser for parser, _ in cli.subcommands(cli.parser()) if parser.prog == f"ssdlm {name}"
    )
    flags = {flag for action in command._actions for flag in action.option_strings}
    return sorted(flags - LONG_WORK)


WORDS = st.one_of(st.sampled_from(FILES), st.integers(-2, 9).map(str), TEXTS)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["change", "double", "drop", "add"]), st.floats(0, 1), WORDS),
    min_size=1,
    max_size=3,
)


def changed(name: str, changes: list[tuple[str, float, str]]) -> list[str]:
    """Return the words of a command after changes, each at a share of its length."""
    words = COMMANDS[name].split()
    for kind, share, word in changes:
        at = int(share * len(words))
        if kind == "add":
            flags = flags_of(name)
            words.append(f"{flags[int(share * (len(flags) - 1))]}={word}")
        elif at < len(words):
            found = words[at]
            words[at : at + 1] = {"change": [word], "double": [found, found], "drop": []}[kind]
    return [*name.split(), *words]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with what commands read, each of it tiny."""
    folder = tmp_path_factory.mktemp("home")
    SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=2)).save_pretrained(
        folder / "model"
    )
    (folder / "a.txt").write_text("\n\n".join([bpe.TEXT[i : i + 30] for i in range(12)]))
    (folder / "p.jsonl").write_text('{"prompt": "a"}\n')
    rows = [{"prompt": "a", "text": bpe.TEXT[i : i + 30]} for i in range(4)]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given_ = {"tokenizer": bpe.write_gpt2(folder / "tokenizer"), "holdout": 0.2}
    prepare([folder / "a.txt"], out=folder / "store", **given_)
    for number in range(2):
        part = folder / f"part-{number}"
        prepare_part([folder / "a.txt"], out=part, shard=Shard(number, 2), **given_)
    return folder


@pytest.fixture
def end(home, tmp_path, monkeypatch, capfd):
    """A function that runs a command in a copy of that folder; gives how it ended, and stderr."""

    def run(words: list[str]) -> tuple[int, str]:
        shutil.copytree(home, tmp_path / "work")
        monkeypatch.chdir(tmp_path / "work")
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code
        finally:
            monkeypatch.chdir(home)
            shutil.rmtree(tmp_path / "work")
        return code, capfd.readouterr().err

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_themselves_end_well(name, end):
    code, said = end(changed(name, []))
    assert code == 0, said


@given(name=st.sampled_from(sorted(COMMANDS)), changes=CHANGES)
def test_any_command_ends_well_or_in_one_line(name, changes, has_time, end, unchecked):
    if not has_time():
        return
    code, said = end(changed(name, changes))
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code in (0, 2) and len(errors) == (code == 2), (code, said)
    assert code == 0 or said.endswith(f"{errors[0]}\n"), said
