"""Labelled files: what is read, and what is refused by its line."""

import gzip

import pytest

from ssdlm.data.labelled import Labelled, read_labelled, without_repeats

GOOD = Labelled("a fine day", "positive")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "a fine day", "label": "positive", "id": 3}\n\n'),
        ("a.csv", "id,label,text\n3,positive,a fine day\n"),
        ("a.tsv", "label\ttext\npositive\ta fine day\n"),
        ("a.jsonl", '\ufeff{"text": "a fine day", "label": "positive"}'),
    ],
)
def test_every_kind_gives_the_same_row(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_labelled(tmp_path / name) == [GOOD]


def test_labels_may_be_numbers_and_files_compressed(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "no", "label": 0}\n'))
    assert read_labelled(path) == [Labelled("no", "0")]


def test_a_quotation_mark_in_a_tab_separated_text_is_text(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"so they say\t1\nno\t0\n')
    assert [row.text for row in read_labelled(tmp_path / "a.tsv")] == ['"so they say', "no"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"x", "of no known kind; use .jsonl, .csv, .tsv"),
        ("a.jsonl", b"", "has no rows"),
        ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text"', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "a"}', "line 1 has no label"),
        ("a.jsonl", b'{"text": "a", "label": true}', "line 1 has the label true; write a string"),
        ("a.jsonl", b'{"text": " ", "label": "b"}', "line 1 has no text"),
        ("a.jsonl", b"[1]", "line 1 is a list and not a JSON object"),
        ("a.csv", b"text,class\na,b\n", "names no column 'label', only text, class"),
        (
            "a.csv",
            b"text,label\na\n",
            "line 2 has 1 columns where the header has 2; give every row",
        ),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8"),
        ("a.jsonl.gz", b"", "cannot read"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_labelled(tmp_path / name)


def test_a_row_that_is_there_often_is_in_memory_once(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "no", "label": 0}\n' * 1000))
    assert read_labelled(path, path) == [Labelled("no", "0")]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OSError, match=r"none\.jsonl"):
        read_labelled(tmp_path / "none.jsonl")


def test_repeats_contradictions_and_test_texts_are_left_out():
    rows = [GOOD, GOOD, Labelled("odd", "positive"), Labelled("odd", "negative")]
    rows += [Labelled("held", "negative"), Labelled("bad", "negative")]
    kept = without_repeats(rows, [Labelled("held", "positive")])
    assert kept == [GOOD, Labelled("bad", "negative")]
