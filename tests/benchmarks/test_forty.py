"""All texts of a page are there, and none of them is taken for markup."""

import importlib
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def forty(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("forty")


def test_there_are_forty_prompts_of_six_kinds(forty):
    asked = forty.prompts()
    assert len({one["prompt"] for one in asked}) == 40
    kinds = {"question", "instruction", "list", "story", "fact", "code"}
    assert {one["kind"] for one in asked} == kinds


def test_the_page_has_every_text_as_it_is(forty, monkeypatch, tmp_path):
    seen = []

    def write(words):
        seen.append(words)
        target = Path(words[words.index("--output") + 1])
        lines = Path(words[words.index("--input") + 1]).read_text().splitlines()
        text = '"a|b\\n[c](d) *e* <f>"'
        target.write_text("".join(f'{{"text": {text}}}\n' for _ in lines))
        return 0

    monkeypatch.setattr(forty, "ssdlm", write)
    forty.main(["--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md")])
    assert len(seen) == 6
    chat = (tmp_path / "out" / "prompts" / "smollm2-plain.jsonl").read_text()
    assert chat.count('"messages"') == 40
    page = (tmp_path / "page.md").read_text()
    rows = re.findall(r"^\| (?:builtin:mini|smollm2) \| \w+ \| <code>(.*)</code> \|$", page, re.M)
    assert len(rows) == 240
    plain = re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), rows[0])
    assert plain == "a|b\\n[c](d) *e* <f>" and not re.search(r"[|\[*<]", rows[0])
