"""A token store prepared in parts, and put together again."""

import json
import shutil
import signal

import pytest
from tests import bpe
from tests.processes import end_at_rename

from ssdlm import cli
from ssdlm.data import parts, writer
from ssdlm.data.merging import merge_stores
from ssdlm.data.parts import prepare_part
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore
from ssdlm.storage.parts import Shard
from ssdlm.tokenizer import load_tokenizer

RULES = ("none", "holdout", "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer and inputs: three files, one empty, copies, a bad line."""
    folder = tmp_path_factory.mktemp("parts")
    bpe.write_gpt2(folder / "tokenizer")
    texts = [f"document {i}: " + bpe.TEXT[: 10 + i % 7 * 20].strip() for i in range(30)]
    lines = [json.dumps({"text": text}) for text in [*texts[:9], texts[3], *texts[5:20]]]
    (folder / "a.jsonl").write_text("\n".join([*lines[:4], "not JSON", *lines[4:]]) + "\n")
    (folder / "b.txt").write_text("")
    (folder / "c.txt").write_text("\n\n".join([*texts[15:], "a <|endoftext|> b"]) + "\n")
    return folder


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(writer, "SHARD_TOKENS", 200)


def given(folder, rule):
    inputs = [folder / name for name in ("a.jsonl", "b.txt", "c.txt")]
    return {
        "inputs": inputs,
        "tokenizer": load_tokenizer(folder / "tokenizer"),
        "holdout": 0.2,
        "deduplicate": rule,
    }


def make_parts(folder, target, count, rule="holdout"):
    """Prepare every part into a folder of its own; return the folders."""
    out = [target / f"part-{number}" for number in range(count)]
    for number, path in enumerate(out):
        prepare_part(shard=Shard(number, count), out=path, **given(folder, rule))
    return out


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 3, 7])
def test_parts_in_any_order_are_the_store_of_one_process(folder, tmp_path, rule, count):
    expected = prepare(out=tmp_path / "one", **given(folder, rule))
    assert len(list((tmp_path / "one").glob("train-*.bin"))) > 2
    out = make_parts(folder, tmp_path, count, rule)
    report = merge_stores(out[::-1], tmp_path / "all")
    assert content(tmp_path / "all") == content(tmp_path / "one")
    assert str(report) == str(expected)
    assert merge_stores(out, tmp_path / "all").was_finished


def test_a_single_held_out_document_is_moved_as_one_process_moves_it(folder, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n")
    settings = {"inputs": [tmp_path / "a.txt"], "tokenizer": folder / "tokenizer"}
    settings |= {"deduplicate": "none", "holdout": 0.001}
    prepare(out=tmp_path / "one", **settings)
    out = [tmp_path / str(number) for number in range(3)]
    for number in range(3):
        prepare_part(shard=Shard(number, 3), out=out[number], **settings)
    assert merge_stores(out, tmp_path / "all").holdout.documents == 1
    assert content(tmp_path / "all") == content(tmp_path / "one")


def do_again(folder, out, parts):
    """Prepare the second of three parts; or put `parts` together, where they are given."""
    writer.SHARD_TOKENS = 200
    if parts:
        merge_stores(parts, out)
    else:
        prepare_part(shard=Shard(1, 3), out=out, **given(folder, "holdout"))


def test_killed_anywhere_parts_and_merge_end_with_the_same_bytes(folder, tmp_path):
    out = make_parts(folder, tmp_path, 3)
    prepare(out=tmp_path / "one", **given(folder, "holdout"))
    for point in (2, 3, 6, 9, 12):
        again, merged = tmp_path / f"again-{point}", tmp_path / f"all-{point}"
        for target, given_parts in ((again, []), (merged, out)):
            assert end_at_rename(point, do_again, folder, target, given_parts) == -signal.SIGKILL
            assert not (target / "part.json").exists() and not (target / "index.json").exists()
        prepare_part(shard=Shard(1, 3), out=again, **given(folder, "holdout"))
        assert content(again) == content(out[1])
        merge_stores(out, merged)
        assert content(merged) == content(tmp_path / "one")


def test_a_missing_doubled_foreign_or_damaged_part_is_named(folder, tmp_path):
    out = make_parts(folder, tmp_path, 3)
    other = tmp_path / "other"
    prepare_part(shard=Shard(2, 3), out=other, **given(folder, "none"))
    prepare(out=tmp_path / "one", **given(folder, "holdout"))
    broken = shutil.copytree(out[2], tmp_path / "broken")
    for given_parts, said in [
        (out[:2], r"missing: part 2/3; write it with --shard 2/3"),
        ([*out, out[1]], r"part-1 and .*part-1 are both part 1/3"),
        ([*out[:2], other], r"other is part 2/3 of another job than .*part-0"),
        ([*out, tmp_path / "one"], r"one is not a part; make one with `ssdlm prepare --shard"),
    ]:
        with pytest.raises(ValueError, match=said):
            merge_stores(given_parts, tmp_path / "all")
    for name in ("sizes.bin", "splits.bin", "train-00000.bin"):
        whole = (broken / name).read_bytes()
        (broken / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(ValueError, match=f"broken/{name} is .*damaged; delete .*broken"):
            merge_stores([*out[:2], broken], tmp_path / "all")
        (broken / name).write_bytes(whole)
    assert not (tmp_path / "all").exists()
    with pytest.raises(ValueError, match=r"part-0 is a part of a store; put all together"):
        TokenStore.open(out[0])


def test_a_folder_is_continued_as_the_same_part_alone(folder, tmp_path):
    (out,) = make_parts(folder, tmp_path, 1)
    assert prepare_part(shard=Shard(0, 1), out=out, **given(folder, "holdout")).was_finished
    for shard, place, said in [
        (Shard(1, 3), out, "was prepared with shard '0/1', not 1/3"),
        (Shard(0, 99), tmp_path / "x", "shard=0/99 is one of 99 parts, and there are 41 documents"),
    ]:
        with pytest.raises(ValueError, match=said):
            prepare_part(shard=shard, out=place, **given(folder, "holdout"))
    with pytest.raises(ValueError, match=r"part.json is there"):
        prepare(out=out, **given(folder, "holdout"))
    prepare(out=tmp_path / "one", **given(folder, "holdout"))
    with pytest.raises(ValueError, match="was prepared with shard 'all', not 0/1"):
        prepare_part(shard=Shard(0, 1), out=tmp_path / "one", **given(folder, "holdout"))


def test_the_commands_are_these_functions(folder, tmp_path, capsys):
    words = [str(folder / "c.txt"), "--tokenizer", str(folder / "tokenizer")]
    out = [str(tmp_path / str(number)) for number in range(2)]
    for number in range(2):
        assert cli.main(["prepare", *words, "--out", out[number], "--shard", f"{number}/2"]) == 0
    assert "part 1/2, documents 8 to 15" in capsys.readouterr().out
    assert cli.main(["merge", *out, "--output", str(tmp_path / "all")]) == 0
    assert cli.main(["prepare", *words, "--out", str(tmp_path / "one")]) == 0
    assert content(tmp_path / "all") == content(tmp_path / "one")
    assert parts.read_part(tmp_path / "1").num_documents == 16
    with pytest.raises(SystemExit, match="2"):
        cli.main(["prepare", *words, "--out", out[0], "--shard", "5/3"])
    assert "shard=5/3 is not a part" in capsys.readouterr().err
