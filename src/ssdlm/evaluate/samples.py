"""What is evaluated: continuations pooled by prompt, each prompt with its gold continuation.

jsonl -> [samples] -> perplexity, diversity, mauve -> run

Everything that would make a figure wrong without a crash is refused here: an empty or torn file,
bytes that are not UTF-8, a prompt without gold or with two, pools or continuations of unequal size.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssdlm.storage.jsonl import parse_jsonl
from ssdlm.storage.lines import file_lines
from ssdlm.tokenizer import is_utf8


@dataclass(frozen=True)
class LoadedFile:
    """The content of a jsonl file, which may have been a pipe that cannot be read again."""

    path: str
    lines: tuple[bytes, ...]

    def describe(self) -> dict[str, str]:
        """Return its name and digest, so that a report tells what it was computed from."""
        digest = hashlib.sha256()
        for line in self.lines:
            digest.update(line)
        return {"file": Path(self.path).name, "sha256": digest.hexdigest()}


Loaded = LoadedFile | Sequence[Mapping[str, object]]
Source = str | os.PathLike[str] | Loaded
"""A jsonl file, or its objects already read."""

LONGEST_RATIO = 1.5
"""Generated and gold texts count as mixed lengths when their mean words differ by more."""

SHORTEST_REPEAT = 10
"""A text may well begin with a prompt of fewer characters, such as "I", by itself."""

INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Sample:
    """One continuation: its text, and its token ids when the file has them."""

    text: str
    tokens: tuple[int, ...] | None


@dataclass(frozen=True)
class Pool:
    """All continuations of one prompt."""

    prompt: str
    samples: tuple[Sample, ...]


def load(source: Source) -> Loaded:
    """Return a source that can be read several times: a file's content in place of its path."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    path = os.fspath(source)
    remedy = "give a .jsonl file, as ssdlm generate writes it"
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; {remedy}")
    if not os.path.exists(path):
        raise ValueError(f"there is no file {path}; {remedy}")
    return LoadedFile(path, tuple(file_lines(Path(path))))


def name_of(source: Source) -> str:
    """Return what a source is called in errors: its path, where it has one."""
    if isinstance(source, LoadedFile):
        return source.path
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the given rows"


def read_pools(source: Source) -> list[Pool]:
    """Return the continuations of a source by prompt, in the order in which prompts appear."""
    return pool_by_prompt(lines_of(source), name_of(source))


def read_gold(source: Source, pools: Sequence[Pool]) -> tuple[list[Pool], int]:
    """Return one gold continuation per pool, in the same order, and how many were not needed."""
    name = name_of(source)
    gold = pool_by_prompt(gold_lines_of(source), name)
    twice = [pool for pool in gold if len(pool.samples) > 1]
    if twice:
        raise ValueError(
            f"{name} has {len(twice[0].samples)} gold continuations for the prompt "
            f"{shortened(twice[0].prompt)}; give one per prompt"
        )
    by_prompt = {pool.prompt: pool for pool in gold}
    without = [pool.prompt for pool in pools if pool.prompt not in by_prompt]
    if without:
        raise ValueError(
            f"{name} has no gold continuation for {len(without)} of {len(pools)} prompts, "
            f"the first being {shortened(without[0])}; prompts must match character by character"
        )
    return [by_prompt[pool.prompt] for pool in pools], len(gold) - len(pools)


def lines_of(source: Source) -> Iterator[tuple[str, object]]:
    """Yield each object of a source and where it is."""
    loaded = load(source)
    if isinstance(loaded, LoadedFile):
        yield from parse_jsonl(loaded.lines, source=loaded.path)
    else:
        for number, value in enumerate(loaded, start=1):
            yield f"row {number}", value


def gold_lines_of(source: Source) -> Iterator[tuple[str, object]]:
    """Yield objects whose text is the gold, of files of gold alone and of `ssdlm generate`'s.

    A line that carries `gold` may have a text too, which is the model's and never the gold; and the
    samples of one prompt carry the same gold, which counts once.
    """
    seen: set[str] = set()
    for where, line in lines_of(source):
        if not isinstance(line, Mapping) or line.get("gold") is None:
            yield where, line
        elif (key := repr((line.get("prompt"), line["gold"]))) not in seen:
            seen.add(key)
            yield where, {**line, "text": line["gold"], "tokens": line.get("gold_tokens")}


def pool_by_prompt(lines: Iterable[tuple[str, object]], name: str) -> list[Pool]:
    """Return the samples of lines by prompt; `name` is what their source is called in errors."""
    pools: dict[str, list[Sample]] = {}
    for where, line in lines:
        if not isinstance(line, Mapping):
            raise ValueError(f"{where} is not a JSON object; give one with prompt and text")
        prompt, text = (read_string(line, key, where) for key in ("prompt", "text"))
        pools.setdefault(prompt, []).append(Sample(text, read_tokens(line.get("tokens"), where)))
    if not pools:
        raise ValueError(f"{name} is empty; give one JSON object with prompt and text per line")
    refuse_repeated_prompts(pools, name)
    known = [sample.tokens is not None for samples in pools.values() for sample in samples]
    if any(known) and not all(known):
        raise ValueError(
            f"{name} has tokens on {sum(known)} of {len(known)} lines; "
            "give them on every line or on none"
        )
    return [Pool(prompt, tuple(samples)) for prompt, samples in pools.items()]


def read_string(line: Mapping[str, object], key: str, where: str) -> str:
    """Return a string of a line, or raise a ValueError that says what stands in its place."""
    value = line.get(key)
    if not isinstance(value, str):
        keys = f"it has {', '.join(sorted(line)) or 'no keys'}"
        given = f"it is {json.dumps(value, default=repr)[:40]}" if key in line else keys
        raise ValueError(f"{where} has no string {key!r} ({given}); correct or remove the line")
    if not is_utf8(value):
        raise ValueError(f"{where}: {key} contains half a surrogate pair; correct or remove it")
    return value


def read_tokens(value: object, where: str) -> tuple[int, ...] | None:
    """Return the token ids of a line, None where it has none."""
    if value is None:
        return None
    is_text = isinstance(value, (str, bytes))
    if is_text or not isinstance(value, Sequence) or any(type(token) is not int for token in value):
        raise ValueError(f"{where}: tokens is not a list of integers; correct or remove it")
    if not all(token in INT64 for token in value):
        raise ValueError(f"{where}: tokens has an id of more than 64 bits; correct or remove it")
    return tuple(value)


def refuse_repeated_prompts(pools: Mapping[str, list[Sample]], name: str) -> None:
    """Raise if most texts begin with their prompts, which they are to continue."""
    repeats = [
        sample.text.startswith(prompt)
        for prompt, samples in pools.items()
        for sample in samples
        if len(prompt.strip()) >= SHORTEST_REPEAT
    ]
    if sum(repeats) > len(repeats) / 2:
        raise ValueError(
            f"{sum(repeats)} of {len(repeats)} texts of {name} repeat their prompts; "
            "give the continuation alone as text"
        )


def refuse_mixed_lengths(pools: Sequence[Pool], gold: Sequence[Pool], name: str) -> None:
    """Raise if pools or continuations differ in size: dist-n, rep and MAUVE would be biased."""
    remedy = "split the file, or give --mixed-lengths and compare with nothing else"
    cut_gold = "cut the gold to the generated length, or give --mixed-lengths"
    sizes = {len(pool.samples) for pool in pools}
    if len(sizes) > 1:
        raise ValueError(
            f"{name} has {min(sizes)} samples for some prompts and {max(sizes)} for others, and "
            f"dist-n falls with the number pooled; {remedy}"
        )
    lengths, gold_lengths = token_lengths(pools), token_lengths(gold)
    if len(lengths) > 1:
        raise ValueError(
            f"{name} mixes continuations of {min(lengths)} to {max(lengths)} tokens; {remedy}"
        )
    if lengths and gold_lengths and gold_lengths != lengths:
        raise ValueError(
            f"gold continuations have {as_range(gold_lengths)} tokens, those of {name} "
            f"{as_range(lengths)}; {cut_gold}"
        )
    if gold and not (lengths and gold_lengths):
        ours, theirs = mean_words(pools), mean_words(gold)
        if max(ours, theirs) > LONGEST_RATIO * max(min(ours, theirs), 1.0):
            raise ValueError(
                f"{name} has {ours:.1f} words per continuation, its gold {theirs:.1f}; {cut_gold}"
            )


def has_tokens(pools: Sequence[Pool]) -> bool:
    """Tell whether every sample carries its token ids."""
    return all(sample.tokens is not None for pool in pools for sample in pool.samples)


def token_lengths(pools: Iterable[Pool]) -> set[int]:
    """Return the numbers of tokens that samples with token ids have."""
    return {
        len(sample.tokens) for pool in pools for sample in pool.samples if sample.tokens is not None
    }


def mean_words(pools: Sequence[Pool]) -> float:
    """Return the mean number of words per sample."""
    counts = [len(sample.text.split(" ")) for pool in pools for sample in pool.samples]
    return sum(counts) / len(counts)


def as_range(lengths: set[int]) -> str:
    """Return numbers as `7`, or as `5 to 9`."""
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low} to {high}"


def shortened(prompt: str) -> str:
    """Return the beginning of a prompt, quoted."""
    return repr(prompt if len(prompt) <= 40 else prompt[:37] + "...")
