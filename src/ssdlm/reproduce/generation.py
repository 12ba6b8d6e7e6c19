"""The stage `generate`: a cell's texts, written by the library's own batch generation.

cell -> [making] -> OUT/cells/NAME/generations.jsonl, made.json
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssdlm.engine.prompt_files import Writer, generate_file, read_prompts
from ssdlm.progress import bar
from ssdlm.reproduce.experiment import Order, read
from ssdlm.reproduce.setting import Author, Autoregressive, Cell, Diffusion, Given, Gold, Place
from ssdlm.storage.checkpoint import CONFIG, DECODING, WEIGHTS, find
from ssdlm.storage.files import sha256, write_file, write_json

FINGERPRINT = (CONFIG, WEIGHTS, DECODING, "pytorch_model.bin", "tokenizer.json")
"""Files that make a model's folder what it is."""
BUILTIN = "builtin:"
"""How the names of models begin that come with the package."""


class Studio:
    """Opens the models that write, and keeps the last one open."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.author: Author | None = None
        self.writer: Writer | None = None
        self.prints: dict[str, Any] = {}

    def open(self, author: Diffusion | Autoregressive) -> Writer:
        """Return a model ready to write."""
        if self.writer is None or author != self.author:
            self.writer = None  # frees the memory of the one before
            self.author, self.writer = author, open_writer(author, self.order)
        return self.writer

    def fingerprint(self, model: str) -> Any:
        """Return the digests of a folder's files; a Hub id is its own."""
        if model not in self.prints:
            self.prints[model] = fingerprint(model)
        return self.prints[model]


def open_writer(author: Diffusion | Autoregressive, order: Order) -> Writer:
    """Return an author's model where the order wants it."""
    where = {"device": order.device, "dtype": order.dtype}
    if isinstance(author, Autoregressive):
        from ssdlm.evaluate.autoregressive import AutoregressiveLM

        return AutoregressiveLM.from_pretrained(author.model, **where)
    from ssdlm.api import SSDLM

    return SSDLM.from_pretrained(author.model, **where)


def fingerprint(model: str) -> Any:
    """Return what tells a model from another of the same name."""
    folder = find(model) if model.startswith(BUILTIN) else Path(model)
    files = [folder / name for name in FINGERPRINT if (folder / name).exists()]
    return {path.name: sha256(path) for path in files} or model


def make(order: Order, cells: Sequence[Cell]) -> None:
    """Write the generations of all cells, one author after the other."""
    studio = Studio(order)
    total = sum(cell.num_prompts for cell in cells)
    done = 0
    with bar("generate", total, is_shown=order.is_shown) as show:
        for cell in sorted(cells, key=lambda cell: str(cell.author)):
            begun = done
            make_cell(studio, cell, lambda n, _: show(begun + n, cell.name))  # noqa: B023
            done += cell.num_prompts
            show(done, cell.name)


def make_cell(studio: Studio, cell: Cell, observe: Callable[[int, str], None]) -> None:
    """Write one cell's generations, or the rest of them."""
    place, author = studio.order.place(cell), cell.author
    place.folder.mkdir(parents=True, exist_ok=True)
    if isinstance(author, Gold):
        write_lines(place.generations, gold_lines(cell))
        write_json(place.made, {"author": "gold", "prompts": cell.prompts})
    elif isinstance(author, Given):
        write_file(place.generations, lambda path: path.write_bytes(Path(author.path).read_bytes()))
        write_json(place.made, {"author": "given", "file": Path(author.path).name} | about(author))
    else:
        generate(studio, author, cell, place, observe)


def generate(
    studio: Studio,
    author: Diffusion | Autoregressive,
    cell: Cell,
    place: Place,
    observe: Callable[[int, str], None],
) -> None:
    """Let a model write; a file that is there whole is left, and one of other settings refused."""
    settings = {
        "author": type(author).__name__,
        "model": studio.fingerprint(author.model),
        "options": cell.options,
        "dtype": studio.order.dtype,
    }
    asked = {
        "settings": settings,
        "prompts": prompts_digest(cell),
        "samples": cell.num_samples,
    }
    known = read(place.made) or {}
    if place.generations.exists() and known | asked == known:
        return
    writer = studio.open(author)
    part = place.generations.with_name(f"{place.generations.name}.part")
    is_resumed = part.exists() or place.generations.exists()  # its seconds are not known
    began = time.monotonic()
    with first_prompts(cell, place.folder) as source:
        count = generate_file(
            writer,
            source,
            place.generations,
            num_samples=cell.num_samples,
            settings=settings,
            batch_size=studio.order.batch_size,
            observe=observe,
            **cell.options,
        )
    write_json(
        place.made,
        asked
        | {
            "texts": count,
            "calls": calls_of(place.generations),
            "seconds": None if is_resumed else time.monotonic() - began,
            "device": device_name(writer),
            "training": training(author.model),
            "python": platform.python_version(),
        },
    )


def calls_of(generations: Path) -> int:
    """Return the passes of the network that a block took."""
    with generations.open(encoding="utf-8") as file:
        return json.loads(file.readline())["calls"]


def prompts_digest(cell: Cell) -> str:
    """Return what tells a cell's prompts from others."""
    return f"{sha256(Path(cell.prompts))}:{cell.num_prompts}"


@contextmanager
def first_prompts(cell: Cell, folder: Path) -> Iterator[Path]:
    """Give a file of the prompts that a cell uses, without what it does not need."""
    source = folder / f"prompts-{os.getpid()}.jsonl"
    kept = ("prompt", "source")
    lines = [
        {key: line[key] for key in kept if key in line}
        for line in read_prompts(Path(cell.prompts))[: cell.num_prompts]
    ]
    write_lines(source, lines)
    try:
        yield source
    finally:
        source.unlink()


def gold_lines(cell: Cell) -> list[dict[str, Any]]:
    """Return the gold continuations of a cell's prompts, as generations."""
    lines = read_prompts(Path(cell.prompts))[: cell.num_prompts]
    without = [number for number, line in enumerate(lines, start=1) if "gold" not in line]
    if without:
        raise ValueError(
            f"{cell.prompts}: prompt {without[0]} of {len(lines)} has no gold continuation; "
            "make prompts with `ssdlm prompts STORE`"
        )
    return [
        {"prompt": line["prompt"], "text": line["gold"]}
        | ({"tokens": line["gold_tokens"]} if "gold_tokens" in line else {})
        for line in lines
    ]


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write JSON lines, all or nothing."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def device_name(writer: Writer) -> str:
    """Return the machine a model runs on, in words."""
    import torch

    if writer.device.type == "cuda":
        return torch.cuda.get_device_name(writer.device)
    return f"{writer.device.type}, {os.cpu_count()} cores"


def about(author: Given) -> dict[str, Any]:
    """Return what stands beside a file of others' texts: its seconds, and those of training."""
    known = read(Path(author.path).with_suffix(".about.json")) or {}
    return {key: known[key] for key in ("training", "seconds") if key in known}


def training(model: str) -> dict[str, Any]:
    """Return what a training run left beside its weights: tokens seen, seconds, data's digests.

    The seconds are those of training steps, as `train.seconds` counts them.
    """
    log = Path(model) / "log.jsonl"
    if not log.exists():
        return {}
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    timed = [record for record in records if record.get("tokens_per_s") and "tokens" in record]
    if not timed:
        return {}
    seconds, before = 0.0, 0
    for record in timed:
        if record["step"] > 1:  # the first one compiles
            seconds += (record["tokens"] - before) / record["tokens_per_s"]
        before = record["tokens"]
    asked = (read(Path(model) / "run.json") or {}).get("asked", {})
    return {"tokens": before, "seconds": seconds, "data": asked.get("data", [])}
