"""What `ssdlm serve` withstands: many streams at once, thousands of requests, hostile ones.

    python benchmarks/serve.py load [--count 256] [--model M] [--length 24] [--guides sentiment]
    python benchmarks/serve.py load --kinds api
    python benchmarks/serve.py soak [--count 10000]
    python benchmarks/serve.py fuzz [--count 5000]
    python benchmarks/serve.py siege [--files 160] [--only deaf]

Each starts a server in a process of its own, ends after `--seconds` at the latest, fails where
something is not as it should be, and prints one JSON line at the end. `load` compares every text
with the same one written offline, as `ssdlm generate --input` does, and the speed: passes of the
network per second, those for clients who left included. On a machine that others use, trust the
ratio by processor time. With `--kinds api` there are also chats, responses, spans to rewrite and
grammars by the words of OpenAI and vLLM; a model that cannot chat gets a template for that.
`siege` tells how long /health took while clients held the server up, on each path; with `--files`
the server may have so many files open.
Without `--model`, `load` takes the built-in model, the others a tiny one with random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asking import COMPLETIONS, PROMPTS, Asked, offline, plan
from hostile import PATHS, hostile
from siege import ATTACKS, besiege

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli.starting import choose_threads
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.storage.builtin import DEFAULT_MODEL
from ssdlm.tokenizer import load_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
TINY = GenerateOptions(length=20, B=(5,), T=5, grid="sliding", width=1.0, returns="w_0")


def tiny_model() -> SSDLM:
    """Return a model whose passes take a moment; what it writes makes no sense."""
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    tokenizer.settings["chat_template"] = TEMPLATE
    config = BlockConfig(V=tokenizer.V, D=32, num_layers=2, num_heads=2, B=5)
    return SSDLM(BlockDenoiser(config).eval().requires_grad_(False), tokenizer, TINY)


@dataclass
class Started:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def memory(self) -> float:
        """Return the megabytes that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def busy(self) -> float:
        """Return the seconds of a processor that it has used."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    async def ask(self, raw: bytes, seconds: float = 60, leave_after: int | None = None) -> bytes:
        """Return all that comes after some bytes are sent; leave after so many messages."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        answer = b""
        try:
            writer.write(raw)
            with contextlib.suppress(ConnectionError):
                end = time.monotonic() + seconds
                while part := await asyncio.wait_for(reader.read(1 << 16), end - time.monotonic()):
                    answer += part
                    if leave_after is not None and answer.count(b"\n\n") > leave_after:
                        break
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return answer


@contextlib.contextmanager
def started(model: str, *more: str, files: int = 0) -> Iterator[Started]:
    """Run `ssdlm serve`; at the end it must go by itself, and its log be without a fault."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        command = [sys.executable, "-m", "ssdlm", "serve", "--model", model, "--port", "0", *more]
        bound = limit if files else None
        process = subprocess.Popen([*command, "--log-json"], stderr=log, preexec_fn=bound)
        path = Path(folder) / "log"
        try:
            while not (found := re.search(r"serving .* at http://.*:(\d+)/", path.read_text())):
                assert process.poll() is None, path.read_text()
                time.sleep(0.05)
            yield Started(process, int(found[1]), path)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert "Traceback" not in path.read_text(), path.read_text()[-5000:]
        finally:
            process.kill()
            process.wait()


async def run_load(
    server: Started, asked: list[Asked], leaving: set[int], limit: float
) -> dict[str, Any]:
    """Ask for all texts at once; return the seconds it took, and all answers."""

    async def ask(number: int) -> bytes:
        leave_after = number % 5 if number in leaving else None
        return await server.ask(asked[number].request(), limit, leave_after=leave_after)

    start = time.perf_counter()
    answers = await asyncio.gather(*map(ask, range(len(asked))))
    return {"seconds": time.perf_counter() - start, "answers": answers}


def load(args: argparse.Namespace, model: SSDLM, name: str) -> dict[str, Any]:
    """Write many texts at once, a part of them for clients who leave."""
    asked = plan(args, model, args.count)
    streams = [number for number, one in enumerate(asked) if one.is_stream]
    leaving = set(random.Random(1).sample(streams, int(args.cancel * args.count)))
    choose_threads(model.denoiser, model.options)
    first = plan(args, model, args.warm, seed=5)
    offline(model, first)  # so that everything is loaded
    used = time.process_time()
    alone = offline(model, asked)
    used = time.process_time() - used
    more = ["--deterministic"] if args.deterministic else []
    queue = ("--max-queue", str(max(args.count, args.warm)))
    with started(name, "--guides", args.guides, *queue, *more) as server:
        asyncio.run(run_load(server, first, set(), args.seconds))
        levels, busy, rounds = [server.memory()], server.busy(), []
        for _ in range(args.rounds):
            rounds.append(asyncio.run(run_load(server, asked, leaving, args.seconds)))
            levels.append(server.memory())
        busy = server.busy() - busy
        log = [json.loads(line) for line in server.log.read_text().splitlines() if '"path"' in line]
    wrong, seconds = [], sum(found["seconds"] for found in rounds)
    for found in rounds:
        for number, (answer, text) in enumerate(zip(found["answers"], alone.texts, strict=True)):
            got, is_whole = asked[number].told(answer)
            is_right = text.startswith(got) if number in leaving else got == text and is_whole
            wrong += [] if is_right else [(number, asked[number].path, got, text)]
    own = [line for line in log if line["path"].startswith("/v1/")][len(first) :]
    passes = sum(line.get("passes", 0) for line in own)
    firsts = sorted(line["first_draft"] for line in own if "first_draft" in line)
    report = {
        "requests": args.count,
        "rounds": args.rounds,
        "left": len(leaving),
        "wrong": len(wrong),
        "by_path": dict(Counter(one.path for one in asked)),
        "tokens_per_second": sum(line["tokens"] for line in own) / seconds,
        "offline_tokens_per_second": alone.tokens / alone.seconds,
        "passes_per_second": passes / seconds,
        "offline_passes_per_second": alone.passes / alone.seconds,
        "ratio": passes / seconds * alone.seconds / alone.passes,
        "ratio_by_processor_time": passes / busy * used / alone.passes,
        "first_draft_p50": firsts[len(firsts) // 2],
        "first_draft_p95": firsts[int(0.95 * len(firsts))],
        "megabytes": levels,
    }
    # On a GPU roundings depend on who goes along, unless they are told not to.
    is_exact = model.device.type == "cpu" or args.deterministic
    assert not wrong or not is_exact, (report, wrong[:5])
    return report


def soak(args: argparse.Namespace, model: SSDLM, name: str) -> dict[str, Any]:
    """Ask for a short text many thousand times; the server must not grow."""
    asked = [
        Asked(COMPLETIONS, PROMPTS[n % 5], {}, {"seed": n, "length": 1 + n % 6}, n % 3 == 0)
        for n in range(30)
    ]
    texts = offline(model, asked).texts
    levels, seconds, done = [], 0.0, 0
    with started(name, "--guides", "") as server:

        async def ask(number: int, limit: asyncio.Semaphore) -> None:
            async with limit:
                one, text = asked[number % len(asked)], texts[number % len(asked)]
                told = one.told(await server.ask(one.request()))
                assert told == (text, True), (one, told, text)

        async def part(first: int, count: int) -> None:
            limit = asyncio.Semaphore(16)
            await asyncio.gather(*(ask(first + number, limit) for number in range(count)))

        start = time.perf_counter()
        for _ in range(10):
            asyncio.run(part(done, args.count // 10))
            done += args.count // 10
            levels.append(server.memory())
            if time.perf_counter() - start > args.seconds:
                break
        seconds = time.perf_counter() - start
    growth = levels[-1] - levels[len(levels) // 2]
    report = {"requests": done, "seconds": seconds, "per_second": done / seconds}
    report |= {"megabytes": levels, "growth_in_second_half": growth}
    assert growth < args.most_growth, report
    return report


def fuzz(args: argparse.Namespace, model: SSDLM, name: str) -> dict[str, Any]:
    """Send hostile requests, and others; the server must stay right and refuse but the others."""
    asked = plan(args, model, 24)
    texts = offline(model, asked).texts
    answers: Counter[str] = Counter()
    wrong: list[Any] = []
    with started(name, "--guides", "") as server:

        async def send(seed: int, limit: asyncio.Semaphore) -> None:
            async with limit:
                kind, raw = hostile(seed)
                answer = await server.ask(raw, seconds=60)
                status = answer[9:12].decode("latin-1") if answer else "closed"
                answers[status] += 1
                is_handled = kind == "odd_field" and status == "200"
                if not (re.fullmatch(r"4\d\d|closed", status) or is_handled):
                    wrong.append((seed, kind, answer[:300]))

        async def send_sane(one: Asked, text: str) -> None:
            answer = await server.ask(one.request(), seconds=600)
            if not answer.startswith(b"HTTP/1.1 200") or one.told(answer) != (text, True):
                wrong.append((one, text, answer[:300]))

        async def send_all() -> int:
            limit, start = asyncio.Semaphore(args.at_once), time.perf_counter()
            for first in range(0, args.count, 500):
                last = min(args.count, first + 500)
                sane = map(send_sane, asked, texts)
                await asyncio.gather(*(send(seed, limit) for seed in range(first, last)), *sane)
                if time.perf_counter() - start > args.seconds:
                    break
            return last

        before = server.memory()
        start = time.perf_counter()
        count = asyncio.run(send_all())
        seconds = time.perf_counter() - start
        after = server.memory()
    report = {"requests": count, "seconds": seconds, "answers": dict(answers), "wrong": wrong}
    report["texts_of_others"] = len(asked) * -(-count // 500)
    report |= {"megabytes_before": before, "megabytes_after": after}
    assert not wrong, report
    return report


def siege(args: argparse.Namespace, model: SSDLM, name: str) -> dict[str, Any]:
    """Let clients of each kind hold the server up; it must answer others meanwhile, and after."""
    sane = Asked(COMPLETIONS, "The river had", {}, {"seed": 3, "length": 8}, is_stream=False)
    kinds = [kind for kind in ATTACKS if args.only in ("", kind)]
    rows: list[dict[str, Any]] = []
    with started(name, "--guides", "", files=args.files) as server:
        before = server.memory()
        for kind in kinds:
            for path in PATHS:
                row = asyncio.run(besiege(server.port, kind, path, args.at_once))
                answer = asyncio.run(server.ask(sane.request()))
                assert sane.told(answer) == (sane.alone(model), True), (row, answer)
                rows.append(row | {"megabytes": server.memory()})
                print(json.dumps(rows[-1]), flush=True)
        log = server.log.read_text()
    assert '"status": 5' not in log, log[-5000:]
    worst = {kind: max(row["worst"] for row in rows if row["kind"] == kind) for kind in kinds}
    report = {"requests": sum(row["asked"] for row in rows), "worst": worst}
    refused = {kind: sum(row["refused"] for row in rows if row["kind"] == kind) for kind in kinds}
    return report | {"refused": refused, "megabytes": [before, *(row["megabytes"] for row in rows)]}


def main() -> None:
    """Run one of the four, print its figures and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("load", "soak", "fuzz", "siege"))
    parser.add_argument("--model", help="a folder; without it builtin:mini, or a tiny model")
    parser.add_argument("--tiny", action="store_true", help="the tiny model for load, too")
    parser.add_argument("--count", type=int, help="streams or requests")
    parser.add_argument("--seconds", type=float, default=1200.0, help="end after so long")
    parser.add_argument("--cancel", type=float, default=0.2, help="share of clients who leave")
    parser.add_argument("--length", type=int, default=24, help="tokens of the longest, of load")
    parser.add_argument("--rounds", type=int, default=1, help="how often load asks for all")
    parser.add_argument("--warm", type=int, default=16, help="texts before load counts any")
    parser.add_argument("--guides", default="", help="guides that steer some of the texts")
    choices = ("all", "api", "captured", "default")
    parser.add_argument("--kinds", choices=choices, default="all", help="of texts, of load")
    parser.add_argument("--deterministic", action="store_true", help="on a GPU, of load")
    parser.add_argument("--at-once", type=int, default=32, help="connections of fuzz and siege")
    parser.add_argument("--files", type=int, default=0, help="open files of a server under siege")
    parser.add_argument("--only", default="", help="a kind of siege")
    parser.add_argument("--most-growth", type=float, default=8.0, help="megabytes, of soak")
    args = parser.parse_args()
    if args.what == "fuzz":  # others ask for short texts of all kinds
        args.kinds, args.length = "api", min(args.length, 16)
    args.count = args.count or {"load": 256, "soak": 10_000}.get(args.what, 5_000)
    with tempfile.TemporaryDirectory() as folder:
        name = args.model or DEFAULT_MODEL
        if args.model is None and (args.tiny or args.what != "load"):
            name = str(Path(folder) / "tiny")
            tiny_model().save_pretrained(name)
        model = SSDLM.from_pretrained(name, deterministic=args.deterministic)
        if args.kinds == "api" and "chat_template" not in model.tokenizer.settings:
            name = str(Path(folder) / "chat")
            model.tokenizer.settings["chat_template"] = TEMPLATE
            model.save_pretrained(name)
        report = dict(load=load, soak=soak, fuzz=fuzz, siege=siege)[args.what](args, model, name)
    for key, value in report.items():
        print(f"{key:28}{value:.3f}" if isinstance(value, float) else f"{key:28}{value}")
    print(json.dumps({"what": args.what, "model": args.model or Path(name).name, **report}))


if __name__ == "__main__":
    main()
