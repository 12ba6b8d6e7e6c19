"""Inputs as a user names them: files, folders, globs, data sets of the Hub."""

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ssdlm.data.formats import Tally
from ssdlm.data.sources import FileSource, HubSource, find_sources


def names(inputs) -> list[str]:
    return [source.name for source in find_sources(inputs)]


def texts(source) -> list[str]:
    return [piece.text for piece in source.pieces(Tally())]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.jsonl.xz", "deep/c.csv", "README.md", "deep/index.json"):
        (tmp_path / name).write_text("text\n")
    return tmp_path


def test_a_folder_gives_its_files_of_known_kinds_in_order(folder):
    expected = [str(folder / name) for name in ("a.jsonl.xz", "b.txt", "deep/c.csv")]
    assert names([folder]) == expected


def test_a_glob_gives_what_it_matches_in_order(folder):
    assert names([str(folder / "**/*.[ct]*")]) == [
        str(folder / "b.txt"),
        str(folder / "deep/c.csv"),
    ]


def test_a_file_named_twice_is_read_once(folder):
    given = [folder / "deep/c.csv", folder, folder / "deep/../b.txt"]
    assert names(given)[0] == str(folder / "deep/c.csv")
    assert len(names(given)) == 3


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("missing.jsonl", r"missing\.jsonl does not exist"),
        ("*.parquet", r"no file matches .*\.parquet"),
        ("README.md", r"README\.md is of no known kind; use \.txt, \.jsonl"),
        ("empty", "folder .*empty has no file that ends in"),
    ],
)
def test_an_input_that_cannot_be_used_is_named(folder, name, complaint):
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=complaint):
        find_sources([str(folder / name)])


def test_no_input_at_all_is_an_error():
    with pytest.raises(ValueError, match="no input"):
        find_sources([])


def test_a_file_cut_off_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"text " * 1000)[:-9])
    with pytest.raises(ValueError, match=r"cannot read .*a\.txt\.gz: Compressed file ended"):
        texts(FileSource(path))


def test_a_table_without_text_is_an_error_that_names_it(tmp_path):
    (tmp_path / "a.csv").write_text("body\none\n")
    with pytest.raises(ValueError, match=r"cannot use .*a\.csv: it has no column 'text'"):
        texts(FileSource(tmp_path / "a.csv"))


def test_a_compressed_parquet_is_read(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
    packed = gzip.compress((tmp_path / "a.parquet").read_bytes())
    (tmp_path / "a.parquet.gz").write_bytes(packed)
    assert texts(FileSource(tmp_path / "a.parquet.gz")) == ["one", "two"]


def test_a_file_is_known_by_its_content_wherever_it_stands(tmp_path):
    content = [b"one", b"one", b"two", b"a" * 200_000 + b"one", b"a" * 200_000 + b"two"]
    paths = [tmp_path / f"{number}.txt" for number in range(len(content))]
    for path, part in zip(paths, content, strict=True):
        path.write_bytes(part)
    identities = [json.dumps(FileSource(path).identity()) for path in paths]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


@pytest.fixture
def hub(monkeypatch):
    """A Hub with one data set, and what was asked of it."""
    import datasets
    import huggingface_hub

    calls = []

    def load_dataset(repo, config, **options):
        calls.append((repo, config, options))
        column = "text" if config != "other" else "body"
        return iter([{column: "one"}, {column: None}, {column: "two"}])

    info = SimpleNamespace(dataset_info=lambda repo: SimpleNamespace(sha="abc"))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_a_data_set_of_the_hub_streams_at_a_fixed_revision(hub):
    (source,) = find_sources(["someone/stories:small"])
    tally = Tally()
    assert [piece.text for piece in source.pieces(tally)] == ["one", "two"]
    options = {"split": "train", "streaming": True, "revision": "abc"}
    assert hub == [("someone/stories", "small", options)]
    assert (tally.bad_lines, tally.first_bad_line) == (1, 2)
    assert source.identity() == {"hub": "someone/stories:small", "revision": "abc"}


def test_a_data_set_without_text_is_refused_by_name(hub):
    with pytest.raises(ValueError, match=r"cannot use data set stories:other: .* only body"):
        texts(HubSource("stories:other", "abc"))


def test_a_name_that_is_nothing_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no-such/name is neither a file, folder or glob here nor"):
        find_sources(["no-such/name"])


def test_a_glob_ends_where_links_form_a_circle(folder):
    for name in ("one", "two", "three"):
        (folder / name).symlink_to(folder)
    began = time.monotonic()
    plain = names([str(folder / "*.[ct]*")])
    assert {Path(name).name for name in plain} <= {
        Path(name).name for name in names([str(folder / "**" / "**" / "*.[ct]*")])
    }
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(name):
    with pytest.raises(ValueError, match="an input is empty; give the name of a file or folder"):
        find_sources([name])


WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
TEXTS = {
    "a.txt": "one text\n\nanother, naïve\n",
    "b.txt": "第一\n\n第二\n",
    "c.jsonl": '{"text": "第一"}\n',
    "d.csv": "text\nword\n",
}


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_text_in_another_encoding_is_refused_with_the_remedy(tmp_path, encoding, name, pack):
    path = tmp_path / (name if pack is bytes else f"{name}.gz")
    path.write_bytes(pack(TEXTS[name].encode(encoding)))
    with pytest.raises(ValueError, match=r"cannot use .*: it is not UTF-8 but UTF-16.*save it as"):
        list(FileSource(path).pieces(Tally()))


def test_a_line_with_zero_bytes_is_left_out_and_counted(tmp_path):
    path, tally = tmp_path / "a.txt", Tally()
    path.write_bytes(b"word\n\n" * 20_000 + b"zero \0 byte\n\nlast\n")
    texts = [piece.text for piece in FileSource(path).pieces(tally)]
    assert texts[-2:] == ["word", "last"] and len(texts) == 20_001
    assert (tally.bad_lines, tally.first_bad_line) == (1, 40_001)
    assert tally.first_reason == "zero bytes"
