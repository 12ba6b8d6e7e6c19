"""Commands that read and write elsewhere: the bytes that they would write here."""

import json
import os
import subprocess
import sys

import pytest
from tests import bpe, object_store, tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.storage.files import cache_folder
from ssdlm.storage.remote import Remote

PROMPTS = ["the river", "a", "the movie", "", "no", "to be", "so it is"]


@pytest.fixture(scope="module")
def bucket():
    with object_store.s3() as url:
        yield url


@pytest.fixture(params=["memory", "file", "s3"])
def root(request, tmp_path):
    name = request.node.name.partition("[")[0]
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{name}"
    return f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/{name}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, a tokenizer, prompts and texts."""
    folder = tmp_path_factory.mktemp("elsewhere")
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=1))
    model.save_pretrained(folder / "model")
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS]
    (folder / "p.jsonl").write_text("".join(lines))
    bpe.write_gpt2(folder / "tokenizer")
    (folder / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        texts = [f"{name} {i}: " + bpe.TEXT[: 10 + i % 7 * 20].strip() for i in range(12)]
        (folder / "texts" / name).write_text("\n\n".join(texts))
    return folder


def run(*words):
    return cli.main([str(word) for word in words])


def generate(folder, source, target, *more):
    return run(
        "generate", "--model", folder / "model", "--input", source, "--output", target, *more
    )


def prepare(folder, *words):
    return run("prepare", *words, "--tokenizer", folder / "tokenizer", "--holdout", "0.2")


def store_at(remote, tmp_path, root, folder):
    """Return the files of a store, with the names of inputs as a store made here has them."""
    copy = tmp_path / "copies" / str(len(list(tmp_path.glob("copies/*"))))
    Remote(remote).fetch(copy)
    found = {path.name: path.read_bytes() for path in copy.iterdir()}
    index = json.loads(found["index.json"])
    for entry in index["files"]:
        entry["name"] = f"{folder}/texts/{entry['name'].rpartition('/')[2]}"
    return found | {"index.json": (json.dumps(index, indent=2) + "\n").encode()}


def left_here():
    return [path for path in cache_folder().rglob("*") if path.is_file()]


def test_texts_go_there_as_they_would_here(folder, tmp_path, root, capsys):
    Remote(f"{root}/p.jsonl").put(folder / "p.jsonl")
    one = tmp_path / "one.jsonl"
    assert generate(folder, folder / "p.jsonl", one) == 0
    assert generate(folder, f"{root}/p.jsonl", f"{root}/all.jsonl") == 0
    assert Remote(f"{root}/all.jsonl").read() == one.read_bytes()
    assert generate(folder, f"{root}/p.jsonl", f"{root}/all.jsonl") == 0
    assert f"{root}/all.jsonl is already complete: 7 texts" in capsys.readouterr().out
    assert generate(folder, f"{root}/p.jsonl", f"{root}/all.jsonl", "--seed", "4") == 2
    assert f"error: {root}/all.jsonl exists and was not written" in capsys.readouterr().err
    parts = [f"{root}/{number}.jsonl" for number in range(2)]
    for number, part in enumerate(parts):
        assert generate(folder, f"{root}/p.jsonl", part, "--shard", f"{number}/2") == 0
    assert run("merge", *parts[::-1], "--output", f"{root}/both.jsonl") == 0
    assert Remote(f"{root}/both.jsonl").read() == one.read_bytes()
    assert run("merge", *parts, parts[0], "--output", f"{root}/x.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line == f"error: {parts[0]} and {parts[0]} are both part 0/2; give each part once"
    names = sorted(file.name for file in Remote(root).below())
    assert names == ["0.jsonl", "1.jsonl", "all.jsonl", "both.jsonl", "p.jsonl"]
    assert left_here() == []


def test_stores_go_there_as_they_would_here(folder, tmp_path, root, capsys):
    for path in (folder / "texts").iterdir():
        Remote(f"{root}/in/{path.name}").put(path)
    assert prepare(folder, folder / "texts", "--out", tmp_path / "one") == 0
    expected = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    inputs = {"folder": [f"{root}/in"], "glob": [f"{root}/in/*.txt"]}
    inputs["files"] = [f"{root}/in/a.txt", f"{root}/in/b.txt", f"{root}/in/a.txt"]
    for name, given in inputs.items():
        assert prepare(folder, *given, "--out", f"{root}/{name}") == 0
        assert store_at(f"{root}/{name}", tmp_path, root, folder) == expected
    parts = [f"{root}/parts/{number}" for number in range(2)]
    for number, part in enumerate(parts):
        assert prepare(folder, f"{root}/in", "--out", part, "--shard", f"{number}/2") == 0
    assert f"{parts[1]}: part 1/2, documents 12 to 23" in capsys.readouterr().out
    assert run("merge", *parts[::-1], "--output", f"{root}/all") == 0
    assert store_at(f"{root}/all", tmp_path, root, folder) == expected
    capsys.readouterr()
    assert prepare(folder, f"{root}/in", "--out", f"{root}/all") == 0
    assert f"{root}/all was already prepared from this input" in capsys.readouterr().out
    assert prepare(folder, f"{root}/in/a.txt", "--out", f"{root}/all") == 2
    said = f"error: {root}/all was prepared with 2 input files, not 1; use another --out"
    assert said in capsys.readouterr().err
    assert prepare(folder, f"{root}/in", "--out", f"{root}/in") == 2
    assert "is not empty (a.txt is there)" in capsys.readouterr().err
    assert left_here() == []


KILLED = """
import os, sys
from ssdlm import cli
from ssdlm.engine import prompt_files
before, count = os.fsync, 0
def fsync(descriptor):
    global count
    before(descriptor)
    count += 1
    if count == 1:
        os.kill(os.getpid(), 9)
os.fsync = fsync
cli.main(sys.argv[1:])
"""
"""A command that is killed after its first save."""


def test_a_killed_command_goes_on_and_sends_the_same_bytes(folder, tmp_path, bucket, monkeypatch):
    one, target = tmp_path / "one.jsonl", f"{bucket}/killed.jsonl"
    assert generate(folder, folder / "p.jsonl", one) == 0
    words = ["generate", "--model", folder / "model", "--input", folder / "p.jsonl"]
    command = [sys.executable, "-c", KILLED, *words, "--output", target]
    assert subprocess.run(command, env=os.environ).returncode == -9
    assert not Remote(target).exists() and Remote(target + ".part").exists()
    (part,) = left_here()
    assert part.name == "killed.jsonl.part" and len(part.read_bytes().splitlines()) == 4
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "put", lambda self, source: os.kill(os.getpid(), 2))
        assert generate(folder, folder / "p.jsonl", target) == 130
    assert generate(folder, folder / "p.jsonl", target) == 0
    assert Remote(target).read() == one.read_bytes() and left_here() == []
    assert not Remote(target + ".part").exists()


def test_a_bucket_without_rights_is_one_line_and_status_2(folder, tmp_path, bucket, capsys):
    Remote(f"{bucket}/rights/a.txt").put(folder / "texts" / "a.txt")
    Remote(f"{bucket}/rights/p.jsonl").put(folder / "p.jsonl")
    there = f"{bucket}/rights"

    def refused(code, said):
        (line,) = capsys.readouterr().err.splitlines()
        assert code == 2 and line.startswith(f"error: {said}") and "rights of the bucket" in line

    with object_store.without_rights():
        refused(
            prepare(folder, f"{there}/a.txt", "--out", tmp_path / "s"), f"no right to find {there}"
        )
        refused(generate(folder, f"{there}/p.jsonl", tmp_path / "x"), f"no right to read {there}")
        refused(generate(folder, folder / "p.jsonl", f"{there}/x"), f"no right to find {there}/x")
    with object_store.without_rights("s3:GetObject", "s3:ListBucket"):
        refused(
            prepare(folder, f"{there}/a.txt", "--out", f"{there}/s"), f"no right to write {there}/s"
        )
        refused(generate(folder, f"{there}/p.jsonl", f"{there}/x"), f"no right to write {there}/x")
    assert not list((cache_folder() / "unsent").iterdir()) and not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere://bucket/x", "nowhere is no known protocol"),
        ("s3://missing/x", "s3://missing/x"),
        ("s3://BAD NAME/x", "s3://BAD NAME/x"),
    ],
)
def test_a_place_that_is_none_is_one_line_and_status_2(folder, bucket, place, said, capsys):
    out, paths = f"{place}-out", ["--model", folder / "model", "--input"]
    tokenizer = ["--tokenizer", folder / "tokenizer", "--out", out]
    for words in (
        ["generate", *paths, f"{place}.jsonl", "--output", "-"],
        ["generate", *paths, folder / "p.jsonl", "--output", out],
        ["prepare", f"{place}.txt", *tokenizer],
        ["prepare", folder / "texts", *tokenizer],
        ["merge", f"{place}-1", f"{place}-2", "--output", out],
    ):
        assert run(*words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and said in line
    assert object_store.client("s3").list_buckets()["Buckets"][0]["Name"] == "corpus"


def test_a_store_elsewhere_is_to_be_copied_before_training(tmp_path, capsys):
    words = ["--recipe", "tiny", "--data", "s3://a/b", "--out", tmp_path / "run"]
    assert run("train", *words) == 2
    said = "error: data=s3://a/b is not on a disk; copy it to one first\n"
    assert capsys.readouterr().err == said and not (tmp_path / "run").exists()


def test_a_server_that_nobody_runs_is_one_line_and_status_2(folder, bucket, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    object_store.use_keys(monkeypatch, "test", "test")
    assert generate(folder, f"{bucket}/p.jsonl", "-") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"error: cannot read {bucket}/p.jsonl: Could not connect to the endpoint"
    )
