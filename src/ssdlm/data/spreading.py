"""A token store prepared by the workers of a Ray cluster.  parts, merging -> [spreading]"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ssdlm.data.merging import merge_stores
from ssdlm.data.parts import prepare_part
from ssdlm.data.prepare import Job, PrepareReport, prepare
from ssdlm.data.shards import INDEX, PART
from ssdlm.progress import bar
from ssdlm.storage.cluster import Observe, spread
from ssdlm.storage.parts import Shard
from ssdlm.storage.remote import place_of

MOST_PARTS = 64
"""Each reads all of the input once; with more, that would be most of the work."""


def prepare_spread(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    address: str,
    out: str | os.PathLike[str],
    show_progress: bool = False,
    **settings: Any,
) -> PrepareReport:
    """Do what `prepare` does, with these settings, by the workers of a cluster."""
    place = place_of(out, "out")
    if any((place / name).exists() for name in (INDEX, PART)):
        return prepare(inputs, out=out, show_progress=show_progress, **settings)
    tokenizer, holdout = settings["tokenizer"], settings["holdout"]
    deduplicate, workers = settings["deduplicate"], settings["workers"]
    Job.read(inputs, tokenizer, holdout, deduplicate, workers, show_progress)  # or raise
    work = partial(do_part, list(inputs), settings)
    watched = partial(count_parts, is_shown=show_progress)
    with spread(work, place, address=address, most=MOST_PARTS, watched=watched) as parts:
        return merge_stores(parts, out, is_shown=show_progress)


@contextmanager
def count_parts(*, is_shown: bool) -> Iterator[Observe]:
    """Give what shows how many parts are done."""
    with bar("parts on Ray", 0, is_shown=is_shown) as show:
        yield lambda parts, num_done: show(num_done, "done", len(parts))


def do_part(
    inputs: Sequence[str | os.PathLike[str]], settings: dict[str, Any], shard: Shard, out: str
) -> None:
    """Prepare one part, in a worker."""
    prepare_part(inputs, shard=shard, out=out, **settings)
