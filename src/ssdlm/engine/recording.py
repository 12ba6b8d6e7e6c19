"""CUDA graphs: parts of a pass that a GPU repeats without Python.  batch -> [recording]

Torch keeps a workspace of cuBLAS for each stream, and drops it with any graph that was recorded on
that stream, whoever else goes on to use it. So graphs that are replayed have a stream of their own,
and all that were recorded on one go together.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

import torch

from ssdlm.shapes import Tensor

NUM_STREAMS = 32
"""Streams that torch hands out in turn; then they come again."""


class Home:
    """A stream, and the graphs that were recorded on it; they are there as long as it is."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.graphs: list[torch.cuda.CUDAGraph] = []


HOMES: WeakValueDictionary[tuple[int, int], Home] = WeakValueDictionary()
"""Those that are in use, by device and stream."""


def free_home() -> Home:
    """Return a stream without graphs; where none is left, one whose graphs are kept for longer."""
    home = None
    for _ in range(NUM_STREAMS):
        stream = torch.cuda.Stream()
        key = stream.device_index, stream.cuda_stream
        home = HOMES.get(key)
        if home is None:
            home = HOMES[key] = Home(stream)
            return home
    assert home is not None
    return home


class Graphs:
    """The graphs of one batch, by name."""

    def __init__(self) -> None:
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self.home: Home | None = None

    def clear(self) -> None:
        """Forget all of them: the next ones are recorded elsewhere."""
        self.graphs, self.home = {}, None

    def do(self, name: str, work: Callable[[], None], gates: tuple[Tensor, ...]) -> None:
        """Do some work as a graph, which is recorded when its name is new.

        `gates` tell which texts get on with it, and are 0 meanwhile.
        """
        if name not in self.graphs:
            home = self.home = self.home or free_home()
            self.graphs[name] = recorded(work, gates, home.stream)
            home.graphs.append(self.graphs[name])
        self.graphs[name].replay()


def recorded(
    work: Callable[[], None], gates: tuple[Tensor, ...], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """Return work as one graph; it is done twice before, to get kernels and workspaces ready."""
    graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    before = [gate.clone() for gate in gates]
    try:
        for gate in gates:
            gate.zero_()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        here.wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            work()
    finally:
        torch.cuda.set_stream(here)  # which a recording that fails does not leave
        for gate, old in zip(gates, before, strict=True):
            gate.copy_(old)
    return graph
