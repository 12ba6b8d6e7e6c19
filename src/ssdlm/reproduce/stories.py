"""The stories of table 2: told apart, tokenised, cut into prompts; and a model trained on them.

a file of stories -> [stories] -> OUT/stories/{data, prompts.jsonl, ours} -> table2

As in the paper's appendix C, the stories of a split are one text, cut into sequences wherever that
falls. Nothing marks where a story ends, so that a judge reads plain text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdlm.data.formats import Tally
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore
from ssdlm.data.sources import find_sources
from ssdlm.data.writer import is_held_out
from ssdlm.evaluate.judge import MINILM, minilm_folder
from ssdlm.storage.files import write_file
from ssdlm.tokenizer import Tokenizer, load_tokenizer

RECIPE = "paper_rocstories"


@dataclass(frozen=True)
class StoryPlace:
    """The files of the stories."""

    folder: Path

    @property
    def texts(self) -> Path:
        """Two documents, the training stories and the others."""
        return self.folder / "texts.jsonl"

    @property
    def data(self) -> Path:
        """The token store."""
        return self.folder / "data"

    @property
    def prompts(self) -> Path:
        return self.folder / "prompts.jsonl"

    @property
    def model(self) -> Path:
        """The run of training, and the model that comes of it."""
        return self.folder / "ours"


def start_of(name: str) -> str:
    """Return the masked LM of a name: `minilm`, a folder or a Hub id."""
    return str(minilm_folder()) if name == MINILM else name


def prepare_stories(
    source: str, place: StoryPlace, *, tokenizer: str, holdout: float, length: int, count: int
) -> None:
    """Write the token store and the prompts; what is there of the same stories is left."""
    place.folder.mkdir(parents=True, exist_ok=True)
    train, held = split(read_stories(source), holdout)
    # Of two documents the library keeps back one of its own choice: that one is the held-out text.
    documents = [held, train] if is_held_out(0, 0.5) else [train, held]
    put_lines(place.texts, [{"text": " ".join(stories)} for stories in documents])
    prepare([place.texts], tokenizer=tokenizer, out=place.data, holdout=0.5)
    put_lines(place.prompts, prompts_of(place.data, length=length, count=count))


def read_stories(source: str) -> list[str]:
    """Return the texts of a file, one a story."""
    pieces = [piece for one in find_sources([source]) for piece in one.pieces(Tally())]
    if not pieces:
        raise ValueError(f"{source} has no stories; write one as `text` on each line")
    return [" ".join(piece.text.split()) for piece in pieces]


def split(stories: Sequence[str], holdout: float) -> tuple[list[str], list[str]]:
    """Return the stories for training, and those kept from it."""
    parts: tuple[list[str], list[str]] = ([], [])
    for number, story in enumerate(stories):
        parts[is_held_out(number, holdout)].append(story)
    if not all(parts):
        raise ValueError(
            f"{len(stories)} stories with a share of {holdout} held out leave a part empty; "
            "give more stories or another --set story_holdout"
        )
    return parts


def prompts_of(data: Path, *, length: int, count: int) -> list[dict[str, Any]]:
    """Return up to `count` prompts with gold, side by side: each gold is the next one's prompt."""
    store, tokenizer = TokenStore.open(data, "holdout"), load_tokenizer(data)
    ids = store.read(0, len(store) - 1).tolist()
    lines: dict[str, dict[str, Any]] = {}
    for window in windows(ids, length):
        line = line_of(tokenizer, window, length)
        if line is not None and len(lines) < count:
            lines.setdefault(line["prompt"], line)
    if not lines:
        raise ValueError(
            f"the held-out stories have {len(ids)} tokens, too few for one sequence of "
            f"{2 * length}; give more stories"
        )
    return list(lines.values())


def windows(ids: Sequence[int], length: int) -> Iterator[list[int]]:
    """Yield prompt and continuation together, from every `length` tokens on."""
    for start in range(0, len(ids) - 2 * length + 1, length):
        yield list(ids[start : start + 2 * length])


def line_of(tokenizer: Tokenizer, ids: list[int], length: int) -> dict[str, Any] | None:
    """Return a window as prompt and gold; None where it is not read back as the same tokens."""
    before, after = ids[:length], ids[length:]
    prompt, gold = tokenizer.decode(before), tokenizer.decode_after(before, after)
    if tokenizer.encode(prompt) != before or prompt + gold != tokenizer.decode(ids):
        return None
    return {"prompt": prompt, "gold": gold, "gold_tokens": after, "source": "stories"}


def train_on_stories(
    place: StoryPlace, *, init: str, length: int, B: int, device: str, settings: Sequence[str]
) -> None:
    """Train the paper's recipe on the stories, or go on with it."""
    from ssdlm.train import configure, train

    given = [f"init={init}", f"max_len={2 * length}", f"model.B={B}", f"device={device}"]
    train(configure(RECIPE, [*given, *settings]), data=[place.data], out=place.model)


def put_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write JSON lines, unless they are there: what depends on a file goes by its digest."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
