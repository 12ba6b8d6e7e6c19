"""A file of prompts among several processes, of which the first leads.  writers -> [here]

    leader: lines -> every process writes its share -> texts back to the leader -> file

The leader reads the prompts, writes the file and shows progress, as a process alone does; the
others write what they are given, until there is no more. They talk through gloo, whatever they
compute on, and need no files in common.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, NoReturn

import torch

from ssdlm.engine.requests import Generation
from ssdlm.engine.writers import OptionsWriter, PromptLine

FOREVER = timedelta(days=365)
"""How long a process waits for another; one that has died is noticed at once."""


class LostError(ValueError):
    """A process that others wait for has ended."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "a process ended before its texts were written; what is in the .part file is kept, run "
            "the same command again to go on"
        )


@dataclass(frozen=True)
class Share:
    """What one process answers: the texts of each of its lines, or why there are none."""

    texts: Sequence[Sequence[Generation]] = ()
    warnings: Sequence[str] = ()
    error: str = ""


@dataclass(frozen=True)
class Processes:
    """The processes that a launcher started, as one of them sees them."""

    rank: int
    count: int

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def tell(self, lines: Sequence[PromptLine] | None) -> Sequence[PromptLine] | None:
        """Return what the leader says, in every process: lines to share out, None at the end."""
        from torch.distributed import broadcast_object_list

        said = [lines]
        with noticing_loss():
            broadcast_object_list(said, src=0)
        return said[0]

    def gather(self, share: Share) -> list[Share]:
        """Return every process's share, in the leader; nothing in the others."""
        from torch.distributed import gather_object

        shares = [share] * self.count if self.is_leader else None
        with noticing_loss():
            gather_object(share, shares, dst=0)
        return shares or []


@dataclass(frozen=True)
class SharedWriter(OptionsWriter):
    """The writers of all processes as one, in the leader's hands."""

    processes: Processes = Processes(0, 1)

    def write(self, lines: Sequence[PromptLine]) -> Iterator[Generation]:
        """Yield the texts of lines that are dealt out one by one, in the order of the lines."""
        self.processes.tell(lines)
        own = OptionsWriter(self.engine, self.options)
        shares = self.processes.gather(answer(own, lines, self.processes))
        refuse_failed(shares)
        for words in dict.fromkeys(word for share in shares for word in share.warnings):
            warnings.warn(words, stacklevel=2)
        for index in range(len(lines)):
            yield from shares[index % len(shares)].texts[index // len(shares)]


def own_device(device: str) -> str:
    """Return this process's device: a GPU of its own where a GPU is meant."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise ValueError(
            f"process {number + 1} of this machine finds {count} GPUs; start at most one process "
            "a GPU, or use --device cpu"
        )
    torch.cuda.set_device(number)  # where kernels and graphs go that are told of no other
    return f"cuda:{number}"


def share_out(
    open_writer: Callable[[], OptionsWriter], lead: Callable[[SharedWriter], None]
) -> None:
    """Open a writer in every process, and let the first one `lead` with all of them as one.

    What goes wrong anywhere is raised in the first process; the others end when it does.
    """
    with joined() as processes:
        writer, opening = None, Share()
        try:
            writer = open_writer()
        except (ValueError, OSError) as error:
            opening = Share(error=str(error))
        shares = processes.gather(opening)
        if not processes.is_leader:
            follow(writer, processes)
            return
        try:
            refuse_failed(shares)
            assert writer is not None
            lead(SharedWriter(writer.engine, writer.options, processes.count, processes))
        except LostError:
            raise  # the others may be anywhere, and will notice
        except Exception:
            processes.tell(None)
            raise
        processes.tell(None)


def follow(writer: OptionsWriter | None, processes: Processes) -> None:
    """Write what the leader gives until it ends; without it there is nobody to tell."""
    with suppress(LostError):
        while (lines := processes.tell(None)) is not None:
            assert writer is not None
            processes.gather(answer(writer, lines, processes))


def answer(writer: OptionsWriter, lines: Sequence[PromptLine], processes: Processes) -> Share:
    """Return this process's share of some lines' texts."""
    own = lines[processes.rank :: processes.count]
    with warnings.catch_warnings(record=True) as caught:
        try:
            texts = iter(writer.write(own)) if own else iter(())
            written = [list(islice(texts, writer.num_texts(line))) for line in own]
        except LostError:
            raise
        except Exception as error:
            return Share(error=f"{type(error).__name__}: {error}")
    return Share(written, [str(warning.message) for warning in caught])


def refuse_failed(shares: Sequence[Share]) -> None:
    """Raise what went wrong in the first process that failed."""
    for rank, share in enumerate(shares):
        if share.error:
            place = f"process {rank} of {len(shares)}: " if rank else ""
            raise ValueError(place + share.error)


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the launcher's other processes, and leave them at the end."""
    from torch.distributed import destroy_process_group, get_rank, get_world_size
    from torch.distributed import init_process_group as join

    join("gloo", timeout=FOREVER)
    # A launcher that sees a process die tells the others so to end.
    before = signal.signal(signal.SIGTERM, give_up)
    try:
        yield Processes(get_rank(), get_world_size())
    finally:
        signal.signal(signal.SIGTERM, before)
        destroy_process_group()


def give_up(*_: Any) -> NoReturn:
    raise LostError


@contextmanager
def noticing_loss() -> Iterator[None]:
    """Raise a broken connection as what it means."""
    try:
        yield
    except RuntimeError as error:
        raise LostError from error
