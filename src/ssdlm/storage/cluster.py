"""Parts of a job, each a task of a Ray cluster.  parts -> [cluster] -> prepare, generate

    cut into as many parts as there are workers -> each written beside the output -> merged there

Tasks and not Ray Data: a part is a file or folder that a process writes, finds again after a kill
and goes on with. No rows travel, which is what Ray Data plans and limits; on two cores it let one
part run at a time. A task whose worker dies is started again, and goes on where that one ended.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ssdlm.extras import lacking
from ssdlm.storage.parts import Shard, TooManyPartsError
from ssdlm.storage.remote import Place, Remote
from ssdlm.values import first_line, shorten

ADDRESS = re.compile(r"(ray://)?(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
PART_NAME = re.compile(r"[0-9]+-of-([0-9]+)")
SECONDS_TO_CONNECT = 5.0
SECONDS_TO_JOIN = 60.0
"""How long a server may take that answers, and perhaps is no Ray at all."""
RETRIES = 20
"""How often a part is taken up again whose worker has died."""
OBJECT_BYTES = 100 << 20
"""Memory for objects of a cluster of this machine: parts are files, and need none."""
MOST_WORKERS = 1024
"""Of this machine."""
JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')"

Work = Callable[[Shard, str], None]
"""Does one part of a job, into a file or folder of this name."""
Observe = Callable[[Sequence[Place], int], None]
"""Takes the parts of a job and how many are done."""
SECONDS_TO_LOOK = 1.0
"""Between two calls of it."""


@dataclass(frozen=True)
class Outcome:
    """What a task says of its part."""

    error: str = ""
    most_parts: int = 0
    """How many parts there can be, where that is the error."""
    warnings: Sequence[str] = ()


def unwatched() -> AbstractContextManager[Observe]:
    """Give what looks at nothing."""
    return nullcontext(lambda parts, num_done: None)


@contextmanager
def spread(
    work: Work,
    place: Place,
    *,
    address: str,
    most: int,
    ending: str = "",
    uses_gpus: bool = False,
    watched: Callable[[], AbstractContextManager[Observe]] = unwatched,
) -> Iterator[list[Place]]:
    """Do a job's parts on a cluster; give where they are, and remove them at the end.

    There are as many parts as workers, and at most `most`; or as many as were begun before. What
    `watched` gives is called as they are done.
    """
    folder = parts_folder(place)
    with joined(address) as ray, redirect_stdout(sys.stderr):  # Ray says who has died
        gpus = int(ray.cluster_resources().get("GPU", 0)) if uses_gpus else 0
        workers = gpus or int(ray.cluster_resources().get("CPU", 1))
        count = num_begun(folder) or max(1, min(workers, most))
        do = partial(do_parts, ray, work, folder, ending, num_gpus=int(gpus > 0), watched=watched)
        try:
            parts = do(count)
        except TooManyPartsError as error:
            remove(folder)
            parts = do(error.most)
    yield parts
    remove(folder)


def do_parts(
    ray: Any,
    work: Work,
    folder: Place,
    ending: str,
    count: int,
    *,
    num_gpus: int,
    watched: Callable[[], AbstractContextManager[Observe]],
) -> list[Place]:
    """Do each part in a task; return where they are, or raise what went wrong with one."""
    parts = [folder / f"{number}-of-{count}{ending}" for number in range(count)]
    task = ray.remote(do_part).options(
        num_gpus=num_gpus, max_retries=RETRIES, scheduling_strategy="SPREAD"
    )
    where = os.getcwd()
    tasks = {
        task.remote(work, Shard(number, count), str(part), where): number
        for number, part in enumerate(parts)
    }
    waiting = list(tasks)
    try:
        with watched() as observe:
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1, timeout=SECONDS_TO_LOOK)
                for one in done:
                    read_outcome(ray, one, Shard(tasks[one], count))
                observe(parts, count - len(waiting))
    finally:
        for other in waiting:
            ray.cancel(other, force=True)
    for part in parts:
        if not part.exists():
            raise ValueError(
                f"{part} was written on another machine, and is not to be seen from here; give an "
                "output on a disk that all machines share, or on an object store"
            )
    return parts


def read_outcome(ray: Any, task: Any, shard: Shard) -> None:
    """Raise what went wrong with a part, and show its warnings."""
    try:
        outcome: Outcome = ray.get(task)
    except ray.exceptions.RayError as error:
        raise ValueError(
            f"the worker of part {shard} ended {RETRIES + 1} times, or the cluster did "
            f"({type(error).__name__}); what is written is kept, run the same command again"
        ) from error
    if outcome.most_parts:
        raise TooManyPartsError(outcome.error, outcome.most_parts)
    if outcome.error:
        raise ValueError(outcome.error)
    for words in outcome.warnings:
        warnings.warn(words, stacklevel=2)


def do_part(work: Work, shard: Shard, target: str, folder: str) -> Outcome:
    """Do one part, in a worker; names without a folder mean the same as where the job began."""
    with suppress(OSError):  # a machine without that folder has none of its files either
        os.chdir(folder)
    with warnings.catch_warnings(record=True) as caught:
        try:
            work(shard, target)
        except TooManyPartsError as error:
            return Outcome(str(error), error.most)
        except (ValueError, OSError) as error:
            return Outcome(str(error) or type(error).__name__)
    return Outcome(warnings=[str(warning.message) for warning in caught])


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Give Ray, connected to a cluster: one that is connected to already, is there, or is started.

    "" is all of this machine, or what RAY_ADDRESS names; a number so many workers of this machine.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise lacking("ray", "--ray") from error
    if ray.is_initialized():
        yield ray
        return
    before = signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address.isdecimal() and not 1 <= int(address) <= MOST_WORKERS:
        raise ValueError(f"ray={address} workers are out of range; use 1 to {MOST_WORKERS}")
    try:
        if not address or address.isdecimal():
            quiet |= {"include_dashboard": False, "object_store_memory": OBJECT_BYTES}
            ray.init("local", num_cpus=int(address) if address else None, **quiet)
        else:
            require_cluster(address)
            ray.init(address, **quiet)
    except ValueError:
        raise
    except SystemExit:  # a SIGTERM came, and Ray had put a handler of its own there
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    except Exception as error:  # of its own classes, and of every other
        raise ValueError(f"Ray does not start: {first_line(error)}") from error
    try:
        signal.signal(signal.SIGTERM, before)
        yield ray
    except SystemError as error:  # what a handler raised, where Ray's own code was running
        raise error.__cause__ or error from None
    finally:
        ray.shutdown()


def require_cluster(address: str) -> None:
    """Raise where no cluster answers at an address, within a time: Ray itself waits for minutes."""
    found = ADDRESS.fullmatch(address)
    if found is None and address != "auto":
        raise ValueError(
            f"ray={shorten(address)} is no address; use HOST:PORT, ray://HOST:PORT, auto, or a "
            "number of workers of this machine, and give --ray after the inputs"
        )
    if found is not None:
        host, port = found["host"].strip("[]"), int(found["port"])
        try:
            socket.create_connection((host, port), SECONDS_TO_CONNECT).close()
        except (OSError, OverflowError) as error:
            raise unreachable(address, first_line(error)) from error
    try:
        subprocess.run(
            [sys.executable, "-c", JOIN, address],
            check=True,
            capture_output=True,
            timeout=SECONDS_TO_JOIN,
        )
    except subprocess.TimeoutExpired as error:
        raise unreachable(address, "it does not answer as Ray does") from error
    except subprocess.CalledProcessError as error:
        raise unreachable(address, why(error.stderr.decode(errors="replace"))) from error


def why(said: str) -> str:
    """Return in a few words why Ray could not join a cluster, from what it printed."""
    if "AuthenticationError" in said:
        return "it wants another token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    lines = said.strip().splitlines()
    return shorten(lines[-1]) if lines else "it ended"


def unreachable(address: str, reason: str) -> ValueError:
    """Return the error about a cluster that cannot be joined."""
    return ValueError(
        f"no Ray cluster at {address} ({reason}); start one with `ray start --head`, or leave the "
        "address out to use this machine"
    )


def parts_folder(place: Place) -> Place:
    """Return the folder for the parts of an output, beside it."""
    if isinstance(place, Remote):
        return place.beside(".parts")
    return place.with_name(f"{place.name}.parts")


def num_begun(folder: Place) -> int:
    """Return into how many parts a job was cut that has begun; 0 where none has."""
    if isinstance(folder, Remote):
        files = folder.below() if folder.is_dir() else []
        names = [file.path.removeprefix(folder.path).lstrip("/") for file in files]
    else:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = (PART_NAME.match(name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)


def remove(folder: Place) -> None:
    """Delete the parts of a job."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.remove_all()
