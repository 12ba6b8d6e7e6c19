"""Calls that docs/migrating.md puts beside other libraries' are run; old names work as told."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from tests.talking import talking_model

from ssdlm import SSDLM, Draft, GenerateOptions, __version__
from ssdlm.cli import main, parser
from ssdlm.options import FORMER_NAMES
from ssdlm.reproduce.run import models_by_role
from ssdlm.reproduce.setting import FORMER_ROLE, ROLE
from ssdlm.train.recipes import EARLIER_NAMES, recipe

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, NAMES = DOCS / "migrating.md", (DOCS / "names.md").read_text(encoding="utf-8")
SCHEMA = {
    "type": "object",
    "properties": {"stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["stars"],
}
CELLS = [
    re.split(r"(?<!\\)\|", line)[-2].replace("\\|", "|")
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `") or line.startswith("| a ")
]
CODE = [code for cell in CELLS for code in re.findall(r"`([^`]+)`", cell)]
CALLS = list(dict.fromkeys(code for code in CODE if re.match(r"\w+(\.\w+)*\(|next\(", code)))


@pytest.fixture(scope="module")
def model() -> SSDLM:
    return SSDLM.from_pretrained("builtin:mini", device="cpu")


class Printed:
    """A streamer, as transformers has them."""

    def __init__(self, _: Any) -> None:
        self.num_taken = 0

    def put(self, tokens) -> None:
        self.num_taken += len(tokens)

    def end(self) -> None:
        assert self.num_taken == 4


class Review:
    """A class with a schema, as pydantic's models are."""

    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return SCHEMA


async def last_of(drafts: AsyncIterator[Draft]) -> Draft:
    """Return the last one of drafts that come by and by."""
    return [draft async for draft in drafts][-1]


def test_every_row_has_a_call_or_a_command():
    assert len(CELLS) > 35
    commands = [code for code in CODE if code.startswith("ssdlm ")]
    assert len(CALLS) > 25 and len(commands) == 2
    for command in commands:
        parser().parse_args(shlex.split(command)[1:])
    assert [cell for cell in CELLS if not re.search(r"`[\w.]+\(|`next\(|`ssdlm ", cell)] == []


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_the_page_gives_a_text(call, model, tmp_path, unchecked):
    names = {
        "model": model,
        "chatty": talking_model(),
        "SSDLM": SSDLM,
        "TextStreamer": Printed,
        "tokenizer": None,
        "schema": SCHEMA,
        "Review": Review,
        "folder": tmp_path,
    }
    made = eval(call, names)
    if "stream_async" in call:
        made = asyncio.run(last_of(made))
    elif "_async" in call:
        made = asyncio.run(made)
    if call.startswith("model.save_pretrained"):
        assert (tmp_path / "config.json").is_file()
    elif pattern := re.search(r'regex=r?"([^"]+)"', call):
        texts = made if isinstance(made, list) else [made]
        whole = [getattr(text, "text", text) for text in texts]
        assert call.startswith("next(") or all(re.fullmatch(pattern[1], text) for text in whole)
    else:
        assert made


def test_old_names_on_the_page_are_those_that_work_and_none_is_overdue():
    rows = re.findall(r"^\| (recipe|role) `(\w+)`.*\| `(\w+)` \| ([\d.]+) \|$", NAMES, re.M)
    assert {old: new for kind, old, new, _ in rows if kind == "recipe"} == EARLIER_NAMES
    assert {(old, new) for kind, old, new, _ in rows if kind == "role"} == {(FORMER_ROLE, ROLE)}
    for kind, old, new, until in rows:
        assert Version(__version__) < Version(until)
        with pytest.warns(FutureWarning, match=f"{kind} {old} is now {new}; .* until {until}"):
            recipe(old) if kind == "recipe" else models_by_role([f"{old}=folder"])


def test_options_on_the_page_that_are_gone_have_no_effect_and_none_is_overdue():
    rows = dict(
        re.findall(r"^\| option `(\w+)`, which has no effect .* \| ([\d.]+) \|$", NAMES, re.M)
    )
    assert rows == {name: until for name, (_, until) in FORMER_NAMES.items()}
    for name, until in rows.items():
        assert Version(__version__) < Version(until)
        told = f"option {name} has no effect: .*; leave it out, from {until} on it is an error"
        with pytest.warns(FutureWarning, match=told):
            assert GenerateOptions().change(**{name: 3}) == GenerateOptions()


@pytest.mark.filterwarnings("default::FutureWarning")
def test_a_flag_that_is_gone_is_taken_and_told(tmp_path, capsys):
    model = talking_model()
    model.save_pretrained(tmp_path)
    words = ["generate", "a", "--model", str(tmp_path), "--length", "3"]
    plain, _ = main(words), capsys.readouterr()
    assert main([*words, "--draft-nodes", "8"]) == plain == 0
    assert "warning: option draft_nodes has no effect: " in capsys.readouterr().err
