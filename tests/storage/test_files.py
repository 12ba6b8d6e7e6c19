"""Files that are whole or absent."""

import errno
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ssdlm.storage import files


def test_json_is_written_whole_and_readable_by_all(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, {"a": [1, 2]})
    files.write_json(path, {"a": [3]})
    assert json.loads(path.read_text()) == {"a": [3]}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, 1)
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert path.read_text() == "1\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_file(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_taken_up_by_the_next(tmp_path):
    path = tmp_path / "report.json"
    with pytest.raises(KeyboardInterrupt):
        files.write_file(path, die_with_half)
    left = files.partial_name(path)
    left.write_text("half of what a killed process wrote, and more than the next has")
    files.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def die_with_half(temporary):
    temporary.write_text("half")
    raise KeyboardInterrupt


def test_several_may_write_one_file(tmp_path):
    path, texts = tmp_path / "file", [letter * 100_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(lambda text: [files.write_text(path, text) for _ in range(20)], texts))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_of_the_file(tmp_path, monkeypatch):
    def sync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", sync)
    path = tmp_path / "report.json"
    with pytest.raises(OSError, match=r"\[Errno 28\] .*: '.*report.json'") as caught:
        files.write_text(path, "text")
    assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_is_whole_or_absent(tmp_path):
    with pytest.raises(RuntimeError), files.new_folder(tmp_path / "new") as folder:
        (folder / "part").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with files.new_folder(tmp_path / "new") as folder:
        (folder / "part").touch()
        assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["part"]
    with pytest.raises(ValueError, match="exists already"), files.new_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b'{"a": "\xff"}', r"is not UTF-8 \(byte 7\)"),
        (b"[1]", "is a list and not a JSON object"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "number of too many digits"),
    ],
    ids=["torn", "bytes", "list", "deep", "digits"],
)
def test_a_file_that_is_no_json_object_is_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"value\.json is missing"):
        files.read_json(tmp_path / "value.json")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match=r"file is a file and not a folder; give a folder"):
        files.read_json(tmp_path / "file" / "value.json")


def test_the_digest_is_that_of_the_bytes(tmp_path):
    data = bytes(range(256)) * 20_000
    (tmp_path / "data").write_bytes(data)
    assert files.sha256(tmp_path / "data") == hashlib.sha256(data).hexdigest()
