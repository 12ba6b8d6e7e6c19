"""Prompts with gold out of held-out documents, and prompts without out of files.

token stores, jsonl -> [prompts] -> {"prompt", "gold", "gold_tokens", "source"} a line
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from ssdlm.data.shards import TokenStore
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.storage.files import write_file
from ssdlm.tokenizer import Tokenizer, load_tokenizer

FOREIGN = ("<s>", "</s>")
"""Names of special tokens that stand as plain text in the authors' files."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"

Line = dict[str, Any]


@dataclass(frozen=True)
class PromptsReport:
    """What was written."""

    out: Path
    counts: dict[str, int]
    """Prompts of each source."""

    def __str__(self) -> str:
        each = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"wrote {self.out}: {sum(self.counts.values())} prompts ({each})"


def make_prompts(
    sources: Sequence[str | Path], *, out: str | Path, count: int, prompt_length: int, length: int
) -> PromptsReport:
    """Write `count` prompts, as many of each source as of the others, the same ones every time.

    Of a store's hold-out: a window that lies in one document, its prompt being read back as the
    same tokens. Of a file: its lines in order, without repetitions.
    """
    out = Path(out)
    if out.exists():
        raise ValueError(f"{out} exists already; choose another name or remove it")
    if min(count, prompt_length, length) < 1:
        raise ValueError("--count, --prompt-length and --length are 1 or more")
    paths = [Path(source) for source in sources]
    refuse_mixed([path for path in paths if path.is_dir()])
    each = [
        list(islice(lines_of(path, prompt_length, length), share))
        for path, share in zip(paths, shares(count, len(paths)), strict=True)
    ]
    for path, lines, share in zip(paths, each, shares(count, len(paths)), strict=True):
        if len(lines) < share:
            raise ValueError(
                f"{path} has {len(lines)} prompts and {share} are wanted; lower --count"
            )
    mixed = [line for group in zip_longest(*each) for line in group if line is not None]
    text = "".join(json.dumps(line) + "\n" for line in distinct(mixed))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, lambda path: path.write_text(text, encoding="utf-8"))
    names = [json.loads(line)["source"] for line in text.splitlines()]
    return PromptsReport(out, {name: names.count(name) for name in dict.fromkeys(names)})


def shares(count: int, parts: int) -> list[int]:
    """Return `count` in equal parts, the first ones taking what is left over."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def lines_of(path: Path, prompt_length: int, length: int) -> Iterator[Line]:
    """Yield the prompts of a source."""
    if path.is_dir():
        return windows(TokenStore.open(path, "holdout"), prompt_length, length)
    return distinct(from_file(path))


def refuse_mixed(folders: Sequence[Path]) -> None:
    """Raise if stores have different tokenizers: their lengths would not be alike."""
    if len({load_tokenizer(folder).digest for folder in folders}) > 1:
        raise ValueError(
            f"{', '.join(map(str, folders))} have different tokenizers; prepare them alike"
        )


def windows(store: TokenStore, prompt_length: int, length: int) -> Iterator[Line]:
    """Yield windows of the documents: one of each document in turn, then a second, and so on."""
    tokenizer, whole = load_tokenizer(store.dir), prompt_length + length
    documents = list(store.documents())
    places = [
        [(turn, number, start) for turn, start in enumerate(starts(number, len(ids), whole))]
        for number, ids in enumerate(documents)
    ]
    for _, number, start in sorted(chain.from_iterable(places), key=shuffled):
        ids = documents[number][start : start + whole].tolist()
        if line := split(tokenizer, ids, prompt_length):
            yield line | {"source": store.dir.name, "document": number, "start": start}


def starts(document: int, size: int, whole: int) -> list[int]:
    """Return where the windows of a document begin: side by side, in an order of their own."""
    found = range(0, size - whole + 1, whole)
    return sorted(found, key=lambda start: draw("window", document, start))


def shuffled(place: tuple[int, int, int]) -> tuple[int, bytes]:
    """Return the key that orders windows: by turn, documents in an order of their own."""
    turn, document, _ = place
    return turn, draw("document", turn, document)


def draw(*what: object) -> bytes:
    """Return a number drawn by these words, as bytes."""
    return hashlib.sha256(repr(what).encode()).digest()


def split(tokenizer: Tokenizer, ids: list[int], prompt_length: int) -> Line | None:
    """Return a window as prompt and gold; None where text and tokens would not agree."""
    before, after = ids[:prompt_length], ids[prompt_length:]
    prompt, gold = tokenizer.decode(before), tokenizer.decode_after(before, after)
    agrees = tokenizer.encode(prompt) == before and prompt + gold == tokenizer.decode(ids)
    if not agrees or UNREADABLE in prompt + gold or not prompt.strip() or not gold.strip():
        return None
    return {"prompt": prompt, "gold": gold, "gold_tokens": after}


def from_file(path: Path) -> Iterator[Line]:
    """Yield the lines of a file of prompts; the authors' have theirs under `context_string`."""
    for raw in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(raw) if raw.strip() else {}
        if "prompt" not in line and "context_string" not in line:
            read_prompts(path)  # says what is wrong, and where
            continue
        prompt = line["prompt"] if "prompt" in line else line["context_string"]
        if not any(name in prompt for name in FOREIGN):
            gold = {key: line[key] for key in ("gold", "gold_tokens") if key in line}
            yield {"prompt": prompt, **gold, "source": line.get("source", path.stem)}


def distinct(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines whose prompt was not there before: samples are pooled by prompt."""
    seen: set[str] = set()
    for line in lines:
        if line["prompt"] not in seen:
            seen.add(line["prompt"])
            yield line
