"""Files that are whole or absent: written under another name, then renamed.  -> all writers"""

from __future__ import annotations

import filecmp
import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ssdlm.settings import from_json
from ssdlm.values import DEEPEST, is_too_deep, quote, shorten

C = TypeVar("C")

JSON_KINDS = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
"""What JSON calls values that are neither objects nor numbers."""
PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""How the name of a file elsewhere begins."""
STANDARD = Path("-")
"""Standard input, or standard output, where a command line names a file."""
MOST_IN_JSON = 1 << 28
"""Bytes of a JSON file that is read whole: the index of a store of a million files has fewer."""
MOST_BY_HAND = 1 << 24
"""Bytes of a file that a person writes: a schema, keys."""
MOST_FROM_PIPES = 1 << 28
"""Bytes that are read from what is not a file and may have no end: a pipe, a device."""


class JsonError(ValueError):
    """Bytes that are not a JSON object."""

    def __init__(self, message: str, problem: str):
        super().__init__(message)
        self.problem = problem
        """What is wrong in a few words, for a reader that counts such lines and goes on."""


def named_path(name: str | os.PathLike[str], what: str) -> Path:
    """Return the path that a user names, `~` being the home folder.

    An empty name is refused, and one of a file elsewhere (`remote.place_of` takes those).
    """
    if not isinstance(name, str | os.PathLike):
        raise ValueError(f"{what}={quote(name)} is no path; give the name of a file or folder")
    if not os.fspath(name).strip():
        raise ValueError(f"{what} is empty; give the name of a file or folder")
    if PROTOCOL.match(os.fspath(name)):
        raise ValueError(
            f"{what}={shorten(os.fspath(name))} is not on a disk; copy it to one first"
        )
    return Path(name).expanduser()


def cache_folder() -> Path:
    """Return where this package keeps what it made for later."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssdlm"


def write_file(path: Path, writer: Callable[[Path], Any]) -> None:
    """Call `writer` with a temporary name beside `path`, then rename: all of a file or nothing.

    Several processes may write the same file; they wait for each other.
    """
    temporary = partial_name(path)
    with about(path), taken(temporary):
        try:
            writer(temporary)
            temporary.chmod(0o644)
            os.replace(temporary, path)
        except BaseException:  # after the renaming, another process may have the name
            temporary.unlink(missing_ok=True)
            raise


def partial_name(path: Path) -> Path:
    """Return what a file or folder is called while it is written.

    One name for all that try, so that what a killed one left is taken up and not left behind.
    """
    return path.with_name(f".{path.name}.partial")


@contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Let what the operating system says of a full disk, or the like, name the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Have a file to oneself, once no other process has it; a kill sets it free."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock, and goes without
        yield
        return
    is_there = False
    while not is_there:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who had it before us may have given it its name.
            with suppress(FileNotFoundError):
                is_there = os.path.samestat(os.stat(path), os.fstat(descriptor))
            if is_there:
                yield
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, all of it or nothing; it is on the disk before it has the name."""

    def write_and_sync(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    write_file(path, write_and_sync)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, all of it or nothing."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_whole(path: Path, *, most: int = 1 << 62) -> bytes:
    """Return the bytes of a file, or of a pipe that ends soon enough; `-` is standard input.

    A file of more than `most` bytes is refused before memory is taken for it.
    """
    if path == STANDARD:
        return read_pipe(sys.stdin.buffer.read, "standard input", most) if sys.stdin else b""
    with path.open("rb") as file:
        if not path.is_file():
            return read_pipe(file.read, str(path), most)
        if (size := path.stat().st_size) > most:
            raise ValueError(f"{path} has {size:,} bytes, more than {most:,}; is it the right one?")
        return file.read()


def read_pipe(read: Callable[[int], bytes], name: str, most: int) -> bytes:
    """Return what comes through a pipe, or raise where there is no end of it."""
    most = min(most, MOST_FROM_PIPES)
    content = read(most + 1)
    if len(content) > most:
        raise endless(name)
    return content


def endless(name: str) -> ValueError:
    """Return the error about a pipe of too many bytes."""
    return ValueError(f"{name} has no end, or is too long for a pipe; give a file")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise a ValueError that says what is wrong with it."""
    try:
        raw = read_whole(path, most=MOST_IN_JSON)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; is {path.parent} the right folder?") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder and not a JSON file; restore the file") from None
    except NotADirectoryError:
        raise ValueError(f"{path.parent} is a file and not a folder; give a folder") from None
    return parse_object(raw, where=str(path), remedy="restore the file")


def parse_object(raw: bytes, *, where: str, remedy: str, is_strict: bool = False) -> dict[str, Any]:
    """Return the JSON object in some bytes, or raise a JsonError that says where it is wrong.

    What other readers of JSON understand in another way, or not at all, is refused if `is_strict`:
    a name that stands twice in an object, and NaN.
    """

    def refuse_constant(word: str) -> None:
        raise JsonError(f"{where} contains {word}, which is no JSON; {remedy}", "not JSON")

    def finite(digits: str) -> float:
        if math.isinf(found := float(digits)):
            said = f"{where} contains {shorten(digits)}, which is too large a number; {remedy}"
            raise JsonError(said, "not JSON")
        return found

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))
            raise JsonError(f"{where} has {quote(twice)} twice; give it once", "a name twice")
        return found

    hooks: dict[str, Any] = {}
    if is_strict:
        hooks = {"parse_constant": refuse_constant, "parse_float": finite}
        hooks["object_pairs_hook"] = refuse_twice
    try:
        value = json.loads(raw.decode("utf-8"), **hooks)
    except JsonError:
        raise
    except UnicodeDecodeError as error:
        message = f"{where} is not UTF-8 (byte {error.start}); save it as UTF-8"
        raise JsonError(message, "not UTF-8") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        raise JsonError(f"{where} is not JSON ({reason}); {remedy}", "not JSON") from None
    except RecursionError:
        raise too_deep(where, remedy) from None
    except ValueError:  # Python reads no integer of thousands of digits
        message = f"{where} contains a number of too many digits; {remedy}"
        raise JsonError(message, "not JSON") from None
    if not isinstance(value, dict):
        kind = JSON_KINDS.get(type(value), "a number")
        message = f"{where} is {kind} and not a JSON object; {remedy}"
        raise JsonError(message, "not a JSON object")
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and is_too_deep(value):
        raise too_deep(where, remedy)
    return value


def too_deep(where: str, remedy: str) -> JsonError:
    """Return the error about lists within lists that no reader could follow."""
    return JsonError(f"{where} is not JSON (nested too deep); {remedy}", "not JSON")


def read_checked(path: Path, cls: type[C], *, remedy: str = "restore the file") -> C:
    """Return the JSON file that a dataclass describes; a ValueError names path and field."""
    values = read_json(path)
    try:
        return from_json(cls, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {remedy}") from None


@contextmanager
def new_folder(path: Path, *, may_exist: bool = False) -> Iterator[Path]:
    """Give a temporary folder that becomes `path` when the block ends well, else vanishes.

    Where there is one, and `may_exist`, it stays as it is if it has the same files.
    """
    if path.exists() and not may_exist:
        raise exists_already(path)
    temporary = partial_name(path)
    temporary.mkdir(parents=True, exist_ok=True)
    with locked(temporary, f"another process is writing {path}; wait for it"):
        if path.exists() and not may_exist:
            raise exists_already(path)
        try:
            for left in temporary.iterdir():
                left.unlink()
            yield temporary
            temporary.chmod(0o755)
            if not path.exists():
                os.replace(temporary, path)
            elif not has_same_files(temporary, path):
                raise exists_already(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def exists_already(path: Path) -> ValueError:
    """Return the error about a name that is taken."""
    return ValueError(f"{path} exists already; choose another name or remove it")


def has_same_files(folder: Path, other: Path) -> bool:
    """Tell whether another folder, if it is one, has the files of this one and no more."""
    names = sorted(os.listdir(folder))
    if not other.is_dir() or sorted(os.listdir(other)) != names:
        return False
    return filecmp.cmpfiles(folder, other, names, shallow=False)[0] == names


@contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Keep a second process out of a folder while this one writes; a kill unlocks it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock, and goes without
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(message) from error
        yield
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
