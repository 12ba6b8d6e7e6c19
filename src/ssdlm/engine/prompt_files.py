"""A file of prompts to a file of texts, line by line, resumable.  writers -> [here] -> command line

While it works, finished lines gather in `OUTPUT.part`, in order; the last step is its renaming.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Any

from ssdlm.engine.chat import is_messages, said
from ssdlm.engine.merging import append_part, mark_of
from ssdlm.engine.writers import PromptLine, Writer
from ssdlm.options import FORMER_NAMES, all_names
from ssdlm.progress import Show, bar, ignore
from ssdlm.storage.delivery import delivered_file
from ssdlm.storage.files import STANDARD, JsonError, about, parse_object
from ssdlm.storage.jsonl import append_jsonl, parse_jsonl
from ssdlm.storage.lines import MOST_IN_PROMPT, LinesError, file_lines, lines_in
from ssdlm.storage.parts import Shard
from ssdlm.storage.remote import Place

PROMPTS_AT_A_TIME = {"cpu": 4}
"""How many prompts are written between two saves; elsewhere more go together."""
MANY = 256
MOST_TEXTS = 4096
"""Texts that may wait for each other between two saves."""


@dataclass(frozen=True)
class FileReport:
    """What a file of texts contains, and how it came to be there."""

    texts: int
    was_finished: bool = False
    """It was there before, complete."""
    was_streamed: bool = False
    """It went to a pipe or a device, and cannot be resumed."""


def generate_file(
    writer: Writer,
    source: Place,
    target: Place,
    *,
    identity: Mapping[str, Any],
    chat: bool = False,
    system: str | None = None,
    shard: Shard | None = None,
    is_shown: bool = False,
    observe: Show = ignore,
) -> FileReport:
    """Continue every prompt of `source` into `target`; `-` is standard input and output.

    `identity` is what, with the prompts and the guides, decides the texts: a file written under
    another is not continued. Fields of an input line are carried over. In a `chat` each prompt is a
    user's message, and `system` what the model is told first. A `shard` writes its part of the
    prompts alone. `observe` is called with how many prompts are done.
    """
    lines = prompt_lines(source)
    if chat:
        lines = [as_messages(line, system) for line in lines]
    counts = [num_texts(writer, line) for line in lines]
    refuse_bad(writer, lines)
    guides = writer.guides(lines)
    run = digest(lines, {**identity, "guides": guides} if guides else identity)
    if shard is not None:
        own = shard.share(len(lines), "prompts")
        lines, counts = lines[own.start : own.stop], counts[own.start : own.stop]
    job = Job(writer, lines, counts, run, shard)
    name = "standard output" if target == STANDARD else str(target)
    with delivered_file(target) as near, about(name):
        return write_file(job, near, is_shown=is_shown, observe=observe)


@dataclass(frozen=True)
class Job:
    """What is to be written to one file."""

    writer: Writer
    lines: Sequence[PromptLine]
    counts: Sequence[int]
    """How many texts each line gets."""
    run: str
    """What the run is known by; every line of its output carries it."""
    shard: Shard | None = None
    """Which part of all prompts these are, where several processes write a part each."""

    def wrote(self, line: bytes) -> bool:
        """Tell whether a line of output is of this job."""
        mark = mark_of(line)
        shard = mark.shard if mark is not None and mark.run == self.run else None
        try:
            run = parse_object(line, where="", remedy="").get("run")
        except JsonError:
            return False
        return run == self.run and shard == self.shard


def write_file(job: Job, target: Path, *, is_shown: bool, observe: Show) -> FileReport:
    """Write the texts of a job to a file of this machine, or those that it lacks."""
    lines, counts = job.lines, job.counts
    if target == STANDARD:
        write_lines(job, sys.stdout, observe=observe)
        return FileReport(sum(counts), was_streamed=True)
    if is_stream(target):
        with target.open("w", encoding="utf-8") as file:
            write_lines(job, file, observe=observe)
        return FileReport(sum(counts), was_streamed=True)
    if target.exists():
        refuse_other(target, job)
        return FileReport(sum(counts), was_finished=True)
    part = target.with_name(target.name + ".part")
    with alone(part) as file:
        done = resume(part, job)
        with bar("generate", len(lines), done=done, is_shown=is_shown) as show:

            def tell(number: int, words: str) -> None:
                os.fsync(file.fileno())
                show(number, words)
                observe(number, words)

            write_lines(job, file, done=done, observe=tell)
        os.replace(part, target)
    return FileReport(sum(counts))


def write_lines(job: Job, file: IO[str], *, done: int = 0, observe: Show) -> None:
    """Append the texts of all lines but the first `done` to an open file."""
    number, total = sum(job.counts[:done]), sum(job.counts)
    while done < len(job.lines):
        chunk = slice(done, done + num_together(job, done))
        texts = iter(job.writer.write(job.lines[chunk]))
        for line, count in zip(job.lines[chunk], job.counts[chunk], strict=True):
            own = islice(texts, count)
            rows = (line.values | asdict(text) | {"run": job.run} for text in own)
            if job.shard is None:
                append_jsonl(file, rows)
            else:
                append_part(file, rows, job.shard, number, total)
            number += count
        file.flush()
        done += len(job.lines[chunk])
        observe(done, "prompts")


def num_together(job: Job, start: int) -> int:
    """Return how many lines from `start` on are written before the next save, one a process."""
    processes = job.writer.num_processes
    size = PROMPTS_AT_A_TIME.get(job.writer.device.type, MANY) * processes
    texts = list(accumulate(job.counts[start : start + size]))
    return max(processes, sum(count <= MOST_TEXTS * processes for count in texts))


def is_stream(target: Path) -> bool:
    """Tell whether a name means a pipe or a device, from which nothing can be read back."""
    if target.is_relative_to("/dev/fd") or target in (Path("/dev/stdout"), Path("/dev/stderr")):
        return True  # behind which may be a file, which is this process's own
    return target.exists() and not target.is_file() and not target.is_dir()


@contextmanager
def alone(part: Path) -> Iterator[IO[str]]:
    """Give an unfinished file to append to, if no other process does."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a", encoding="utf-8") as file:
        if not (takes_lock(file) and is_at(part, file)):
            raise ValueError(f"{part} is being written by another process; wait for it or stop it")
        yield file


def takes_lock(file: IO[str]) -> bool:
    """Lock a file for this process, where files can be locked; tell whether it is not another's."""
    if find_spec("fcntl") is None:
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(path: Path, file: IO[str]) -> bool:
    """Tell whether an open file still has that name: another process may have finished it."""
    return path.exists() and os.path.samestat(os.stat(path), os.fstat(file.fileno()))


def num_texts(writer: Writer, line: PromptLine) -> int:
    """Return how many texts a line gets; options that it may not set are named with the line."""
    try:
        return writer.num_texts(line)
    except ValueError as error:
        raise ValueError(f"{line.where}: {error}") from error


def refuse_bad(writer: Writer, lines: Sequence[PromptLine]) -> None:
    """Raise on options, or on a line, that cannot be written to, before any file is begun."""
    if not lines[0].changes:
        writer.check(lines[:1])  # what is wrong with all lines is said of none of them
    try:
        writer.check(lines)
    except ValueError:
        for line in lines:
            try:
                writer.check([line])
            except ValueError as error:
                raise ValueError(f"{line.where}: {error}") from error
        raise


def read_prompts(path: Place) -> list[dict[str, Any]]:
    """Return the objects of a file of prompts."""
    return [line.values for line in prompt_lines(path)]


def prompt_lines(path: Place) -> list[PromptLine]:
    """Return the lines of a JSON-lines file, each with a text, `prompt`, or with `messages`."""
    names, lines = {*all_names(), *FORMER_NAMES}, []
    name = "standard input" if path == STANDARD else str(path)
    raw = file_lines(path, MOST_IN_PROMPT)
    for where, values in parse_jsonl(raw, source=name, is_strict=True):
        said = values.get("messages")
        messages = said if is_messages(said) else ()
        prompt = "" if messages else values.get("prompt")
        if not isinstance(prompt, str):
            raise ValueError(
                f'{where} has no text "prompt" and no "messages"; correct or remove it'
            )
        changes = {name: value for name, value in values.items() if name in names}
        lines.append(PromptLine(prompt, changes, values, where, messages))
    if not lines:
        raise ValueError(f'{name} has no prompts; write {{"prompt": "..."}} on each line')
    return lines


def as_messages(line: PromptLine, system: str | None) -> PromptLine:
    """Return a line with messages in place of its prompt."""
    messages = said(line.messages or line.prompt, system)
    values = line.values | {"messages": messages}
    return replace(line, prompt="", values=values, messages=messages)


def digest(lines: Sequence[PromptLine], identity: Mapping[str, Any]) -> str:
    """Return a short name for a run: these prompts under these settings."""
    text = json.dumps([[line.values for line in lines], identity], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def refuse_other(target: Path, job: Job) -> None:
    """Raise unless a file has all texts of this run, and no other."""
    lengths = own_lengths(target, job)
    if lengths and len(lengths) == sum(job.counts) and sum(lengths) == target.stat().st_size:
        return
    raise ValueError(
        f"{target} exists and was not written from these prompts with these settings; "
        "remove it or choose another name"
    )


def own_lengths(path: Path, job: Job) -> list[int] | None:
    """Return how many bytes each whole line of a file has; None where one is not of this job."""
    lengths = []
    with path.open("rb") as file, suppress(LinesError):
        for line in lines_in(file):
            if line.endswith(b"\n") and not job.wrote(line):
                return None
            lengths += [len(line)] if line.endswith(b"\n") else []
        return lengths
    return None


def resume(part: Path, job: Job) -> int:
    """Cut an unfinished file after its last whole prompt and return how many prompts it keeps."""
    kept = own_lengths(part, job)
    if kept is None:
        raise ValueError(
            f"{part} is the beginning of another run; remove it or choose another output"
        )
    done = texts = 0
    for count in job.counts:
        if texts + count > len(kept):
            break
        done, texts = done + 1, texts + count
    with part.open("r+b") as file:
        file.truncate(sum(kept[:texts]))
    return done
