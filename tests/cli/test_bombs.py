"""Small files that ask for much memory: refused with one line before it is taken.

One process tries them all under a limit of its own, and says how far its memory grew each time.
"""

import gzip
import json
import lzma
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests import bpe, tiny

from ssdlm import SSDLM, DecodeConfig

zstandard = pytest.importorskip("zstandard")
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it"
)

MOST_GROWTH = 200
"""MiB; a line of 64 may be read, and is there as bytes and as text."""
TRY_ALL = """
import contextlib, io, json, resource, sys
import torch, zstandard
from ssdlm import SSDLM, cli

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))

pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (3 << 30), -1))
for name, words in json.load(sys.stdin).items():
    open("/proc/self/clear_refs", "w").write("5")
    before, said = peak(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(words)
    print(json.dumps([name, code, peak() - before, said.getvalue()]), flush=True)
"""


def sparse(path: Path, size: int, head: bytes = b"") -> None:
    """Write a file that is long and takes no room."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def safetensors(path: Path, tensors: dict, size: int = 0) -> None:
    header = json.dumps(tensors).encode()
    sparse(path, 8 + len(header) + size, struct.pack("<Q", len(header)) + header)


def tensor(kind: str, shape: list[int], start: int, end: int) -> dict:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def change_tokenizer(folder: Path, **changes) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replaced(content: str, count: int) -> dict:
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"type": "Sequence", "normalizers": [rule] * count}


FIXED = {"strategy": {"Fixed": 10**10}, "direction": "Right", "pad_to_multiple_of": None}
FIXED |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
GIB = 1 << 30
SCALED = {
    "words": tensor("I8", [GIB], 0, GIB),
    "words.scale": tensor("F32", [], GIB, GIB + 4),
}
WIDE = {
    "own": tensor("I8", [GIB], 0, GIB),
    "own.scale": tensor("F32", [], GIB, GIB + 4),
}
MODELS = {
    "config of 1 TiB": lambda d: sparse(d / "config.json", 1 << 40),
    "config of 2 GiB": lambda d: sparse(d / "config.json", 2 * GIB),
    "config a million deep": lambda d: (d / "config.json").write_text('{"a":' * 10**6),
    "closed config": lambda d: (d / "config.json").write_text('{"a":' * 10**6 + "1" + "}" * 10**6),
    "options of 2 GiB": lambda d: sparse(d / "generation_config.json", 2 * GIB),
    "tokenizer of 2 GiB": lambda d: sparse(d / "tokenizer.json", 2 * GIB),
    "tokenizer a million deep": lambda d: (d / "tokenizer.json").write_text("[" * 10**6),
    "tokenizer that writes much": lambda d: change_tokenizer(
        d, normalizer=replaced("b" * 99999, 1)
    ),
    "tokenizer that doubles": lambda d: change_tokenizer(d, normalizer=replaced("aa", 40)),
    "header of 2^60 bytes": lambda d: (d / "model.safetensors").write_bytes(
        struct.pack("<Q", 1 << 60)
    ),
    "header a million deep": lambda d: (d / "model.safetensors").write_bytes(
        struct.pack("<Q", 10**6) + b"[" * 10**6
    ),
    "1 TiB of weights that are not there": lambda d: safetensors(
        d / "model.safetensors", {"words": tensor("F32", [1 << 38], 0, 1 << 40)}
    ),
    "1 TiB of weights": lambda d: safetensors(
        d / "model.safetensors", {"words": tensor("F32", [1 << 38], 0, 1 << 40)}, 1 << 40
    ),
    "int8 of another shape": lambda d: safetensors(d / "model.safetensors", SCALED, GIB + 4),
    "int8 of another name": lambda d: safetensors(d / "model.safetensors", WIDE, GIB + 4),
}


def pack(path: Path, content: bytes, count: int) -> None:
    """Write a content many times over, packed as the name says."""
    if path.suffix == ".gz":
        packed = gzip.compress(content * count)
    elif path.suffix == ".xz":
        packed = lzma.compress(content * count, preset=0)
    else:
        packed = zstandard.compress(content * count)
    path.write_bytes(packed)


LINE = b" " * 65535 + b"\n"
DATA = {
    "a.jsonl.gz": lambda path: pack(path, LINE, 1280),
    "b.txt.zst": lambda path: pack(path, LINE, 4800),
    "c.csv.xz": lambda path: pack(path, b"text\n" + LINE, 1280),
    "d.jsonl": lambda path: sparse(path, 2 * GIB, b'{"text": "'),
    "e.csv": lambda path: sparse(path, 2 * GIB, b'text\n"a'),
    "f.csv": lambda path: path.write_bytes(b"text\n" + (b'"' + LINE + b'",') * 1280),
}
LABELLED = {
    "g.jsonl.gz": lambda path: pack(path, b"a" * (1 << 20), 80),
    "h.jsonl": lambda path: sparse(path, 1 << 40),
    "j.csv.gz": lambda path: pack(path, b"text,label\n" + LINE, 1280),
    "k.tsv": lambda path: path.write_bytes(b"text\tlabel\n" + b"a" * (80 << 20)),
    "l.jsonl": lambda path: path.write_bytes(b"a" * (80 << 20)),
    "m.jsonl.gz": lambda path: path.write_bytes(gzip.compress(b"a" * (64 << 20)) * 24),
}
LONG = {
    "a line of 2 GiB": lambda path: sparse(path, 2 * GIB),
    "a line of 80 MiB": lambda path: path.write_bytes(b"a" * (80 << 20)),
}
"""What every command that reads lines refuses."""
READING = {
    "generate": ["--model", "MODEL", "--input", "FILE", "--output", "OUT", "--device", "cpu"],
    "evaluate": ["FILE", "--out", "OUT", "--metrics", "dist"],
    "prompts": ["FILE", "--out", "OUT"],
    "merge": ["FILE", "--output", "OUT"],
    "train-judge": ["FILE", "--out", "OUT"],
    "plot": ["FOLDER"],
}


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """What became of each file: the status, how far memory grew in MiB, and what was said."""
    folder = tmp_path_factory.mktemp("bombs")
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=2))
    tokenizer = str(bpe.write_gpt2(folder / "tokenizer"))
    commands = {}
    for number, (name, change) in enumerate(MODELS.items()):
        own = folder / str(number)
        model.save_pretrained(own)
        change(own)
        commands[name] = ["generate", "aaa", "--model", str(own), "--device", "cpu"]
    for name, write in (DATA | LABELLED).items():
        write(folder / name)
        out = ["--tokenizer", tokenizer, "--out", str(folder / f"out-{name}")]
        commands[name] = ["prepare" if name in DATA else "train-guide", str(folder / name), *out]
        if name in LABELLED:
            commands[f"judge {name}"] = ["train-judge", str(folder / name), *out[2:]]
    for name, write in LONG.items():
        place = folder / name / "log.jsonl"
        place.parent.mkdir()
        write(place)
        words = {"FILE": str(place), "OUT": str(folder / "out"), "FOLDER": str(place.parent)}
        words["MODEL"] = str(folder / "fine")
        for command, given in READING.items():
            commands[f"{command}: {name}"] = [command, *(words.get(one, one) for one in given)]
    commands["fine"] = ["generate", "a", "--model", str(folder / "fine"), "--device", "cpu"]
    model.save_pretrained(folder / "fine")
    change_tokenizer(folder / "fine", padding=FIXED, normalizer=replaced("b", 40))
    done = subprocess.run(
        [sys.executable, "-c", TRY_ALL],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=300,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(commands), done.stderr[-2000:]
    return {name: rest for name, *rest in rows}


@pytest.mark.parametrize(
    "name",
    [
        *MODELS,
        *DATA,
        *LABELLED,
        *(f"judge {name}" for name in LABELLED),
        *(f"{command}: {name}" for command in READING for name in LONG),
    ],
)
def test_it_is_refused_with_one_line_before_memory_grows(tried, name):
    code, growth, said = tried[name]
    assert code == 2 and said.count("\n") == 1 and said.startswith("error: "), said
    assert growth < MOST_GROWTH
    if "weights" not in name:  # whether a map of a terabyte is had is the machine's affair
        assert "not enough memory" not in said


def test_what_looks_alike_and_asks_for_little_is_read(tried):
    code, growth, said = tried["fine"]
    assert (code, said) == (0, "") and growth < MOST_GROWTH
