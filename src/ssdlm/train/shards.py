"""Checkpoints of a run in shards: every process writes its own part.  checkpoints -> [shards]

    shards/shard-0000i-model-0000k-of-00003.safetensors    part i of weights, averages, moments

torch.distributed.checkpoint plans who writes what and cuts what is read anew, for any number of
processes. Its own files would have an index that is a pickle, which whoever reads it must trust; of
its formats we use the one of safetensors, in which each file says where its parts belong.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ssdlm.shapes import Tensor
from ssdlm.storage.tensors import names_in, write_one_by_one

SHARDS = "shards"
KINDS = ("weights", "average", "moments")
"""Of tensors: the first part of each name, and each in files of its own."""
PLACES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Where a shard's header says which part of each tensor it has."""


class FolderWriter(HuggingFaceStorageWriter):
    """Writes shards; the main process prepares their folder, and ends it once all are there.

    What fails in one process is raised in all of them.
    """

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, Any],
        prepare: Callable[[], None],
        finish: Callable[[], None],
    ) -> None:
        files = {name: 1 + KINDS.index(name.partition("/")[0]) for name in names}
        super().__init__(str(folder / SHARDS), fqn_to_index_mapping=files, save_distributed=True)
        self.prepare_folder, self.finish_folder = prepare, finish

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        # The main process alone is asked, after all have made the folder and before any writes.
        self.prepare_folder()
        self.fs.mkdir(self.path)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Any, results: Any) -> None:
        self.finish_folder()


def write_shards(writer: FolderWriter, tensors: dict[str, Tensor], group: Any) -> None:
    """Write tensors in shards, from every process of a group; raise the error of any of them."""
    try:
        save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        # The operating system's word comes first: a full disk in one process is no defect.
        raise min(causes, key=lambda cause: not isinstance(cause, OSError)) from None


def read_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Read into tensors, which may be shards themselves, what any number of processes wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is alone
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder / SHARDS)))


def names(folder: Path, kind: str) -> set[str]:
    """Return the names of all tensors of a kind."""
    return {name for path in files_of(folder, kind) for name in names_in(path)}


def files_of(folder: Path, kind: str) -> list[Path]:
    """Return the files of a kind, one for each process that had a part of it."""
    return sorted((folder / SHARDS).glob(f"*-model-{1 + KINDS.index(kind):05d}-of-*"))


def join(folder: Path, kind: str, tensors: Mapping[str, Tensor], file: str) -> None:
    """Make one file of the shards of a kind, which are removed; one tensor is in memory at a time.

    `tensors` have the whole shapes, by names without the kind.
    """
    files = files_of(folder, kind)
    opened = [safe_open(path, "pt") for path in files]
    places = [json.loads(stored.metadata()[PLACES]) for stored in opened]

    def read(name: str) -> Tensor:
        whole, key = torch.empty(tensors[name].shape, dtype=tensors[name].dtype), f"{kind}/{name}"
        for stored, place in zip(opened, places, strict=True):
            if key in place:
                part = stored.get_tensor(key)
                offsets = place[key][OFFSETS]
                spans = zip(offsets, part.shape, strict=True)
                whole[tuple(slice(at, at + length) for at, length in spans)] = part
        return whole

    write_one_by_one(folder / file, tensors, read)
    for path in files:
        path.unlink()
