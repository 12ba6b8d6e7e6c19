"""The engine's thread: who waits, who leaves, what breaks, and texts that depend on none of it."""

import asyncio
import gc
import json
import random
import re
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests import tiny
from tests.serve.running import serving, tiny_model, wait_for

from ssdlm.serve import app
from ssdlm.serve.completions import read_completion
from ssdlm.serve.delivery import EventStream


class Held:
    """The engine's thread, which does a turn when it is told to."""

    def __init__(self, server):
        self.worker, self.turns, self.num_turns = server.server.worker, threading.Semaphore(0), 0
        self.is_free = threading.Event()
        self.turn = self.worker.schedule.turn

    def __enter__(self):
        self.worker.schedule.turn = self.wait_and_turn
        return self

    def __exit__(self, *error):
        self.is_free.set()
        del self.worker.schedule.turn

    def wait_and_turn(self):
        while not self.is_free.is_set() and not self.turns.acquire(timeout=0.01):
            pass
        jobs = self.turn()
        self.num_turns += 1
        return jobs

    def step(self, count=1):
        """Let it do so many turns; before each it looks at what has come, and who has left."""
        before = self.num_turns
        for _ in range(count):
            self.turns.release()
        wait_for(lambda: self.num_turns >= before + count)


class Client:
    """A client that sends its request at once, and reads when it is asked to."""

    def __init__(self, server, path="/v1/completions", **body):
        content = json.dumps({"stream": True} | body).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        self.socket.sendall(head.encode() + content)

    def read(self):
        """All that the server says."""
        with self.socket:
            return b"".join(iter(lambda: self.socket.recv(1 << 16), b"")).decode()

    def leave(self):
        self.socket.close()


def arrive(server, count, **body):
    """So many clients, whose requests have all come."""
    before = len(server.server.worker.open)
    clients = [Client(server, **body) for _ in range(count)]
    wait_for(lambda: len(server.server.worker.open) == before + count)
    return clients


def test_a_client_that_leaves_frees_its_row_by_the_next_pass(server):
    worker = server.server.worker
    with Held(server) as engine:
        (client,) = arrive(server, 1, prompt="ab", max_tokens=500)
        engine.step(3)
        (job,) = worker.rows
        client.leave()
        wait_for(lambda: job.is_over)
        engine.step()
        assert worker.schedule.num_jobs == 0
        wait_for(lambda: not worker.rows)
    assert not worker.open


def test_a_client_that_leaves_without_a_stream_frees_its_row_too(server):
    worker = server.server.worker
    with Held(server) as engine:
        (client,) = arrive(server, 1, prompt="ab", max_tokens=500, stream=False)
        engine.step(3)
        assert len(worker.rows) == 1
        client.leave()
        wait_for(lambda: not worker.open)
        engine.step()
        wait_for(lambda: not worker.rows)


def test_one_who_waits_and_leaves_is_never_begun():
    with serving() as server, Held(server) as engine:
        worker = server.server.worker
        others = arrive(server, worker.at_once, prompt="ab", max_tokens=400)
        (client,) = arrive(server, 1, prompt="cd", max_tokens=400)
        engine.step(2)
        assert len(worker.rows) == worker.at_once and worker.num_waiting == 1
        client.leave()
        wait_for(lambda: worker.num_waiting == 0)
        for other in others[:2]:
            other.leave()
        wait_for(lambda: len(worker.open) == worker.at_once - 2)
        engine.step(worker.at_once)
        assert {job.request.prompt for job in worker.rows} == {"ab"}
        assert len(worker.rows) == worker.at_once - 2
        for other in others[2:]:
            other.leave()


def test_a_full_queue_is_said_with_a_time_to_come_back():
    with serving(limits={"max_queue": 2}) as server:
        worker = server.server.worker
        with Held(server):
            clients = arrive(server, worker.at_once + 2, prompt="ab")
            answer = server.post("/v1/completions", {"prompt": "ab"})
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["code"] == "queue_full"
            assert server.get("/health").status_code == 200
        assert all("[DONE]" in client.read() for client in clients)
        server.complete(prompt="ab")


def test_one_with_many_texts_does_not_keep_others_waiting():
    with serving() as server, Held(server) as engine:
        worker = server.server.worker
        (many,) = arrive(server, 1, prompt="ab", n=32, max_tokens=30)
        engine.step()
        (few,) = arrive(server, 1, prompt="cd", max_tokens=6)
        for _ in range(500):
            engine.step()
            if "cd" not in {ticket.prompts[0] for ticket in worker.open}:
                break
        written = [row for ticket in worker.open for row in ticket.rows if row.text is not None]
        assert not written  # a place was kept, though the large one would have filled them all
        assert "[DONE]" in few.read()
        many.leave()


def test_those_who_wait_are_told_how_many_are_before_them(monkeypatch):
    monkeypatch.setattr("ssdlm.serve.worker.TELL_EVERY", 0.0)
    with serving() as server:
        worker = server.server.worker
        with Held(server) as engine:
            others = arrive(server, worker.at_once + 1, prompt="ab", max_tokens=30)
            (client,) = arrive(server, 1, path="/v1/generate", prompt="cd")
            engine.step(2)
        text = client.read()
        ahead = [int(place) for place in re.findall(r'"queued", "position": (\d+)', text)]
        assert ahead[0] == 2 and ahead[-1] == 0 and ahead == sorted(ahead, reverse=True)
        assert '"event": "done"' in text
        assert all("[DONE]" in other.read() for other in others)


class Stalled:
    """Something of a server that does not go on before it is told to."""

    def __init__(self, monkeypatch, owner, name):
        self.come, self.go, self.work = threading.Event(), threading.Event(), getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args, **more):
        self.come.set()
        self.go.wait(8)
        return self.work(*args, **more)


@pytest.mark.parametrize("name", ["parse", "encode"])
def test_health_is_told_while_a_request_is_being_read(server, monkeypatch, name):
    owner = server.model.tokenizer if name == "encode" else app
    stalled = Stalled(monkeypatch, owner, name)
    (client, other) = (Client(server, prompt="ab", max_tokens=6) for _ in range(2))
    assert stalled.come.wait(20)
    try:
        assert server.get("/health").status_code == 200
        assert not stalled.go.is_set() and not server.server.worker.open
        other.leave()
    finally:
        stalled.go.set()
    assert "[DONE]" in client.read()


def test_clients_that_leave_while_they_are_prepared_hold_nothing():
    with serving(limits={"max_queue": 0}) as server, pytest.MonkeyPatch.context() as patch:
        worker = server.server.worker
        stalled = Stalled(patch, worker.engine, "prepare")
        clients = arrive(server, 2, prompt=["ab"] * (worker.at_once // 2))
        assert stalled.come.wait(20)  # the engine's thread has one of them, and the other waits
        tickets = list(worker.open)
        assert server.post("/v1/completions", {"prompt": "ab"}).status_code == 429
        for client in clients:
            client.leave()
        wait_for(lambda: not worker.open)
        wait_for(lambda: not any(ticket.prompts or ticket.options for ticket in tickets))
        (next_one,) = arrive(server, 1, prompt="ab", max_tokens=6)
        stalled.go.set()
        assert "[DONE]" in next_one.read()
        assert not any(ticket.jobs for ticket in tickets)


HOSTILE = {
    "spaces": {"prompt": " " * 10**6},
    "one emoji": {"prompt": "\U0001f600" * 80_000},
    "a suffix of spaces": {"prompt": "ab", "suffix": " " * 10**6},
    "empty prompts": {"prompt": [""] * 250_000},
    "prompts of one token": {"prompt": [[1]] * 200_000},
    "small lists": {"prompt": "ab", "json_schema": {"enum": [[]] * 200_000}},
    "block lengths": {"prompt": "ab", "B": [1] * 300_000},
    "weights": {"prompt": "ab", "lam": [1] * 300_000},
    "pins": {"prompt": "ab", "pin": {str(place): "a" for place in range(70_000)}},
    "stop strings": {"prompt": "ab", "stop": ["a"] * 200_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_far_too_much_is_refused_before_any_token_is_counted(server, monkeypatch, name):
    encode, lengths = server.model.tokenizer.encode, []

    def count(text):
        lengths.append(len(text))
        return encode(text)

    monkeypatch.setattr(server.model.tokenizer, "encode", count)
    for path in ("/v1/completions", "/v1/generate"):
        assert re.search(
            "more than|characters|values", server.refusal(path, **HOSTILE[name])["message"]
        )
    assert sum(lengths) <= 4


def test_brackets_within_a_text_are_no_lists(server):
    answer = server.complete(prompt='[{"\\' * 15_000, max_tokens=0, echo=True)
    assert answer["choices"][0]["text"] == '[{"\\' * 15_000


def test_a_client_that_does_not_read_is_given_up():
    with serving(limits={"max_unread": 3}) as server, Held(server) as engine:
        (client,) = arrive(server, 1, prompt="ab", max_tokens=300)
        engine.step()
        (ticket,) = server.server.worker.open
        # The event loop does nothing for a while, as if its writes were stuck.
        ticket.mailbox.loop.call_soon_threadsafe(threading.Event().wait, 2.0)
        while not ticket.is_over:
            engine.step()
            assert len(ticket.mailbox.letters) < 8
        assert "does not read" in client.read()


def test_unread_drafts_are_counted_by_their_bytes():
    limits = {"max_unread_bytes": 200_000}
    asked = {"path": "/v1/generate", "prompt": "ab", "length": 200, "B": 200, "grid": "uniform"}
    with serving(limits=limits) as server, Held(server) as engine:
        (client,) = arrive(server, 1, **asked, T=90, candidates=20)
        engine.step()
        (ticket,) = server.server.worker.open
        ticket.mailbox.loop.call_soon_threadsafe(threading.Event().wait, 2.0)
        sizes = []
        while not ticket.is_over:
            engine.step()
            sizes.append(ticket.mailbox.num_unread)
        assert len(sizes) < 10 and max(sizes) < 700_000
        assert "does not read" in client.read()
    with serving(limits=limits) as server:
        drafts = server.events(**{**asked, "path": "/v1/generate"}, T=20)
        assert drafts[-1]["event"] == "done"


def test_long_prompts_are_read_in_turns_between_which_others_get_on(monkeypatch):
    monkeypatch.setattr("ssdlm.serve.worker.MOST_READ", 60)
    with serving() as server, Held(server) as engine:
        numbers, turn = [], engine.turn

        def count_and_turn():
            numbers.append(len(server.server.worker.rows))
            return turn()

        engine.turn = count_and_turn
        clients = arrive(server, 1, prompt="ab", max_tokens=100)
        engine.step()
        clients += arrive(server, 4, prompt="a" * 50, max_tokens=100)
        engine.step(4)
        assert list(dict.fromkeys(numbers)) == [1, 3, 5]
        for client in clients:
            client.leave()


def test_a_client_that_takes_nothing_is_given_up():
    async def stall(message):
        if message["type"] == "http.response.body":
            await asyncio.sleep(100)

    async def stay():
        await asyncio.sleep(100)

    async def ask(server):
        asked = read_completion({"prompt": "ab", "stream": True}, server.served)
        server.worker.submit(asked.ticket)
        await asked.ticket.mailbox.get()
        stream = EventStream(server.worker, asked)
        await asyncio.wait_for(stream({"type": "http"}, stay, stall), 30)
        return asked.ticket

    with serving(limits={"send_seconds": 0.2}) as server:
        ticket = asyncio.run(ask(server.server))
        assert ticket.is_over and ticket not in server.server.worker.open
        server.complete(prompt="ab")


def test_texts_that_are_whole_leave_room_in_the_queue():
    with serving(limits={"max_queue": 0}) as server:
        worker = server.server.worker
        with Held(server) as engine:
            (client,) = arrive(server, 1, prompt="ab", n=worker.at_once, max_tokens=6)
            assert server.post("/v1/completions", {"prompt": "ab"}).status_code == 429
            (ticket,) = worker.open
            while ticket.num_whole == 0:
                engine.step()
        assert ticket.num_left < worker.at_once
        assert "[DONE]" in client.read()


def test_nothing_of_a_request_waits_for_the_garbage_collector(server, monkeypatch):
    worker, kept = server.server.worker, []
    submit = worker.submit

    def remember(ticket):
        kept.append(weakref.ref(ticket))
        submit(ticket)

    monkeypatch.setattr(worker, "submit", remember)
    gc.disable()
    try:
        server.complete(prompt="ab", n=2, best_of=3, logprobs=1, must=["ab"])
        server.chunks(prompt="ab", logprobs=1)
        server.events(prompt="ab", candidates=1)
        server.refusal(prompt=[1, 99])
        (client,) = arrive(server, 1, prompt="ab", max_tokens=400)
        client.leave()
        wait_for(lambda: len(kept) == 5 and not any(ticket() for ticket in kept[:4]))
    finally:
        gc.enable()

    def is_kept():
        gc.collect()  # what a cut connection leaves in the web framework may be a circle
        return kept[4]() is not None

    wait_for(lambda: not is_kept())
    assert not any(ticket() for ticket in kept)


def test_what_breaks_in_the_engine_breaks_no_other_request(server, caplog):
    worker = server.server.worker
    original = worker.engine.finish

    def finish(job):
        if job.request.prompt == "bomb":
            raise RuntimeError("out of everything")
        return original(job)

    worker.engine.finish = finish
    try:
        answer = server.post("/v1/completions", {"prompt": "bomb"})
        assert answer.status_code == 500
        assert "out of everything" not in answer.text and "Traceback" not in answer.text
        assert "out of everything" in caplog.text
        text = server.model.generate("ab").text
        assert server.complete(prompt="ab")["choices"][0]["text"] == text
        assert server.get("/health").status_code == 200
    finally:
        del worker.engine.finish
    assert worker.is_well


def test_a_server_whose_engine_keeps_failing_says_that_it_is_ill(caplog):
    with serving() as server:
        worker = server.server.worker

        def fail(job):
            raise RuntimeError("broken")

        worker.engine.finish = fail
        for _ in range(3):
            assert server.post("/v1/completions", {"prompt": "ab"}).status_code == 500
        assert server.get("/health").status_code == 503
        del worker.engine.finish
        server.complete(prompt="ab")
        assert server.get("/health").status_code == 200
    assert "broken" in caplog.text


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    """A server with a guide."""
    folder = tiny.save_classifier(tmp_path_factory.mktemp("guide"))
    with serving(tiny_model(), folders={"mood": str(folder)}) as running:
        running.complete(prompt="ab", control="mood=positive")
        yield running


def test_texts_under_load_are_those_of_the_library(guided):
    """Mixed lengths, controls, constraints, modes; some leave in the middle; none is mixed up."""
    folder = guided.server.served.guides.folders["mood"]
    kinds = [
        {},
        {"must": ["ab"]},
        {"must_not": ["a"]},
        {"control": "mood=positive:500"},
        {"mode": "autoregressive"},
        {"mode": "speculative"},
        {"grid": "staggered", "T": 6, "width": 3.0},
        {"stop": ["e"]},
    ]
    rng = random.Random(0)
    asked = []
    for number in range(24):
        prompt = "".join(rng.choices("abcdefgh ", k=rng.randint(1, 9))) + "x"
        body = {"prompt": prompt, "seed": number, "max_tokens": rng.randint(1, 14)}
        asked.append(body | kinds[number % len(kinds)] | {"stream": rng.random() < 0.5})
    leaving = set(rng.sample(range(24), 5))

    def ask(number):
        body = asked[number]
        if number in leaving:
            client = Client(guided, **body | {"stream": True})
            client.socket.recv(1)
            client.leave()
            return None
        if body["stream"]:
            chunks = guided.chunks(**body)
            return "".join(c["text"] for chunk in chunks for c in chunk["choices"])
        return guided.complete(**body)["choices"][0]["text"]

    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(ask, range(24)))
    guided.settle()
    for number, (body, text) in enumerate(zip(asked, texts, strict=True)):
        if number in leaving:
            continue
        changes = {n: v for n, v in body.items() if n not in ("prompt", "max_tokens", "stream")}
        if "control" in changes:
            changes["control"] = f"{folder}=positive:500"
        expected = guided.model.generate(body["prompt"], length=body["max_tokens"], **changes)
        assert text == expected.text, body


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A server whose guide has a label that no text can have."""
    folder = tiny.save_stranger(tmp_path_factory.mktemp("guide"), impossible="high")
    with serving(folders={"mood": str(folder)}) as running:
        yield running


def test_only_the_text_fails_of_which_every_particle_is_impossible(strange):
    asked = {"prompt": "no", "control": "mood=high"}
    beside = [Client(strange, prompt="a b", max_tokens=60) for _ in range(2)]
    for path in ("/v1/completions", "/v1/generate"):
        error = strange.refusal(path, **asked)
        assert error["message"].startswith("all 8 particles after 'no' score -inf by mood")
        assert error["type"] == "invalid_request_error"
    streamed = Client(strange, **asked).read()
    assert re.search(r'data: \{"error": \{"message": "all 8 particles .* -inf by mood', streamed)
    assert "[DONE]" not in streamed
    for client in beside:
        assert "[DONE]" in client.read()
    assert strange.server.worker.num_faults == 0
    assert strange.complete(prompt="no", control="mood=low")["choices"][0]["text"]
