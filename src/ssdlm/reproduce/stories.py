"""The stories of table 2: split, tokenised, cut into prompts; and a model trained on them.

a file of stories -> [stories] -> OUT/stories/{data, prompts.jsonl, ours} -> table2

As in the paper's appendix C, a split is one text without marks between stories, cut anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssdlm.data.formats import Tally
from ssdlm.data.prepare import prepare
from ssdlm.data.shards import TokenStore
from ssdlm.data.sources import find_sources
from ssdlm.data.writer import is_held_out
from ssdlm.reproduce.prompts import distinct, split_window
from ssdlm.reproduce.scale import Scale
from ssdlm.reproduce.setting import Options
from ssdlm.storage.jsonl import read_jsonl, write_jsonl
from ssdlm.tokenizer import load_tokenizer

RECIPE = "paper_rocstories"


class StoryFiles:
    """The files of the stories: both splits as texts, their tokens, prompts, and our model."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.texts, self.data = folder, folder / "texts.jsonl", folder / "data"
        self.prompts, self.model = folder / "prompts.jsonl", folder / "ours"


def prepare_stories(source: str, files: StoryFiles, *, tokenizer: str, scale: Scale) -> None:
    """Write the token store and the prompts; what is there of the same stories is left."""
    files.folder.mkdir(parents=True, exist_ok=True)
    pieces = [piece for one in find_sources([source]) for piece in one.pieces(Tally())]
    stories = [" ".join(piece.text.split()) for piece in pieces]
    train, held = split(stories, scale.story_holdout)
    # Of two documents the library keeps back one of its own choice: that one is the held-out text.
    documents = [held, train] if is_held_out(0, 0.5) else [train, held]
    write_if_other(files.texts, [{"text": " ".join(stories)} for stories in documents])
    prepare([files.texts], tokenizer=tokenizer, out=files.data, holdout=0.5)
    prompts = prompts_of(files.data, length=scale.story_length, count=scale.stories)
    write_if_other(files.prompts, prompts)


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


def prompts_of(data: Path, *, length: int, count: int) -> list[Options]:
    """Return up to `count` prompts with gold, side by side: each gold is the next one's prompt."""
    store, tokenizer = TokenStore.open(data, "holdout"), load_tokenizer(data)
    ids = store.read(0, len(store) - 1).tolist()
    starts = range(0, len(ids) - 2 * length + 1, length)
    windows = [split_window(tokenizer, ids[i : i + 2 * length], length) for i in starts]
    lines = [line | {"source": "stories"} for line in windows if line is not None]
    if not lines:
        raise ValueError(
            f"the held-out stories have {len(ids)} tokens, too few for one sequence of "
            f"{2 * length}; give more stories"
        )
    return list(distinct(lines))[:count]


def write_if_other(path: Path, lines: Sequence[Options]) -> None:
    """Write JSON lines, unless they are there: what depends on a file goes by its digest."""
    if not path.exists() or read_jsonl(path) != list(lines):
        write_jsonl(path, lines)


def train_on_stories(files: StoryFiles, *, init: str, scale: Scale, device: str) -> None:
    """Train the paper's recipe on the stories, or go on with it."""
    from ssdlm.train import configure, train

    given = [f"init={init}", f"max_len={2 * scale.story_length}", f"model.B={scale.B}"]
    config = configure(RECIPE, [*given, f"device={device}", *scale.story_train])
    train(config, data=[files.data], out=files.model)
