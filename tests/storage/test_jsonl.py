"""One JSON object per line, read with clear errors and written whole."""

import pytest

from ssdlm.storage.jsonl import append_jsonl, parse_jsonl, read_jsonl, write_jsonl

ROWS = [{"prompt": "caf\u00e9\n", "n": 1}, {"prompt": "\ud800", "nested": {"a": [None, 2.5]}}]


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, ROWS)
    assert read_jsonl(path) == ROWS
    with path.open("a", encoding="utf-8") as file:
        append_jsonl(file, ROWS[:1])
    assert read_jsonl(path) == [*ROWS, ROWS[0]]
    assert path.read_bytes().count(b"\n") == 3


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, ROWS)
    with pytest.raises(TypeError):
        write_jsonl(path, [{"a": 1}, {"a": object()}])
    assert read_jsonl(path) == ROWS
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path, end):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + end.join([b'{"a": 1}', b"", b" ", b'{"a": 2}']))
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]


def test_lines_know_where_they_are():
    lines = list(parse_jsonl([b"\n", b'{"a": 1}\n'], source="rows"))
    assert lines == [("rows line 2", {"a": 1})]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": 1', r"rows\.jsonl line 3 is not JSON"),
        (b"\xff", r"rows\.jsonl line 3 is not UTF-8"),
        (b"7", r"rows\.jsonl line 3 is a number and not a JSON object"),
        (b"[" * 100_000, r"rows\.jsonl line 3 is not JSON \(nested too deep\)"),
    ],
    ids=["torn", "bytes", "number", "deep"],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=words) as caught:
        read_jsonl(path)
    assert str(caught.value).endswith("; correct or remove it") or "UTF-8" in words
