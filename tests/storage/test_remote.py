"""Files elsewhere: read as streams, written whole or not at all, errors in one line."""

import gzip
import io
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests import object_store

from ssdlm.data import formats
from ssdlm.data.compression import decompressed
from ssdlm.storage import delivery
from ssdlm.storage.delivery import delivered_file, delivered_folder, fetched
from ssdlm.storage.files import cache_folder
from ssdlm.storage.remote import Remote, RemoteError, open_place, place_of, size_of

STORE = {"ends": ("index.json",), "mark": "progress.json", "own": ("*.bin",)}


@pytest.fixture(scope="module")
def bucket():
    with object_store.s3() as url:
        yield url


@pytest.fixture(params=["memory", "file", "s3"])
def root(request, tmp_path, monkeypatch):
    """A folder elsewhere, which is not there yet; and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = request.node.name.partition("[")[0]
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{name}"
    return f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/{name}"


def put(url, content, tmp_path):
    (tmp_path / "put").write_bytes(content)
    Remote(url).put(tmp_path / "put")


def names(url):
    start = Remote(url).path.rstrip("/") + "/"
    return [file.path.removeprefix(start) for file in Remote(url).below()]


def unsent():
    folder = cache_folder() / "unsent"
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_name_with_a_protocol_is_elsewhere():
    assert place_of("s3://a/b", "x") == Remote("s3://a/b")
    assert place_of("a/b", "x") == Path("a/b") and place_of("C://a", "x") == Path("C://a")
    with pytest.raises(ValueError, match="x is empty"):
        place_of(" ", "x")
    assert Remote("s3://a/b/c").name == "c" and str(Remote("s3://a/b") / "c") == "s3://a/b/c"


def test_files_are_put_found_read_and_removed(root, tmp_path):
    assert not Remote(root).exists() and not Remote(root).is_dir()
    content = bytes(range(256)) * 5000
    put(f"{root}/deep/a.bin", content, tmp_path)
    put(f"{root}/b.bin", b"b", tmp_path)
    file = Remote(f"{root}/deep/a.bin")
    assert names(root) == ["b.bin", "deep/a.bin"]
    assert Remote(root).is_dir() and not file.is_dir() and size_of(file) == len(content)
    assert [found.name for found in Remote(f"{root}/*.bin").matches()] == ["b.bin"]
    with open_place(file) as stream:
        assert stream.read(10) == content[:10]
        stream.seek(-3, io.SEEK_END)
        assert stream.read() == content[-3:] and stream.tell() == len(content)
    with fetched([Remote(root), tmp_path / "put"]) as (folder, own):
        assert own == tmp_path / "put" and folder.name == Remote(root).name
        assert (folder / "deep" / "a.bin").read_bytes() == content
    assert not folder.exists()
    file.remove()
    assert names(root) == ["b.bin"]


def test_a_file_is_sent_when_it_is_whole(root):
    place = Remote(f"{root}/out.txt")
    with pytest.raises(ZeroDivisionError), delivered_file(place) as here:
        here.write_text("half")
        assert names(root) == ["out.txt.part"]
        raise ZeroDivisionError
    assert not place.exists() and [path.read_text() for path in unsent()] == ["half"]
    with delivered_file(place) as here:
        assert here.read_text() == "half"
        here.write_text("whole")
    assert place.read() == b"whole" and names(root) == ["out.txt"] and not unsent()
    with pytest.raises(ValueError, match=f"^{root}/out.txt is old$"), delivered_file(place) as here:
        assert here.read_text() == "whole"
        here.write_text("other")
        raise ValueError(f"{here} is old")
    assert place.read() == b"whole"


def test_a_folder_is_no_file_to_write(root, tmp_path):
    (tmp_path / "a").write_text("a")
    Remote(f"{root}/below/a").put(tmp_path / "a")
    with (
        pytest.raises(RemoteError, match="below is a folder; give the name of a file in it"),
        delivered_file(Remote(f"{root}/below")),
    ):
        pass


def test_a_folder_is_sent_with_its_index_last(root, monkeypatch):
    place, sent = Remote(root), []
    put_as_before = Remote.put

    def put(remote, source):
        if len(sent) == 3:
            raise RemoteError("the line is dead")
        sent.append(remote.name)
        put_as_before(remote, source)

    def fill(folder, *files):
        folder.mkdir(exist_ok=True)
        for name in files:
            (folder / name).write_text(name)

    monkeypatch.setattr(Remote, "put", put)
    with pytest.raises(RemoteError, match="line is dead"), delivered_folder(place, **STORE) as here:
        fill(here, "index.json", "x.bin", "z.bin")
    assert sent == ["progress.json", "x.bin", "z.bin"] and not (place / "index.json").exists()
    sent[:] = ["of another run"] * 9
    with delivered_folder(place, **STORE) as here:
        assert sorted(path.name for path in here.iterdir()) == ["index.json", "x.bin", "z.bin"]
        (here / "z.bin").unlink()
    assert names(root) == ["index.json", "x.bin"] and not unsent()
    with delivered_folder(place, **STORE) as here:
        assert [path.name for path in here.iterdir()] == ["index.json"]


def test_a_folder_of_somebody_else_is_refused(root, tmp_path):
    put(f"{root}/letters.txt", b"mine", tmp_path)
    said = f"^{root} is not empty \\(letters.txt is there\\)"
    with pytest.raises(ValueError, match=said), delivered_folder(Remote(root), **STORE):
        pass
    assert names(root) == ["letters.txt"]


def test_two_processes_of_a_machine_do_not_make_the_same_file(root):
    place = Remote(f"{root}/a.txt")
    with delivered_file(place) as here:
        with pytest.raises(ValueError, match=f"another process .* {place}; wait"):
            delivery.working(place).__enter__()
        here.write_text("")


def test_readers_of_every_kind_take_a_stream(root, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    parquet.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "t")
    for name, content in [
        ("a.txt", b"one\n\ntwo\n"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n{"text": "two"}\n')),
        ("a.parquet", (tmp_path / "t").read_bytes()),
    ]:
        put(f"{root}/{name}", content, tmp_path)
        with open_place(Remote(f"{root}/{name}")) as file:
            suffix = ".gz" if name.endswith(".gz") else ""
            kind = "." + name.split(".")[1]
            tally = formats.Tally()
            pieces = list(formats.READERS[kind](decompressed(file, suffix), tally))
        assert [piece.text for piece in pieces] == ["one", "two"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere://a/b", "nowhere://a/b: nowhere is no known protocol; use s3://"),
        ("s3://", "s3:// names no file; give a bucket"),
        ("memory://no/such", "memory://no/such does not exist; check the bucket"),
        ("hf://datasets/a/b/c.txt", "cannot read hf://datasets/a/b/c.txt: "),
        ("smb://a/b", "smb://a/b needs a package that is not installed: "),
    ],
)
def test_what_cannot_be_is_said_in_one_line(url, said):
    with pytest.raises(RemoteError) as caught:
        Remote(url).read()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("url", "package"), [("s3://a/b", "'ssdlm[s3]'"), ("gs://a/b", "gcsfs")])
def test_a_missing_package_is_named(url, package, monkeypatch):
    known = import_module("fsspec.registry")._registry
    for module, protocol in (("s3fs", "s3"), ("gcsfs", "gs")):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(known, protocol, raising=False)
    with pytest.raises(
        RemoteError, match=f"needs [^ ]+, which is not .*pip install {re.escape(package)}$"
    ):
        Remote(url).exists()
