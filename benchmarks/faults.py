"""What a failing disk leaves behind.  python benchmarks/faults.py [--seconds 900] [--every 1]

Fails every n-th write, fsync, rename, mmap and read of a command's files in turn, through prepare,
train, generate --input, evaluate, convert, train-guide and merge at tiny size, and in either of two
processes that train a model in shards. After each fault the command must have ended in one line and
status 2, or have come through; every file under its final name must be whole; and the same command,
started again, must end as one that nothing disturbed.

The faults come from a library (faults.c), compiled with `cc` and loaded before all others, so that
writes of C and Rust fail too, except those of C's buffered streams. One process imports everything
and is forked for each fault. Linux only. Prints a table and, as its last line, JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
KINDS = {"write": 1, "fsync": 2, "rename": 3, "mmap": 4, "read": 5}
CODES = {"write": errno.ENOSPC, "mmap": errno.ENOMEM}
"""With what a call fails, where it is not EIO."""
LIBRARY = "SSDLM_FAULTS"
"""Names the compiled library in the environment of the process that has it."""
MOST_SECONDS = 600
"""A command that takes longer hangs."""
TEXT = "the river had been quiet for years and nobody knew why it rose that night"
Snapshot = dict[str, bytes]


@dataclass(frozen=True)
class Command:
    """A command, with words in which @ is the folder that it works in."""

    name: str
    words: str
    output: str
    """What it writes: a file or a folder, in that folder."""
    varies: tuple[str, ...] = ()
    """Files of the output that differ from run to run: they hold times."""
    processes: int = 1
    rank: int = 0
    """In which of the processes calls fail."""


TRAIN = (
    "train --recipe tiny --data @/store --out @/out D=16 num_layers=1 steps=4 save_every=2 "
    "save_seconds=0 keep=1 validate_sequences=0 device=cpu"
)
"""Checkpoints are written beside training, as they are unless told otherwise."""
TIMED = ("log.jsonl", "state.json", "manifest.json")
COMMANDS = (
    Command("prepare", "prepare @/a.txt --tokenizer @/model --out @/out", "out"),
    Command("train", TRAIN, "out", TIMED),
    Command("train-shards-0", f"{TRAIN} sharding=fsdp", "out", TIMED, processes=2),
    Command("train-shards-1", f"{TRAIN} sharding=fsdp", "out", TIMED, processes=2, rank=1),
    Command(
        "generate",
        "generate --input @/p.jsonl --output @/out.jsonl --model @/model --device cpu",
        "out.jsonl",
    ),
    Command("evaluate", "evaluate @/texts.jsonl --metrics dist --out @/out", "out"),
    Command("convert", "convert @/model @/out --quantise int8", "out"),
    Command(
        "train-guide",
        "train-guide @/labels.jsonl --tokenizer @/model --out @/out D=32 epochs=1",
        "out",
        ("report.json",),
    ),
    Command("merge", "merge @/part-1 @/part-0 --output @/out", "out"),
)


@dataclass
class Result:
    """What was tried of one command and one kind of call."""

    command: str
    kind: str
    calls: int = 0
    tried: int = 0
    wrong: list[str] = field(default_factory=list)


def make_inputs(folder: Path) -> None:
    """Write what the commands read: texts, a model, a store, parts, prompts, labels."""
    import torch

    from ssdlm import SSDLM, DecodeConfig, cli
    from ssdlm.bench.sizes import random_weights
    from ssdlm.config import BlockConfig
    from ssdlm.tokenizer import nested

    tokenizer = nested("builtin:mini", 300)
    sizes = BlockConfig(V=tokenizer.V, D=16, num_layers=1, num_heads=2, B=4)
    network = random_weights(sizes, torch.device("cpu"), torch.float32)
    model = SSDLM(network, tokenizer, DecodeConfig(length=3, B=(3,), T=2))
    model.save_pretrained(folder / "model")
    words = TEXT.split()
    lines = [" ".join(words[i % 7 :] + words[: i % 5]) for i in range(12)]
    (folder / "a.txt").write_text("\n\n".join(lines))
    write = [("p.jsonl", [{"prompt": line[:9]} for line in lines[:5]])]
    write += [("texts.jsonl", [{"prompt": f"{i}", "text": line} for i, line in enumerate(lines)])]
    labels = [{"text": f"{line} {i}", "label": "ab"[i % 2]} for i, line in enumerate(lines * 9)]
    for name, rows in [*write, ("labels.jsonl", labels)]:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare = ["prepare", str(folder / "a.txt"), "--tokenizer", str(folder / "model"), "--out"]
    cli.main([*prepare, str(folder / "store")])
    for number in range(2):
        cli.main([*prepare, str(folder / f"part-{number}"), "--shard", f"{number}/2"])


@dataclass(frozen=True)
class Fault:
    """A call that is to fail."""

    kind: str
    number: int
    """From 1; with 0 none fails, and they are counted."""
    root: str
    """The folder whose files are meant."""
    rank: int = 0
    """The process, of several, in which it fails."""


def run(words: Sequence[str], fault: Fault | None = None, processes: int = 1) -> tuple[int, str]:
    """Run a command in forked processes, a call failing where asked; return status and stderr.

    Of several processes those of the first that ends badly: the others are killed, as by torchrun.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for rank, environment in enumerate(environments(processes)):
            file = Path(folder, str(rank))
            child = os.fork()
            if child == 0:
                os.environ.update(environment)
                become(words, fault if fault and fault.rank == rank else None, file)
            files[child] = file
        code, ended = wait_for(list(files))
        return code, "".join(files[child].read_text(errors="replace") for child in ended)


def environments(processes: int) -> list[dict[str, str]]:
    """Return what a launcher tells each of several processes, and nothing to one."""
    if processes == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def become(words: Sequence[str], fault: Fault | None, file: Path) -> NoReturn:
    """Be a command from here on, with a call that fails; what it says goes into a file."""
    code = 99
    signal.alarm(MOST_SECONDS)
    try:
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if fault:
            number = CODES.get(fault.kind, errno.EIO)
            shim().fault_arm(KINDS[fault.kind], fault.number, number, fault.root.encode())
        from ssdlm import cli

        code = cli.main(words)
        if fault and fault.number == 0:
            os.write(2, f"calls {shim().fault_calls()}\n".encode())
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for(children: list[int]) -> tuple[int, list[int]]:
    """Wait until all have ended well, or one has not; return its status, and who has said it."""
    running = set(children)
    while running:
        child, status = os.wait()
        running.remove(child)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            return os.waitstatus_to_exitcode(status), [child]
    return 0, children


def shim() -> Any:
    """Return the library of failing calls, which is loaded already."""
    return ctypes.CDLL(os.environ[LIBRARY])


def snapshot(path: Path, varies: Sequence[str]) -> Snapshot:
    """Return every file of an output by its name, those that vary as nothing."""
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    return {
        str(file.relative_to(path.parent)): b"" if file.name in varies else content(file)
        for file in files
        if file.is_file()
    }


def content(file: Path) -> bytes:
    """Return the bytes of a file; a header of tensors is put in order, which no writer keeps."""
    raw = file.read_bytes()
    if file.suffix != ".safetensors":
        return raw
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.dumps(json.loads(raw[8:end]), sort_keys=True).encode() + raw[end:]


def differences(found: Snapshot, expected: Snapshot) -> list[str]:
    """Return the files that differ, are missing or should not be there."""
    return sorted(name for name in found.keys() | expected if found.get(name) != expected.get(name))


def broken(path: Path, known: Snapshot) -> list[str]:
    """Return what is wrong with files under their final names: none may be cut or half written."""
    from safetensors import safe_open

    wrong = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path] if path.is_file() else []:
        name = str(file.relative_to(path.parent))
        hidden = any(part.startswith(".") for part in Path(name).parts)
        is_final = file.is_file() and name in known and not hidden
        try:
            if is_final and file.suffix == ".json":
                json.loads(file.read_bytes())
            elif is_final and file.suffix == ".safetensors":
                with safe_open(file, "pt") as tensors:
                    [tensors.get_tensor(key) for key in tensors.keys()]  # noqa: SIM118
            elif is_final and file.name != "log.jsonl" and file.read_bytes() != known[name]:
                wrong.append(f"{name} is not what it should be")
        except Exception as error:  # whatever a half file makes its reader say
            wrong.append(f"{name} is not whole: {type(error).__name__}")
    return wrong


def try_command(
    command: Command,
    inputs: Path,
    folder: Path,
    kinds: Sequence[str],
    every: int,
    has_time: Callable[[], bool],
) -> list[Result]:
    """Fail each call of each kind in turn; return what was tried, and what went wrong."""

    def fresh(name: str) -> tuple[Path, list[str]]:
        work = folder / name
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(inputs, work)
        return work, command.words.replace("@", str(work)).split()

    count = command.processes
    work, words = fresh("work")
    code, said = run(words, processes=count)
    assert code == 0, said
    expected = snapshot(work / command.output, command.varies)
    results = []
    for kind in kinds:
        work, words = fresh("work")
        _, said = run(words, Fault(kind, 0, str(work), command.rank), count)
        counted = re.search(r"^calls (\d+)$", said, re.MULTILINE)
        assert counted, said
        result = Result(command.name, kind, int(counted[1]))
        results.append(result)
        for number in range(1, result.calls + 1, every):
            if not has_time():
                break
            work, words = fresh("work")
            where = f"{command.name}: {kind} {number}"
            code, said = run(words, Fault(kind, number, str(work), command.rank), count)
            errors = [line for line in said.splitlines() if line.startswith("error: ")]
            if code not in (0, 2) or (code == 2 and len(errors) != 1) or "Traceback" in said:
                result.wrong.append(f"{where}: status {code}, {said[-300:]!r}")
            result.wrong += [f"{where}: {one}" for one in broken(work / command.output, expected)]
            code, said = run(words, processes=count)
            if code != 0:
                result.wrong.append(f"{where}: started again, status {code}, {said[-300:]!r}")
            elif differs := differences(snapshot(work / command.output, command.varies), expected):
                result.wrong.append(f"{where}: started again, it ends otherwise: {differs}")
            result.tried += 1
    return results


def compile_shim(folder: Path) -> Path:
    """Return the compiled library."""
    library = folder / "faults.so"
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "faults.c"), "-ldl"]
    subprocess.run(compiler, check=True)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=900.0, help="in all")
    parser.add_argument("--every", type=int, default=1, help="try one call in so many")
    parser.add_argument("--commands", default=",".join(one.name for one in COMMANDS))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of calls (default all)")
    args = parser.parse_args()
    kinds = [kind for kind in KINDS if kind in args.kinds.split(",")]
    if LIBRARY not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = str(compile_shim(Path(folder)))
            one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
            environment = os.environ | one_thread | {LIBRARY: library, "LD_PRELOAD": library}
            done = subprocess.run([sys.executable, *sys.argv], env=environment)
        sys.exit(done.returncode)
    import accelerate  # noqa: F401
    import transformers  # noqa: F401

    import ssdlm.evaluate.run
    import ssdlm.guidance.training
    import ssdlm.train.shards  # noqa: F401

    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "inputs").mkdir()
        make_inputs(folder / "inputs")
        for command in COMMANDS:
            if command.name in args.commands.split(","):
                results += try_command(
                    command,
                    folder / "inputs",
                    folder,
                    kinds,
                    args.every,
                    lambda: time.monotonic() - began < args.seconds,
                )
                for row in results[-len(kinds) :]:
                    line = f"{row.command:16}{row.kind:8}{row.tried:>5} of {row.calls} calls"
                    print(f"{line}{len(row.wrong):>5} wrong", flush=True)
                    print(*row.wrong, sep="\n", end="\n" * bool(row.wrong), flush=True)
    print(json.dumps({"results": [vars(row) for row in results]}))
    sys.exit(any(row.wrong for row in results))


if __name__ == "__main__":
    main()
