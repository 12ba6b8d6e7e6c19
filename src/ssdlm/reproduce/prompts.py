"""Prompts with gold out of held-out documents, and prompts without out of files.

token stores, jsonl -> [prompts] -> {"prompt", "gold", "gold_tokens", "source"} per line
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from ssdlm.data.shards import TokenStore
from ssdlm.reproduce.setting import Options
from ssdlm.storage.files import exists_already
from ssdlm.storage.jsonl import as_lines, parse_jsonl, write_jsonl
from ssdlm.storage.lines import file_lines
from ssdlm.tokenizer import Tokenizer, load_tokenizer

FOREIGN = ("<s>", "</s>")
"""Names of special tokens that stand as plain text in the authors' files."""
FRESH = Path(__file__).with_name("control_prompts.jsonl")
"""60 openings by hand, on which control is reported: noun phrases of everyday things, without a
finite verb, an opinion or a genre. They were committed before any text was written after them;
settings are chosen on others (the paper's 15), and none of these was changed or left out since."""


@dataclass(frozen=True)
class PromptsReport:
    """What was written: how many prompts of each source."""

    out: Path
    counts: dict[str, int]
    was_finished: bool = False
    """The file was there before, the same."""

    def __str__(self) -> str:
        each = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        said = f"{self.out} is already complete" if self.was_finished else f"wrote {self.out}"
        return f"{said}: {sum(self.counts.values())} prompts ({each})"


def make_prompts(
    sources: Sequence[str | Path], *, out: str | Path, count: int, prompt_length: int, length: int
) -> PromptsReport:
    """Write `count` prompts, as many of each source as of the others, the same ones every time."""
    out, paths = Path(out), [Path(source) for source in sources]
    if min(count, prompt_length, length) < 1:
        raise ValueError("--count, --prompt-length and --length are 1 or more")
    stores = [path for path in paths if path.is_dir()]
    if len({load_tokenizer(folder).digest for folder in stores}) > 1:
        names = ", ".join(map(str, stores))
        raise ValueError(f"{names} have different tokenizers; prepare them alike")
    each = []
    for path, share in zip(paths, shares(count, len(paths)), strict=True):
        is_store = path in stores
        lines = windows(path, prompt_length, length) if is_store else distinct(from_file(path))
        each.append(found := list(islice(lines, share)))
        if len(found) < share:
            raise ValueError(
                f"{path} has {len(found)} prompts and {share} are needed; lower --count"
            )
    mixed = [line for group in zip_longest(*each) for line in group if line is not None]
    chosen = list(distinct(mixed))
    out.parent.mkdir(parents=True, exist_ok=True)
    counts = dict(Counter(line["source"] for line in chosen))
    if not os.path.lexists(out):
        write_jsonl(out, chosen)
        return PromptsReport(out, counts)
    if not out.is_file() or out.read_text(encoding="utf-8") != "".join(as_lines(chosen)):
        raise exists_already(out)
    return PromptsReport(out, counts, was_finished=True)


def shares(count: int, parts: int) -> list[int]:
    """Return `count` in equal parts, the first ones taking what is left over."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def windows(folder: Path, prompt_length: int, length: int) -> Iterator[Options]:
    """Yield windows of a store's hold-out: one of each document, then a second, and so on."""
    store, tokenizer = TokenStore.open(folder, "holdout"), load_tokenizer(folder)
    documents, whole = list(store.documents()), prompt_length + length
    found = []
    for document, ids in enumerate(documents):
        # Windows lie side by side; which of a document comes first, and which document, is drawn.
        starts = list(range(0, len(ids) - whole + 1, whole))
        starts.sort(key=lambda start: draw("window", document, start))
        for nth, start in enumerate(starts):
            found.append((nth, draw("document", nth, document), document, start))
    for _, _, document, start in sorted(found):
        ids = documents[document][start : start + whole].tolist()
        if line := split_window(tokenizer, ids, prompt_length):
            yield line | {"source": folder.name, "document": document, "start": start}


def draw(*what: object) -> bytes:
    """Return a number drawn by these words, as bytes."""
    return hashlib.sha256(repr(what).encode()).digest()


def split_window(tokenizer: Tokenizer, ids: list[int], prompt_length: int) -> Options | None:
    """Return a window as prompt and gold; None where text and tokens would not agree."""
    before, after = ids[:prompt_length], ids[prompt_length:]
    prompt, gold = tokenizer.decode(before), tokenizer.decode_after(before, after)
    agrees = tokenizer.encode(prompt) == before and prompt + gold == tokenizer.decode(ids)
    is_readable = "\N{REPLACEMENT CHARACTER}" not in prompt + gold
    if agrees and is_readable and prompt.strip() and gold.strip():
        return {"prompt": prompt, "gold": gold, "gold_tokens": after}
    return None


def from_file(path: Path) -> Iterator[Options]:
    """Yield the lines of a file of prompts; the authors' have theirs under `context_string`."""
    for where, line in parse_jsonl(file_lines(path), source=str(path)):
        prompt = line.get("prompt", line.get("context_string"))
        if not isinstance(prompt, str):
            raise ValueError(f'{where} has no text "prompt"; correct or remove it')
        if not any(name in prompt for name in FOREIGN):
            gold = {key: line[key] for key in ("gold", "gold_tokens") if key in line}
            yield {"prompt": prompt, **gold, "source": line.get("source", path.stem)}


def distinct(lines: Iterable[Options]) -> Iterator[Options]:
    """Yield the lines whose prompt was not there before: samples are pooled by prompt."""
    seen: set[str] = set()
    for line in lines:
        if line["prompt"] not in seen:
            seen.add(line["prompt"])
            yield line
