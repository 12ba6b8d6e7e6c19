"""All texts of a page are there, and none of them is taken for markup."""

import importlib
import re
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM, GenerateOptions

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


def test_a_rule_says_what_of_each_of_forty_passages_is_written_anew(forty):
    texts = [one["text"] for one in forty.passages()]
    assert len(set(texts)) == 40
    for text in texts:
        gap, sentence = (text[slice(*forty.span(text, way))] for way in forty.LENGTHS)
        left, right = text.split(gap)
        assert len(gap.split()) == 8
        assert len(right.split()) - len(left.split()) in (0, 1)
        assert f". {sentence}. " in text and sentence[0].isupper()


def test_the_new_words_of_passages_are_bold_and_the_rest_is_as_it_was(forty, tmp_path, monkeypatch):
    text = "a b c. we go. d e f g h i."
    monkeypatch.setattr(forty, "passages", lambda: [{"kind": "story", "text": text}])
    monkeypatch.setattr(forty, "prompts", list)
    run = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(B=(6,), T=4))
    opened = []
    monkeypatch.setattr(forty.SSDLM, "from_pretrained", lambda name: opened.append(name) or run)
    words = ["--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md")]
    words += ["--models", "builtin:smol", "--ways", "gap,rewrite"]
    forty.main(words)
    page = (tmp_path / "page.md").read_text()
    found = re.findall(r"^\| (.*) \| (gap|rewrite) \| (.*)<b>(.*)</b>(.*) \|$", page, re.M)
    assert [row[:2] for row in found] == [
        ("as it was", "gap"),
        ("builtin:smol", "gap"),
        ("as it was", "rewrite"),
        ("builtin:smol", "rewrite"),
    ]
    for was, new in zip(found[::2], found[1::2], strict=True):
        assert was[2] + was[3] + was[4] == text
        assert (was[2], was[4]) == (new[2], new[4]) and was[3] != new[3]
    assert found[0][3] == "b c. we go. d e f g"
    assert found[2][3] == "we go"
    forty.main(words)
    assert opened == ["builtin:smol"] * 2, "what is done is not written again"


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
    words = ["--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md")]
    forty.main([*words, "--ways", "plain,positive,schema"])
    assert len(seen) == 9
    for name in ("smollm2", "builtin-smol"):
        chat = (tmp_path / "out" / "prompts" / f"{name}-plain.jsonl").read_text()
        assert chat.count('"messages"') == 40
    page = (tmp_path / "page.md").read_text()
    rows = re.findall(r"^\| [a-z2:]+ \| \w+ \| <code>(.*)</code> \|$", page, re.M)
    assert len(rows) == 360
    plain = re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), rows[0])
    assert plain == "a|b\\n[c](d) *e* <f>" and not re.search(r"[|\[*<]", rows[0])


@pytest.mark.parametrize("option", [["--models", "smollm2,builtin:smal"], ["--ways", "gaps"]])
def test_a_name_that_is_none_is_refused_and_nothing_written(forty, capsys, tmp_path, option):
    words = ["--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md"), *option]
    with pytest.raises(SystemExit):
        forty.main(words)
    assert f"{option[0]} {option[1].split(',')[-1]} is none of " in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
