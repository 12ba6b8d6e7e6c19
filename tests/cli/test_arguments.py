"""Words of a command line: lists in any place, and unknown ones answered."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ssdlm.cli import parse, parser, subcommands

ROOT = Path(__file__).resolve().parents[2]


def test_files_and_settings_of_train_guide_stand_in_any_place():
    words = "train-guide a.jsonl --out x epochs=1 --tokenizer t b.jsonl lr=1 --words w blur=0"
    assert parse(words.split()).data == ["a.jsonl", "epochs=1", "b.jsonl", "lr=1", "blur=0"]


def test_settings_of_train_stand_in_any_place():
    arguments = parse(
        ["train", "lr=1", "--recipe", "tiny", "steps=2", "--data", "d", "e", "--out", "o", "seed=3"]
    )
    assert (arguments.data, arguments.overrides) == (["d", "e"], ["lr=1", "steps=2", "seed=3"])


def test_prompts_stand_in_any_place():
    assert parse(["generate", "a", "--seed", "3", "b c", "--json", "d"]).prompts == [
        "a",
        "b c",
        "d",
    ]


def test_what_begins_like_a_negative_number_is_a_value():
    arguments = parse(["generate", "-5C", "--lam", "-1e5", "--band", "-.1,1"])
    assert arguments.prompts == ["-5C"]
    assert (arguments.lam, arguments.band) == ([-1e5], [-0.1, 1.0])


def all_flags() -> list[tuple[list[str], str, str]]:
    """Every flag of every command: the words that go before it, the flag, and its name."""
    found = []
    for command, _ in subcommands(parser()):
        for action in command._actions:
            needed = [one for one in command._actions if one.required and one is not action]
            words = command.prog.split()[1:]
            words += [word for one in needed for word in [*one.option_strings[:1], "x"]]
            found += [(words, flag, action.dest) for flag in action.option_strings]
    return found


def test_two_dashes_after_an_equals_sign_are_the_value_of_any_flag(capsys):
    flags = all_flags()
    assert len(flags) > 200 and (["serve"], "--api-key-file", "api_key_file") in flags
    taken = set()
    for words, flag, name in flags:
        try:
            value = getattr(parse([*words, f"{flag}=--"]), name)
        except SystemExit as stop:
            (line,) = capsys.readouterr().err.splitlines()
            assert stop.code == 2 and flag in line and "--" in line.partition(": ")[2]
        else:
            assert value in ("--", ["--"]), (words, flag)
            taken.add(flag)
    assert {"--stop", "--suffix", "--regex", "--api-key-file", "--ray", "--data"} <= taken


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("generate x --lenght 3", "--lenght; the nearest is --length; see ssdlm generate --help"),
        (
            "train-guide a --out o --tokeniser t",
            "the nearest is --tokenizer; see ssdlm train-guide",
        ),
        (
            "train --recipe r --data d --out o --frsh",
            "the nearest is --fresh; see ssdlm train --he",
        ),
        ("generate x --num-beams 3", "there is no beam search; best_of keeps the likeliest"),
        ("evaluate x", "required: --out; see ssdlm evaluate --help"),
        ("tokenizer nested --size 3", "see ssdlm tokenizer nested --help"),
        ("generate --input i --output o --shard -1/3", "shard=-1/3 is not a part; use i/n"),
    ],
)
def test_what_is_unknown_or_missing_is_answered_with_the_commands_own_help(words, said, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["demo", "setup"])
def test_in_a_log_pip_says_nothing_but_errors(target):
    changed = [word for name in ("pyproject.toml", "constraints.txt") for word in ("-W", name)]
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", *changed, target, "TORCH_INDEX="],
        cwd=ROOT,
        env=quiet,
        capture_output=True,
        text=True,
    )
    installs = [line for line in done.stdout.splitlines() if " pip install " in line]
    assert len(installs) >= 2, done.stderr
    assert [line for line in installs if " -qq " not in line] == []
