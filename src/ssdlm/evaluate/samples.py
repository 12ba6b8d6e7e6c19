"""What is evaluated: continuations pooled by prompt, each prompt with its gold continuation.

jsonl -> [samples] -> perplexity, diversity, mauve -> run

Everything that would make a figure wrong without a crash is refused here: an empty or torn file,
bytes that are not UTF-8, a prompt without gold or with two, pools or continuations of unequal size.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssdlm.tokenizer import is_utf8


@dataclass(frozen=True)
class File:
    """A jsonl file that was read once, since a pipe cannot be read again."""

    path: str
    content: bytes

    def describe(self) -> dict[str, str]:
        """Its name and digest, so that a report tells what it was computed from."""
        digest = hashlib.sha256(self.content).hexdigest()
        return {"file": Path(self.path).name, "sha256": digest}


Held = File | Sequence[Mapping[str, object]]
Rows = str | os.PathLike[str] | Held
"""A jsonl file, or its lines already read."""

LONGEST_RATIO = 1.5
"""Generated and gold texts count as mixed lengths when their mean words differ by more."""

SHORTEST_REPEAT = 10
"""A text may well begin with a prompt of fewer characters, such as "I", by itself."""

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
"""What some editors put before UTF-8; it is no part of the first line."""

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


def hold(rows: Rows) -> Held:
    """Rows that can be read several times: a file's content in place of its path."""
    if not isinstance(rows, (str, os.PathLike)):
        return rows
    path = os.fspath(rows)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder: give a .jsonl file, as ssdlm generate writes it")
    if not os.path.exists(path):
        raise ValueError(
            f"there is no file {path}: give a .jsonl file, as ssdlm generate writes it"
        )
    content = Path(path).read_bytes()
    if content.startswith(GZIP):
        raise ValueError(f"{path} is compressed: unpack it first")
    return File(path, content)


def read_pools(rows: Rows) -> list[Pool]:
    """The continuations of a file pooled by prompt, in the order in which prompts appear."""
    return _pooled(_lines(rows), name_of(rows))


def _pooled(lines: Iterable[tuple[str, object]], name: str) -> list[Pool]:
    pools: dict[str, list[Sample]] = {}
    for where, line in lines:
        prompt, sample = _parse(line, where)
        pools.setdefault(prompt, []).append(sample)
    if not pools:
        raise ValueError(f"{name} is empty: expected one JSON object with prompt and text a line")
    _refuse_repeated_prompts(pools, name)
    _refuse_half_tokenised(pools, name)
    return [Pool(prompt, tuple(samples)) for prompt, samples in pools.items()]


def read_gold(rows: Rows, pools: Sequence[Pool]) -> tuple[list[Pool], int]:
    """One gold continuation for each pool, in the same order, and how many gold lines are left."""
    name = name_of(rows)
    gold = _pooled(_gold_lines(rows), name)
    twice = [pool for pool in gold if len(pool.samples) > 1]
    if twice:
        raise ValueError(
            f"{name} has {len(twice[0].samples)} gold continuations for the prompt "
            f"{_short(twice[0].prompt)}: one a prompt is needed"
        )
    by_prompt = {pool.prompt: pool for pool in gold}
    without = [pool.prompt for pool in pools if pool.prompt not in by_prompt]
    if without:
        raise ValueError(
            f"{name} has no gold continuation for {len(without)} of {len(pools)} prompts, "
            f"the first being {_short(without[0])}: prompts must match character by character"
        )
    return [by_prompt[pool.prompt] for pool in pools], len(gold) - len(pools)


def refuse_mixed(pools: Sequence[Pool], gold: Sequence[Pool], name: str) -> None:
    """Raise if pools or continuations differ in size: dist-n, rep and MAUVE would be biased."""
    remedy = "split the file, or give --mixed-lengths and compare with nothing else"
    sizes = {len(pool.samples) for pool in pools}
    if len(sizes) > 1:
        raise ValueError(
            f"{name} has {min(sizes)} samples for some prompts and {max(sizes)} for others, and "
            f"dist-n falls with the number pooled: {remedy}"
        )
    lengths = _token_lengths(pools)
    if len(lengths) > 1:
        raise ValueError(
            f"{name} mixes continuations of {min(lengths)} to {max(lengths)} tokens: {remedy}"
        )
    gold_lengths = _token_lengths(gold)
    if lengths and gold_lengths and gold_lengths != lengths:
        raise ValueError(
            f"gold continuations have {_range(gold_lengths)} tokens, those of {name} "
            f"{_range(lengths)}: cut the gold to the generated length, or give --mixed-lengths"
        )
    if gold and not (lengths and gold_lengths):
        _refuse_unequal_words(pools, gold, name)


def has_tokens(pools: Sequence[Pool]) -> bool:
    """Whether every sample carries its token ids."""
    return all(sample.tokens is not None for pool in pools for sample in pool.samples)


def _refuse_unequal_words(pools: Sequence[Pool], gold: Sequence[Pool], name: str) -> None:
    ours, theirs = _mean_words(pools), _mean_words(gold)
    if max(ours, theirs) > LONGEST_RATIO * max(min(ours, theirs), 1.0):
        raise ValueError(
            f"{name} has {ours:.1f} words a continuation, its gold {theirs:.1f}: "
            "cut the gold to the generated length, or give --mixed-lengths"
        )


def _refuse_repeated_prompts(pools: Mapping[str, list[Sample]], name: str) -> None:
    repeats = [
        sample.text.startswith(prompt)
        for prompt, samples in pools.items()
        for sample in samples
        if len(prompt.strip()) >= SHORTEST_REPEAT
    ]
    if sum(repeats) > len(repeats) / 2:
        raise ValueError(
            f"{sum(repeats)} of {len(repeats)} texts of {name} repeat their prompts: "
            "text is the continuation alone"
        )


def _refuse_half_tokenised(pools: Mapping[str, list[Sample]], name: str) -> None:
    known = [sample.tokens is not None for samples in pools.values() for sample in samples]
    if any(known) and not all(known):
        raise ValueError(
            f"{name} has tokens on {sum(known)} of {len(known)} lines: "
            "give them on every line or on none"
        )


def _lines(rows: Rows) -> Iterator[tuple[str, object]]:
    held = hold(rows)
    if isinstance(held, File):
        yield from _file_lines(held)
    else:
        for number, row in enumerate(held, start=1):
            yield f"row {number}", row


def _file_lines(file: File) -> Iterator[tuple[str, object]]:
    for number, raw in enumerate(io.BytesIO(file.content.removeprefix(BOM)), start=1):
        if raw.strip():
            where = f"{file.path}, line {number}"
            yield where, _json(raw, where)


def _json(raw: bytes, where: str) -> object:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 (byte {error.start}): save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{where} is not JSON: it is too deep") from None
    except ValueError:
        raise ValueError(f"{where} holds a number of too many digits to be read") from None


def _gold_lines(rows: Rows) -> Iterator[tuple[str, object]]:
    """Lines whose texts are the gold, from files of gold alone and from those of `ssdlm generate`.

    A line that carries `gold` may have a text too, which is the model's and never the gold; and the
    samples of one prompt carry the same gold, which counts once.
    """
    seen: set[str] = set()
    for where, line in _lines(rows):
        if not isinstance(line, Mapping) or line.get("gold") is None:
            yield where, line
        elif (told := repr((line.get("prompt"), line["gold"]))) not in seen:
            seen.add(told)
            yield where, {**line, "text": line["gold"], "tokens": line.get("gold_tokens")}


def _parse(line: object, where: str) -> tuple[str, Sample]:
    if not isinstance(line, Mapping):
        raise ValueError(f"{where} is not a JSON object with prompt and text")
    prompt, text = (_string(line, key, where) for key in ("prompt", "text"))
    return prompt, Sample(text, _tokens(line.get("tokens"), where))


def _string(line: Mapping[str, object], key: str, where: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        has = f"it has {', '.join(sorted(line)) or 'no keys'}"
        told = f"it is {json.dumps(value, default=repr)[:40]}" if key in line else has
        raise ValueError(f"{where} has no string {key!r}: {told}")
    if not is_utf8(value):
        raise ValueError(f"{where}: {key} holds half a surrogate pair, which is no text")
    return value


def _tokens(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    is_text = isinstance(value, (str, bytes))
    if is_text or not isinstance(value, Sequence) or any(type(token) is not int for token in value):
        raise ValueError(f"{where}: tokens is not a list of integers")
    if not all(token in INT64 for token in value):
        raise ValueError(f"{where}: tokens holds an id of more than 64 bits, which is no token")
    return tuple(value)


def _token_lengths(pools: Iterable[Pool]) -> set[int]:
    return {
        len(sample.tokens) for pool in pools for sample in pool.samples if sample.tokens is not None
    }


def _mean_words(pools: Sequence[Pool]) -> float:
    counts = [len(sample.text.split(" ")) for pool in pools for sample in pool.samples]
    return sum(counts) / len(counts)


def _range(lengths: set[int]) -> str:
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low} to {high}"


def _short(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 40 else prompt[:37] + "...")


def name_of(rows: Rows) -> str:
    """What rows are called in errors: their path, where they have one."""
    if isinstance(rows, File):
        return rows.path
    return os.fspath(rows) if isinstance(rows, (str, os.PathLike)) else "the given rows"
