"""The picture of a run."""

from __future__ import annotations

import json

import pytest

from ssdlm.train.plot import plot

RECORDS = [
    {"step": 1, "loss": 5.0, "block": 3.0, "next_token": 2.0},
    {"step": 2, "loss": 4.0, "validation": {"bound": 3.9, "profile": [[0.1, 0.2], [0.9, 3.0]]}},
]


@pytest.mark.parametrize("count", [1, 2])
def test_a_log_becomes_a_png(tmp_path, count):
    lines = [json.dumps(record) + "\n" for record in RECORDS[:count]]
    (tmp_path / "log.jsonl").write_text("".join(lines) + '{"step": 3, "lo')
    path = plot(tmp_path)
    assert path == tmp_path / "plot.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_picture_goes_where_it_is_told(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    assert plot(tmp_path, tmp_path / "other.png").exists()


@pytest.mark.parametrize(("content", "message"), [(None, "does not exist"), ("", "no lines yet")])
def test_a_folder_without_a_log_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        plot(tmp_path)
