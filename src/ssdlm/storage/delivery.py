"""What is written elsewhere: made on this machine and sent when it is whole.  remote -> [delivery]

    a work folder here, resumed after a kill -> sent, its last file last -> work folder removed

So a command writes to `s3://...` as it does to a disk. While it works, an empty file there says so,
and shows that the command may write; what another machine has begun is not continued.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

from ssdlm.storage.files import cache_folder, locked
from ssdlm.storage.remote import Place, Remote, RemoteError


@contextmanager
def fetched(places: Sequence[Place]) -> Iterator[list[Path]]:
    """Give files and folders on this machine: those from elsewhere as copies, for a while."""
    if not any(isinstance(place, Remote) for place in places):
        yield [place for place in places if isinstance(place, Path)]
        return
    with tempfile.TemporaryDirectory(prefix="ssdlm-") as folder:
        copies: dict[Path, Remote] = {}
        here: list[Path] = []
        for number, place in enumerate(places):
            if isinstance(place, Remote):
                copy = Path(folder, str(number), place.name)
                place.fetch(copy)
                copies[copy] = place
                place = copy
            here.append(place)
        with naming(copies):
            yield here


@contextmanager
def delivered_file(place: Place) -> Iterator[Path]:
    """Give the name of a file to write; where it is meant for elsewhere, it is sent at the end.

    A file that is there already is given as a copy, to compare with, and not sent again.
    """
    if isinstance(place, Path):
        yield place
        return
    with working(place) as folder:
        mark = place.beside(".part")
        if place.exists():
            if place.is_dir():
                raise RemoteError(f"{place} is a folder; give the name of a file in it")
            with fetched([place]) as (copy,):
                yield copy
            unmark(mark)
            return
        with marked(mark):
            yield folder / place.name
            place.put(folder / place.name)


@contextmanager
def delivered_folder(
    place: Place, *, ends: Sequence[str], mark: str, own: Sequence[str]
) -> Iterator[Path]:
    """Give the name of a folder to fill; where it is meant for elsewhere, it is sent at the end.

    `ends` are the files that say that it is whole: they are sent last, and of a folder that has one
    already only they are given. `mark` is a file there meanwhile. A folder with other files than
    `own` (globs) is refused.
    """
    if isinstance(place, Path):
        yield place
        return
    with working(place) as folder:
        here = folder / place.name
        whole = [place / name for name in ends if (place / name).exists()]
        if whole:
            with tempfile.TemporaryDirectory(prefix="ssdlm-") as copies:
                copy = Path(copies, place.name)
                for file in whole:
                    file.fetch(copy / file.name)
                with naming({copy: place}):
                    yield copy
            unmark(place / mark)
            return
        refuse_foreign(place, [mark, *own])
        with marked(place / mark):
            yield here
            send(here, place, ends=ends, mark=mark)


def send(folder: Path, place: Remote, *, ends: Sequence[str], mark: str) -> None:
    """Copy all files of a folder, `ends` last; remove what an earlier attempt has sent beside."""
    names = sorted((path.name for path in folder.iterdir()), key=lambda name: (name in ends, name))
    for name in names:
        if name in ends:
            remove_others(place, [*names, mark])
        (place / name).put(folder / name)


def remove_others(place: Remote, names: Sequence[str]) -> None:
    """Remove all files of a folder but those of some names."""
    for file in place.below():
        if file.name not in names:
            file.remove()


def refuse_foreign(place: Remote, own: Sequence[str]) -> None:
    """Raise where a folder has files that nobody here has begun to send."""
    for file in place.below() if place.is_dir() else []:
        if not any(fnmatch(file.name, pattern) for pattern in own):
            raise ValueError(
                f"{place} is not empty ({file.name} is there) and not a token store; give a new "
                "name"
            )


@contextmanager
def working(place: Remote) -> Iterator[Path]:
    """Give the folder of this machine where what is meant for a place is made, to nobody else.

    It is removed when the work is done, and stays for the next attempt where it is not.
    """
    digest = hashlib.sha256(place.url.encode()).hexdigest()[:16]
    folder = cache_folder() / "unsent" / digest
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"another process of this machine is writing {place}; wait for it"):
        try:
            yield folder
        except BaseException:
            with suppress(OSError):  # something was made, and stays
                folder.rmdir()
            raise
        shutil.rmtree(folder)


@contextmanager
def marked(mark: Remote) -> Iterator[None]:
    """Have an empty file elsewhere while something is made, which it may be forbidden to write."""
    with tempfile.NamedTemporaryFile() as empty:
        mark.put(Path(empty.name))
    try:
        yield
    finally:
        unmark(mark)


def unmark(mark: Remote) -> None:
    """Remove an empty file, if it is there; who may write may not always remove."""
    with suppress(RemoteError):
        mark.remove()


@contextmanager
def naming(copies: Mapping[Path, Remote]) -> Iterator[None]:
    """Let errors about copies name what they are copies of."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for path, remote in copies.items():
            text = text.replace(str(path), str(remote))
        if text == str(error):
            raise
        raise ValueError(text) from error
