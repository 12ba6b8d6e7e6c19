"""Graphs that are recorded, and who goes with whom; on a CPU by stand-ins for torch's."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from ssdlm.engine import recording
from ssdlm.engine.recording import HOMES, Graphs


class Stream:
    """One of a few streams, handed out in turn as torch does."""

    device_index = 0
    given = 0

    def __init__(self):
        Stream.given += 1
        self.cuda_stream = Stream.given % recording.NUM_STREAMS

    def wait_stream(self, other):
        pass


class Graph:
    """A graph that notes, when it goes, that the workspace of its stream is gone."""

    dropped: set[int]
    stream: int | None = None

    def replay(self):
        assert self.stream not in self.dropped, "a workspace was dropped that this graph uses"

    def __del__(self):
        self.dropped.add(self.stream)


@pytest.fixture
def streams(monkeypatch, unchecked):
    """Stand-ins for what records; yields the streams on which work was done or recorded."""
    used, Stream.given, Graph.dropped, now = [], 0, set(), [Stream()]

    @contextmanager
    def on(stream):
        now.append(stream)
        used.append(stream.cuda_stream)
        yield
        now.pop()

    @contextmanager
    def graph(found, stream):
        found.stream = stream.cuda_stream
        Graph.dropped.discard(found.stream)
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(recording, "NUM_STREAMS", 3)
    for name, stand_in in {
        "Stream": Stream, "CUDAGraph": Graph, "stream": on, "graph": graph,
        "current_stream": lambda: now[-1], "set_stream": lambda stream: now.append(stream),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    yield used
    gc.collect()
    assert not HOMES


def nothing():
    pass


def test_work_is_done_twice_on_the_stream_that_records_it_and_then_replayed(streams):
    done, gates = [], torch.tensor([1, 0, 1])
    graphs = Graphs()
    for _ in range(3):
        graphs.do("step", lambda: done.append(gates.tolist()), (gates,))
    assert done == [[0, 0, 0]] * 3  # a stand-in does the work where it is recorded too
    assert gates.tolist() == [1, 0, 1]
    assert list(graphs.graphs) == ["step"]
    assert set(streams) == {graphs.home.stream.cuda_stream}


def test_gates_are_open_again_where_a_recording_fails(streams):
    gates, more, graphs = torch.tensor([1, 0]), torch.tensor([3]), Graphs()

    def fail():
        raise RuntimeError("no memory")

    here = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="no memory"):
        graphs.do("step", fail, (gates, more))
    assert gates.tolist() == [1, 0] and more.tolist() == [3]
    assert not graphs.graphs
    assert torch.cuda.current_stream() is here


def test_a_batch_that_goes_drops_no_workspace_that_another_uses(streams):
    first, second = Graphs(), Graphs()
    for graphs in (first, second):
        for name in ("step", "contexts"):
            graphs.do(name, nothing, ())
    assert first.home is not second.home
    homes = [weakref.ref(graphs.home) for graphs in (first, second)]
    assert [len(home().graphs) for home in homes] == [2, 2]
    del first, graphs
    gc.collect()
    assert homes[0]() is None and homes[1]() is not None
    second.do("step", nothing, ())
    second.clear()
    assert homes[1]() is None and not second.graphs
    second.do("step", nothing, ())


def test_graphs_of_a_stream_that_several_batches_have_go_together(streams):
    batches = [Graphs() for _ in range(5)]  # and three streams
    for graphs in batches:
        graphs.do("step", nothing, ())
    shared = {id(graphs.home) for graphs in batches}
    assert len(shared) == 3
    while batches:
        batches.pop(0)
        gc.collect()
        for graphs in batches:
            graphs.do("step", nothing, ())
            del graphs
