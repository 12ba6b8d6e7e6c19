"""Prompts out of hold-outs and out of files."""

from __future__ import annotations

import json
import shutil

import pytest
from tests import tiny
from tests.processes import make_store

from ssdlm import cli
from ssdlm.data.shards import TokenStore
from ssdlm.reproduce.prompts import make_prompts, shares, split_window
from ssdlm.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return [make_store(folder / name, documents=120, turn=i) for i, name in enumerate(("a", "b"))]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_prompt_and_its_gold_lie_side_by_side_in_a_held_out_document(stores, tmp_path):
    out = tmp_path / "prompts.jsonl"
    report = make_prompts(stores, out=out, count=9, prompt_length=8, length=5)
    lines, tokenizer = read(out), load_tokenizer(stores[0])
    documents = {
        store.name: list(TokenStore.open(store, "holdout").documents()) for store in stores
    }
    assert report.counts == {"a": 5, "b": 4} and len(lines) == 9
    assert str(report) == f"wrote {out}: 9 prompts (a 5, b 4)"
    assert [line["source"] for line in lines[:4]] == ["a", "b", "a", "b"]
    for line in lines:
        ids, start = documents[line["source"]][line["document"]], line["start"]
        assert tokenizer.encode(line["prompt"]) == ids[start : start + 8].tolist()
        assert line["gold_tokens"] == ids[start + 8 : start + 13].tolist()
        assert tokenizer.decode(line["gold_tokens"]) == line["gold"]
    assert len({line["prompt"] for line in lines}) == 9


def test_the_same_command_writes_the_same_prompts_and_overwrites_none(stores, tmp_path, capsys):
    names = [str(store) for store in stores]
    for out in ("one.jsonl", "two.jsonl"):
        command = ["prompts", *names, "--count", "4", "--prompt-length", "8", "--length", "5"]
        assert cli.main([*command, "--out", str(tmp_path / out)]) == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert cli.main([*command, "--count", "3", "--out", str(tmp_path / "one.jsonl")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_every_document_has_its_turn_before_any_has_a_second(stores, tmp_path):
    make_prompts(stores[:1], out=tmp_path / "p", count=8, prompt_length=8, length=5)
    documents = [line["document"] for line in read(tmp_path / "p")]
    held_out = TokenStore.open(stores[0], "holdout").num_documents
    assert len(set(documents[:held_out])) == held_out


def test_prompts_of_a_file_keep_their_order_and_lose_what_cannot_be_read_back(tmp_path):
    source = tmp_path / "owt.jsonl"
    contexts = ["a", "b</s>c", "d", "a", " e"]
    lines = [json.dumps({"context_string": context}) for context in contexts]
    source.write_text("\n".join([*lines, '{"prompt": "f", "gold": "g"}']) + "\n")
    make_prompts([source], out=tmp_path / "p", count=4, prompt_length=1, length=1)
    lines = read(tmp_path / "p")
    assert [line["prompt"] for line in lines] == ["a", "d", " e", "f"]
    assert lines[3]["gold"] == "g" and {line["source"] for line in lines} == {"owt"}


def test_what_cannot_be_made_is_refused(stores, tmp_path):
    sizes = {"prompt_length": 8, "length": 5}
    with pytest.raises(ValueError, match=r"prompts and 5000 are needed; lower --count"):
        make_prompts(stores[:1], out=tmp_path / "p", count=5000, **sizes)
    with pytest.raises(ValueError, match="1 or more"):
        make_prompts(stores, out=tmp_path / "p", count=0, **sizes)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "x"}\n')
    with pytest.raises(ValueError, match="line 1 has no text"):
        make_prompts([bad], out=tmp_path / "p", count=1, **sizes)
    shutil.copytree(stores[0], tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
    with pytest.raises(ValueError, match="different tokenizers"):
        make_prompts([*stores, tmp_path / "other"], out=tmp_path / "p", count=3, **sizes)
    assert not (tmp_path / "p").exists()


def test_shares_add_up():
    assert shares(10, 3) == [4, 3, 3] and shares(2, 3) == [1, 1, 0]


def test_a_window_is_prompt_and_gold_unless_text_cannot_hold_it():
    tokenizer = tiny.tokenizer()
    assert split_window(tokenizer, tokenizer.encode("abcdef"), 3) == {
        "prompt": "abc",
        "gold": "def",
        "gold_tokens": tokenizer.encode("def"),
    }
    end = tokenizer.end_of_text
    assert split_window(tokenizer, [end, *tokenizer.encode("abcde")], 3) is not None
    assert split_window(tokenizer, tokenizer.encode("abc   "), 3) is None
