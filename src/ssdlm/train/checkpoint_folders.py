"""Folders of checkpoints, each whole or absent.  checkpoints -> [checkpoint_folders] -> OUT

    OUT/checkpoints/step-N/    what was written, and manifest.json with a digest of every file

A folder is filled under a temporary name and then renamed, so that a run killed at any moment
leaves only whole ones. Before one is read its digests are compared; a damaged one is skipped.
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdlm.storage.files import read_json, sha256, write_json

EMA = "ema.safetensors"
"""Where a training checkpoint keeps the weights' moving average."""
MANIFEST = "manifest.json"
PARTIAL = ".partial-"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class NewFolder:
    """A checkpoint that is about to be written; it has another name until it is whole."""

    out: Path
    step: int
    keep: int
    """How many of the newest stay."""
    keep_every: int = 0
    """Those whose step is a multiple of this stay too; 0: none."""

    @property
    def path(self) -> Path:
        return self.out / "checkpoints" / f"step-{self.step}"

    @property
    def temporary(self) -> Path:
        return self.out / "checkpoints" / f"{PARTIAL}{self.step}"

    def prepare(self) -> None:
        """Make the folder, empty, under its temporary name."""
        self.temporary.parent.mkdir(parents=True, exist_ok=True)
        remove(self.temporary)
        self.temporary.mkdir()

    def finish(self) -> None:
        """Give the folder its digests and its name, and remove old ones."""
        manifest = {"step": self.step, "files": digests(self.temporary)}
        write_json(self.temporary / MANIFEST, manifest)
        remove(self.path)
        os.rename(self.temporary, self.path)
        remove_old(self.out, self.step, self.keep, self.keep_every)

    def write(self, work: Callable[[], None], *, warns: bool = True) -> Path | None:
        """Do what prepares, fills and finishes the folder; None, and a warning, on a full disk."""
        try:
            work()
        except OSError as error:
            shutil.rmtree(self.temporary, ignore_errors=True)
            if error.errno not in DISK_FULL:
                raise
            if warns:
                warnings.warn(
                    f"no space left for checkpoint {self.step} in {self.path.parent}; "
                    "going on, the one before is kept",
                    stacklevel=2,
                )
            return None
        return self.path


def find_newest(out: Path) -> Path | None:
    """Return the newest whole checkpoint; warn about each damaged one that is skipped."""
    for step in list_steps(out):
        folder = out / "checkpoints" / f"step-{step}"
        damage = find_damage(folder)
        if not damage:
            return folder
        warnings.warn(
            f"checkpoint {folder} is damaged ({damage}); falling back to the one before",
            stacklevel=2,
        )
    return None


def list_steps(out: Path) -> Iterator[int]:
    """Yield the steps that have a checkpoint, newest first."""
    names = (path.name.removeprefix("step-") for path in (out / "checkpoints").glob("step-*"))
    yield from sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def remove_old(out: Path, step: int, keep: int, keep_every: int) -> None:
    """Remove what is older than the checkpoint of a step and not kept, as `NewFolder` says.

    One that is newer is damaged, or it would have been gone on with; it counts for nothing.
    """
    for old in [older for older in list_steps(out) if older < step][keep - 1 :]:
        if keep_every == 0 or old % keep_every:
            remove(out / "checkpoints" / f"step-{old}")


def remove_partial(out: Path) -> None:
    """Remove what a killed run left half written or half removed."""
    for path in (out / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove a folder if it is there; a kill in between leaves no half checkpoint."""
    if folder.exists():
        doomed = folder.with_name(f"{PARTIAL}old-{folder.name.lstrip('.')}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def digests(folder: Path) -> dict[str, Any]:
    """Return size and SHA-256 of every file in a folder, and in those in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files
    }


def find_damage(folder: Path) -> str:
    """Return what is wrong with a checkpoint in a few words; empty when it is whole."""
    try:
        expected = read_json(folder / MANIFEST)["files"]
        for name, facts in expected.items():
            if (folder / name).stat().st_size != facts["bytes"]:
                return f"{name} has the wrong size"
            if sha256(folder / name) != facts["sha256"]:
                return f"{name} has the wrong digest"
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return ""


def link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where there are no links, in one move."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)
    # Where both were links to one file already, the move has done nothing.
    temporary.unlink(missing_ok=True)
