"""Files of ours, made up and damaged: read as they are, or refused in one line."""

import gzip
import io
import json
from contextlib import suppress
from pathlib import Path

import pytest
from tests import bpe, tiny

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tests.properties.odd import CHANGES, ENDS, OBJECTS, answer, damaged  # noqa: E402

from ssdlm import SSDLM, DecodeConfig  # noqa: E402
from ssdlm.data.compression import ERRORS, decompressed  # noqa: E402
from ssdlm.data.formats import READERS, LayoutError, Tally  # noqa: E402
from ssdlm.data.merging import MergedPart  # noqa: E402
from ssdlm.data.parts import prepare_part, read_part  # noqa: E402
from ssdlm.data.prepare import prepare  # noqa: E402
from ssdlm.data.shards import TokenStore  # noqa: E402
from ssdlm.engine.merging import append_part, merge_texts  # noqa: E402
from ssdlm.engine.prompt_files import prompt_lines  # noqa: E402
from ssdlm.storage.files import parse_object, read_json  # noqa: E402
from ssdlm.storage.jsonl import append_jsonl, parse_jsonl, read_jsonl, write_jsonl  # noqa: E402
from ssdlm.storage.lines import LinesError  # noqa: E402
from ssdlm.storage.parts import Shard  # noqa: E402
from ssdlm.train.checkpoint_folders import NewFolder, find_damage  # noqa: E402


@given(raw=st.one_of(st.binary(max_size=80), OBJECTS.map(lambda x: json.dumps(x).encode())))
@example(raw=b"[" * 100_000)
@example(raw=b'{"a": ' + b"9" * 5000 + b"}")
@example(raw=b'{"a": "\\ud800"}')
def test_any_bytes_are_an_object_or_refused(raw, has_time):
    if has_time():
        found = answer(lambda: parse_object(raw, where="x", remedy="mend it"))
        assert isinstance(found, dict | ValueError)


@given(values=st.lists(OBJECTS, max_size=5))
def test_lines_come_back_as_they_were_written(values, has_time, tmp_path):
    if has_time():
        write_jsonl(tmp_path / "a.jsonl", values)
        assert read_jsonl(tmp_path / "a.jsonl") == values


@given(raw=st.binary(max_size=60), values=st.lists(OBJECTS, max_size=3))
@example(raw=b"\xef\xbb\xbf", values=[{"prompt": "a"}])
@example(raw=b"[" * 100_000, values=[])
def test_any_file_of_prompts_is_read_or_refused(raw, values, has_time, tmp_path):
    if has_time():
        lines = [json.dumps(value | {"prompt": "a"}).encode() for value in values]
        (tmp_path / "p.jsonl").write_bytes(b"\n".join([raw, *lines]))
        found = answer(lambda: prompt_lines(tmp_path / "p.jsonl"))
        assert isinstance(found, ValueError) or len(found) >= len(values)


@given(rows=st.lists(OBJECTS, min_size=1, max_size=9), count=st.integers(1, 9))
def test_lines_that_are_cut_into_parts_come_back(rows, count, has_time, tmp_path):
    if not has_time() or count > len(rows):
        return
    rows = [row | {"run": "0123456789ab"} for row in rows]
    parts = []
    with (tmp_path / "one").open("w") as whole:
        append_jsonl(whole, rows)
    for number in range(count):
        shard = Shard(number, count)
        own = shard.share(len(rows), "rows")
        parts.insert(0, tmp_path / str(number))
        with parts[0].open("w") as file:
            append_part(file, rows[own.start : own.stop], shard, 0, len(own))
    target = tmp_path / "all"
    target.unlink(missing_ok=True)
    merge_texts(parts, target)
    assert target.read_bytes() == (tmp_path / "one").read_bytes()


@given(kind=st.sampled_from([".txt", ".jsonl", ".csv"]), raw=st.binary(max_size=200))
@example(kind=".csv", raw=b'text\n"a')
@example(kind=".txt", raw=b"\xef\xbb\xbf\r\n\r\na")
def test_any_bytes_of_a_text_are_read_or_counted(kind, raw, has_time):
    if has_time():
        tally, stream = Tally(), io.BufferedReader(io.BytesIO(raw))
        with suppress(LayoutError, LinesError):
            pieces = list(READERS[kind](stream, tally))
            assert sum(piece.ends_document for piece in pieces) == tally.documents
            assert all(piece.text.encode() for piece in pieces if piece.ends_document)


@given(raw=st.binary(max_size=300), changes=CHANGES, end=ENDS)
def test_damaged_packed_files_are_read_or_refused(raw, changes, end, has_time):
    if has_time():
        whole = gzip.compress(raw)
        packed = damaged(whole, changes, end)
        with suppress(*ERRORS):
            read = decompressed(io.BufferedReader(io.BytesIO(packed)), ".gz").read()
            assert packed != whole or read == raw


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a model, a token store and a part of one."""
    folder = tmp_path_factory.mktemp("home")
    SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=2)).save_pretrained(
        folder / "model"
    )
    (folder / "a.txt").write_text("\n\n".join([bpe.TEXT[i : i + 30] for i in range(12)]))
    given_ = {"tokenizer": bpe.write_gpt2(folder / "tokenizer"), "holdout": 0.2}
    prepare([folder / "a.txt"], out=folder / "store", **given_)
    prepare_part([folder / "a.txt"], out=folder / "part", shard=Shard(0, 1), **given_)
    return folder


def try_damaged(path: Path, changes, end, call) -> None:
    """Call with one file damaged, and put the file back."""
    whole = path.read_bytes()
    path.write_bytes(damaged(whole, changes, end))
    try:
        answer(call)
    finally:
        path.write_bytes(whole)


FILES = ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"]


@given(name=st.sampled_from(FILES), changes=CHANGES, end=ENDS)
def test_a_damaged_checkpoint_is_opened_or_refused(name, changes, end, has_time, home, unchecked):
    def use():
        model = SSDLM.from_pretrained(home / "model", device="cpu")
        return model.generate("a", length=2, B=2, T=2)

    if has_time():
        try_damaged(home / "model" / name, changes, end, use)


@given(
    name=st.sampled_from(["index.json", "train-00000.bin", "tokenizer.json"]),
    changes=CHANGES,
    end=ENDS,
)
def test_a_damaged_store_is_read_or_refused(name, changes, end, has_time, home, unchecked):
    def use():
        store = TokenStore.open(home / "store")
        return store.read(0, len(store)), list(store.documents())

    if has_time():
        try_damaged(home / "store" / name, changes, end, use)


@given(name=st.sampled_from(["part.json", "sizes.bin"]), changes=CHANGES, end=ENDS)
def test_a_damaged_part_is_read_or_refused(name, changes, end, has_time, home, unchecked):
    if has_time():
        folder = home / "part"
        try_damaged(
            folder / name, changes, end, lambda: MergedPart(folder, read_part(folder)).verify()
        )


@given(value=OBJECTS, name=st.text(max_size=5))
def test_any_object_in_place_of_an_index_is_refused(value, name, has_time, tmp_path, unchecked):
    if has_time():
        (tmp_path / "index.json").write_text(json.dumps(value | {name: 1, "format": 1}))
        assert read_json(tmp_path / "index.json")["format"] == 1
        found = answer(lambda: TokenStore.open(tmp_path))
        assert isinstance(found, ValueError)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A checkpoint's folder with one file and a manifest."""
    folder = NewFolder(tmp_path, 1, keep=1)
    folder.prepare()
    (folder.temporary / "state.json").write_text("{}")
    folder.finish()
    return folder.path


@given(value=OBJECTS, changes=CHANGES, end=ENDS)
@example(value={"files": {"\x00": {"bytes": 1}}}, changes=[], end=1.0)
@example(value={"files": {"state.json": {"bytes": 2, "sha256": None}}}, changes=[], end=1.0)
def test_any_manifest_of_a_run_is_right_or_damaged(value, changes, end, has_time, checkpoint):
    if has_time():
        manifest = checkpoint / "manifest.json"
        whole = manifest.read_bytes()
        assert find_damage(checkpoint) == ""
        for raw in (json.dumps({"files": value} | value).encode(), whole):
            manifest.write_bytes(damaged(raw, changes, end))
            assert "\n" not in find_damage(checkpoint)
        manifest.write_bytes(whole)


def test_lines_of_several_sources_are_named():
    (line,) = parse_jsonl([b"", b'{"a": 1}'], source="x")
    assert line.where == "x line 2"
