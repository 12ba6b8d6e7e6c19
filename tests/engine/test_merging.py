"""A file of texts written in parts, and put together again."""

import json
import random
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.engine.merging import num_prompts_done
from ssdlm.storage.remote import Remote

PROMPTS = ["the river", "a", "the movie", "", "no", "to be", "so it is"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, prompts, one.jsonl by one process, and the parts of three."""
    folder = tmp_path_factory.mktemp("merging")
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=1))
    model.save_pretrained(folder / "model")
    lines = [{"prompt": prompt, "shard": [1, 2]} for prompt in PROMPTS]
    lines[2] |= {"num_samples": 3, "run": "theirs"}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "prompts.jsonl").write_text(text)
    assert generate(folder, folder / "one.jsonl") == 0
    for number in range(3):
        assert generate(folder, folder / f"{number}.jsonl", "--shard", f"{number}/3") == 0
    assert generate(folder, folder / "f.jsonl", "--shard", "0/3", "--seed", "9") == 0
    assert generate(folder, folder / "h.jsonl", "--shard", "1/2") == 0
    return folder


def generate(folder, output, *more):
    paths = ["--input", folder / "prompts.jsonl", "--output", output]
    words = ["generate", "--model", folder / "model", *paths, "--num-samples", "2", *more]
    return cli.main(list(map(str, words)))


def merge(parts, output):
    return cli.main(["merge", *map(str, parts), "--output", str(output)])


def parts_of(folder):
    return [folder / f"{number}.jsonl" for number in range(3)]


def test_parts_in_any_order_are_the_file_of_one_process(folder, tmp_path, capsys):
    parts = parts_of(folder)
    random.Random(0).shuffle(parts)
    assert merge(parts, tmp_path / "new" / "all.jsonl") == 0
    assert capsys.readouterr().out.endswith("all.jsonl: 15 texts of 3 parts\n")
    assert (tmp_path / "new" / "all.jsonl").read_bytes() == (folder / "one.jsonl").read_bytes()
    assert [len(path.read_bytes().splitlines()) for path in parts_of(folder)] == [4, 5, 6]
    assert merge(parts, tmp_path / "new" / "all.jsonl") == 0
    assert "already there" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["all.jsonl"]
    assert merge(parts, "-") == 0
    assert capsys.readouterr().out.encode() == (folder / "one.jsonl").read_bytes()


def test_how_much_of_a_job_in_parts_is_done_is_seen_in_their_files(folder, tmp_path):
    parts = [tmp_path / path.name for path in parts_of(folder)]  # of 2, 2 and 3 prompts

    def num_done():
        return num_prompts_done(parts, sum(part.exists() for part in parts), len(PROMPTS))

    assert num_done() == 0
    lines = (folder / "2.jsonl").read_bytes().splitlines(keepends=True)
    begun = tmp_path / "2.jsonl.part"
    begun.write_bytes(b"".join(lines[:4]) + lines[4][:9])
    assert num_done() == 2
    begun.write_bytes(lines[0][:9])
    assert num_done() == 0
    begun.write_bytes(b"".join(lines))
    assert num_done() == 3
    for name in ("0.jsonl", "1.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert num_done() == 6  # all texts are there, and the last part has not its name yet
    begun.rename(tmp_path / "2.jsonl")
    assert num_done() == 7
    elsewhere = [Remote(f"memory://{number}.jsonl") for number in range(3)]
    assert num_prompts_done(elsewhere, 2, len(PROMPTS)) == 4


def test_a_part_that_was_cut_is_finished_with_the_same_bytes(folder, tmp_path):
    whole = (folder / "1.jsonl").read_bytes()
    (tmp_path / "p.jsonl.part").write_bytes(whole[: len(whole) // 2])
    assert generate(folder, tmp_path / "p.jsonl", "--shard", "1/3") == 0
    assert (tmp_path / "p.jsonl").read_bytes() == whole


@pytest.mark.parametrize("shard", [[], ["--shard", "0/3"], ["--shard", "1/4"]])
def test_a_part_is_continued_as_that_part_alone(folder, tmp_path, shard, capsys):
    whole = (folder / "1.jsonl").read_bytes()
    for name, said in [("p.jsonl.part", "beginning of another run"), ("p.jsonl", "was not writ")]:
        (tmp_path / name).write_bytes(whole)
        assert generate(folder, tmp_path / "p.jsonl", *shard) == 2
        assert said in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == whole


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ("01", "missing: part 2/3; write it with --shard 2/3"),
        ("0", "missing: part 1/3, 2/3;"),
        ("0112", "1.jsonl and {0}/1.jsonl are both part 1/3; give each part once"),
        ("012o", "one.jsonl is not a part; write one with `ssdlm generate --shard i/n`"),
        ("012f", "f.jsonl is part 0/3 of another job than {0}/0.jsonl; leave it out"),
        ("012h", "h.jsonl is part 1/2 and {0}/0.jsonl is part 0/3"),
        ("01c", "c.jsonl has 5 of 6 texts; run its command again"),
        ("01t", "t.jsonl line 6 is cut"),
        ("01m", "m.jsonl line 2 is cut, or not what stands there in part 2/3"),
        ("012x", "No such file"),
    ],
)
def test_a_missing_doubled_foreign_or_broken_part_is_named(folder, tmp_path, numbers, said, capsys):
    lines = (folder / "2.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines[:-1]))
    (tmp_path / "t.jsonl").write_bytes(b"".join(lines)[:-2])
    (tmp_path / "m.jsonl").write_bytes(b"".join([lines[0], *lines[2:]]))
    places = {"o": folder / "one.jsonl"} | {n: tmp_path / f"{n}.jsonl" for n in "ctmx"}
    parts = [places.get(number, folder / f"{number}.jsonl") for number in numbers]
    capsys.readouterr()
    assert merge(parts, tmp_path / "all.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said.format(folder) in line
    assert not list(tmp_path.glob("all*"))


def test_another_file_is_not_overwritten(folder, tmp_path, capsys):
    (tmp_path / "all.jsonl").write_text("mine\n")
    assert merge(parts_of(folder), tmp_path / "all.jsonl") == 2
    assert "all.jsonl exists and is not what these parts" in capsys.readouterr().err
    assert (tmp_path / "all.jsonl").read_text() == "mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]
    assert merge(parts_of(folder), Path(tmp_path.anchor)) == 2
    assert "is a folder; give a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ("5/3", "shard=5/3 is not a part; use i/n, i from 0 to n - 1"),
        ("3/3", "shard=3/3 is not"),
        ("-1/3", "--shard"),
        ("0/0", "shard=0/0 is not"),
        ("a", "shard=a is not"),
        ("0/9999999", "shard=0/9999999 is not"),
        ("0/8", "shard=0/8 is one of 8 parts, and there are 7 prompts; use at most 7 parts"),
    ],
)
def test_what_is_no_part_is_refused_in_one_line(folder, tmp_path, shard, said, capsys):
    try:
        code = generate(folder, tmp_path / "p.jsonl", "--shard", shard)
    except SystemExit as ended:
        code = ended.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and said in line
    assert list(tmp_path.iterdir()) == []
