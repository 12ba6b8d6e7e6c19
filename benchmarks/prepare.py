"""A corpus larger than the memory it may use.  python benchmarks/prepare.py [--megabytes 5000]

Makes text up, prepares it on two cores within a limit of memory, and again, killed on the way: once
while copies are looked for, then as the store grows. Both must be the same bytes. The limit is on
what a process may write to of its own (RLIMIT_DATA); the peak that is told counts files, too, that
are mapped into memory. With twice the cores both go at once. Linux only. The last line is JSON.

    python benchmarks/prepare.py text OUT.txt --megabytes 5000        the text alone
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path

TOKENIZER = "builtin:mini"
BYTES_PER_TOKEN = 4.5
"""Of this text, about."""
PARAGRAPHS = 4096
BEFORE = """
import sys
from ssdlm.data import writer
writer.SHARD_TOKENS = int(sys.argv.pop(1))
from ssdlm import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@dataclass
class Run:
    """A store that is being prepared, and what it took."""

    name: str
    out: Path
    cores: Sequence[int]
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    kills: list[str] = field(default_factory=list)


def documents(num_bytes: int) -> Iterator[str]:
    """Yield documents of so many bytes together: no two the same, of words as rare as in books."""
    from ssdlm.tokenizer import load_tokenizer

    tokenizer, draw = load_tokenizer(TOKENIZER), random.Random(0)
    pieces = [tokenizer.decode([token]) for token in range(tokenizer.V)]
    words = [piece[1:] for piece in pieces if re.fullmatch(" [a-z]+", piece)]
    rarity = list(accumulate(1 / (rank + 2) for rank in range(len(words))))
    paragraphs = [
        " ".join(draw.choices(words, cum_weights=rarity, k=draw.randint(20, 120)))
        for _ in range(PARAGRAPHS)
    ]
    written = number = 0
    while written < num_bytes:
        chosen = draw.choices(paragraphs, k=draw.randint(1, 6))
        text = f"Document {number}. " + ".\n".join(chosen) + ".\n\n"
        written, number = written + len(text), number + 1
        yield text


def write_text(path: Path, num_bytes: int) -> None:
    """Write made-up documents to a file."""
    with path.open("w", encoding="ascii", buffering=1 << 20) as file:
        file.writelines(documents(num_bytes))


def prepare(run: Run, text: Path, args: argparse.Namespace, moments: Sequence[Moment]) -> None:
    """Prepare a store, killed at each of some moments and started again after it."""
    began = time.monotonic()
    for moment in [*moments, None]:
        child = start(run, text, args)
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                break
            if moment is not None and moment.has_come(run.out):
                os.kill(child, signal.SIGKILL)
                run.kills.append(moment.name)
                moment = None
            time.sleep(0.01)
        run.peak_megabytes = max(run.peak_megabytes, usage.ru_maxrss / 1000)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            raise SystemExit(f"{run.name}: status {code}")
    run.seconds = time.monotonic() - began


@dataclass(frozen=True)
class Moment:
    """When a run is to be killed."""

    name: str
    has_come: Callable[[Path], bool]


def moments_of(num_parts: int) -> list[Moment]:
    """Return three moments of a run that writes about so many parts."""

    def looks_for_copies(out: Path) -> bool:
        return any(path.stat().st_size for path in out.glob("repeats-*/*"))

    def has_parts(count: int) -> Callable[[Path], bool]:
        return lambda out: len(list(out.glob("train-*.bin"))) >= count

    counts = [max(1, num_parts // 3), max(2, num_parts * 2 // 3)]
    parts = [Moment(f"{count} parts written", has_parts(count)) for count in counts]
    return [Moment("looking for copies", looks_for_copies), *parts]


def start(run: Run, text: Path, args: argparse.Namespace) -> int:
    """Start `ssdlm prepare` on its cores and within the limit; return the process."""
    words = ["prepare", str(text), "--tokenizer", TOKENIZER, "--out", str(run.out)]
    words += ["--workers", str(len(run.cores))]
    child = os.fork()
    if child:
        return child
    try:
        os.sched_setaffinity(0, run.cores)
        limit = args.limit * 1_000_000
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = ["-c", BEFORE, str(args.part_tokens), *words]
        os.execv(sys.executable, [sys.executable, *code])
    finally:
        os._exit(99)


def are_same(one: Path, other: Path) -> bool:
    """Tell whether two folders have the same files, byte for byte."""
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names


def measure(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Prepare undisturbed and killed; return what both took, and whether they are the same."""
    text, num_bytes = folder / "text.txt", args.megabytes * 1_000_000
    began = time.monotonic()
    write_text(text, num_bytes)
    print(f"{text.stat().st_size:,} bytes of text in {time.monotonic() - began:.0f} s", flush=True)
    cores = sorted(os.sched_getaffinity(0))
    runs = [
        Run("undisturbed", folder / "one", cores[: args.cores]),
        Run("killed", folder / "two", cores[-args.cores :]),
    ]
    num_parts = max(3, int(num_bytes / BYTES_PER_TOKEN / args.part_tokens))
    plans = {"undisturbed": [], "killed": moments_of(num_parts)}
    if len(cores) >= 2 * args.cores:
        both_at_once(runs, text, args, plans)
    else:
        for run in runs:
            prepare(run, text, args, plans[run.name])
    same = are_same(runs[0].out, runs[1].out)
    for run in runs:
        line = f"{run.name:12}{run.seconds:8.0f} s{run.peak_megabytes:8.0f} MB at most"
        print(f"{line}  killed: {', '.join(run.kills) or 'never'}")
    print("the same bytes" if same else "NOT THE SAME BYTES")
    told = [asdict(run) | {"out": ""} for run in runs]
    return {"megabytes": args.megabytes, "limit": args.limit, "runs": told, "same": same}


def both_at_once(
    runs: Sequence[Run], text: Path, args: argparse.Namespace, plans: dict[str, list[Moment]]
) -> None:
    """Prepare both stores side by side, each watched by a thread of its own."""
    with ThreadPoolExecutor(len(runs)) as pool:
        for done in [pool.submit(prepare, run, text, args, plans[run.name]) for run in runs]:
            done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="measure", choices=["measure", "text"])
    parser.add_argument("out", nargs="?", type=Path, help="of text: the file to write")
    parser.add_argument("--megabytes", type=int, default=5000)
    parser.add_argument("--limit", type=int, default=700, help="megabytes of memory (default 700)")
    parser.add_argument("--cores", type=int, default=2, help="of each run (default 2)")
    parser.add_argument("--part-tokens", type=int, default=1 << 24, help="tokens of a store's part")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    if args.what == "text":
        write_text(args.out, args.megabytes * 1_000_000)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = measure(args, Path(folder))
    print(json.dumps(result))
    sys.exit(not result["same"])


if __name__ == "__main__":
    main()
