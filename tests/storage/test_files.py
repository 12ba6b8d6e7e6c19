"""Files that are whole or absent."""

import hashlib
import json

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


def test_the_digest_is_that_of_the_bytes(tmp_path):
    data = bytes(range(256)) * 20_000
    (tmp_path / "data").write_bytes(data)
    assert files.sha256(tmp_path / "data") == hashlib.sha256(data).hexdigest()
