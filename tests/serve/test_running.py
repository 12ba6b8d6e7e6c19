"""Connections that want too much, and how a server ends."""

import errno
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest
from tests.serve.running import Running, serving, tiny_model, wait_for

from ssdlm.cli import main
from ssdlm.serve.limits import OWN_DESCRIPTORS, Limits
from ssdlm.serve.running import STUCK_SECONDS, listen

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
QUICK = {"header_seconds": 0.3, "body_seconds": 0.3, "idle_seconds": 1}


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.fixture(scope="module")
def quick():
    """A server that waits for nobody."""
    with serving(limits=QUICK) as running:
        yield running


def test_a_connection_that_says_nothing_is_closed(quick):
    with connect(quick.port) as connection:
        assert read_all(connection) == b""


def test_headers_that_come_too_slowly_are_not_waited_for(quick):
    with connect(quick.port) as connection:
        connection.sendall(HEAD[:20])
        assert read_all(connection) == b""


def test_a_second_request_has_its_time_too(quick):
    with connect(quick.port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b'"ok"}'):
            answer += connection.recv(1 << 16)
        connection.sendall(HEAD[:20])
        began = time.monotonic()
        assert read_all(connection) == b""
        assert time.monotonic() - began < 8  # and not that of a connection between requests


def test_a_body_that_comes_too_slowly_is_not_waited_for(quick):
    with connect(quick.port) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408") and b"send it at once" in answer


def test_a_body_that_is_broken_off_is_nobodys_fault(quick):
    with connect(quick.port) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n{")
    assert quick.get("/health").status_code == 200
    assert not quick.server.worker.open


def test_a_long_text_outlives_the_time_for_headers(quick):
    text = quick.model.generate("ab", length=500).text
    began = time.monotonic()
    assert quick.complete(prompt="ab", max_tokens=500)["choices"][0]["text"] == text
    assert time.monotonic() - began > QUICK["header_seconds"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 200_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        b"\r\n\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ],
)
def test_what_is_no_http_is_refused_or_closed(quick, raw):
    with connect(quick.port) as connection:
        try:
            connection.sendall(raw)
            answer = read_all(connection)
        except ConnectionError:
            answer = b""
    assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d", answer)
    assert quick.get("/health").status_code == 200


def test_one_connection_too_many_is_closed():
    with serving(limits={"max_connections": 3}) as server:
        idle = [connect(server.port) for _ in range(3)]
        wait_for(lambda: len(server.uvicorn.server_state.connections) == 3)
        with connect(server.port) as one_more:
            assert read_all(one_more) == b""
        for connection in idle:
            connection.close()
        wait_for(lambda: not server.uvicorn.server_state.connections)
        assert server.get("/health").status_code == 200


GET = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"


def deaf(port: int, requests: bytes) -> socket.socket:
    """A connection that sends and never reads, and whose kernel takes little for it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(requests)
    return connection


def num_stuck(server: Running) -> int:
    """How many connections have something left to send."""
    connections = list(server.uvicorn.server_state.connections)
    return sum(one.transport.get_write_buffer_size() > 0 for one in connections)


def test_a_client_that_does_not_take_its_answers_is_closed():
    limits = {"send_seconds": 0.5, "idle_seconds": 1}
    with serving(limits=limits) as server:
        # The last one ends with its answer, and waits for the rest of it to be taken.
        last = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        connections = [deaf(server.port, GET * 300), deaf(server.port, GET * 299 + last)]
        wait_for(lambda: num_stuck(server) == 2)
        wait_for(lambda: not server.uvicorn.server_state.connections)
        for connection in connections:
            connection.close()
        assert server.get("/health").status_code == 200


def test_clients_that_do_not_read_make_room_for_others():
    with serving(limits={"max_connections": 4}) as server:
        connections = [deaf(server.port, GET * 300) for _ in range(4)]
        wait_for(lambda: num_stuck(server) == 4)
        time.sleep(STUCK_SECONDS)
        assert server.get("/health").status_code == 200
        wait_for(lambda: num_stuck(server) == 3)
        for connection in connections:
            connection.close()


def test_only_so_many_requests_may_come_before_an_answer(server):
    ask = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(server.port) as connection:
        connection.sendall(ask * 20 + ask.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert read_all(connection).count(b"200 OK") == 21
    with connect(server.port) as connection:
        connection.sendall(ask * 1500)
        assert read_all(connection).count(b"200 OK") < 1500


def test_without_file_descriptors_accepting_pauses_and_a_line_says_so(monkeypatch):
    accept, failures, said = socket.socket.accept, [], []

    def fail(self):
        failures.append(self)
        raise OSError(errno.EMFILE, "Too many open files")

    for name in ("ssdlm.serve", "asyncio"):
        monkeypatch.setattr(
            logging.getLogger(name), "error", lambda *words, **_: said.append(words)
        )
    with serving() as server:
        monkeypatch.setattr(socket.socket, "accept", fail)
        with connect(server.port) as connection:
            wait_for(lambda: failures)
            time.sleep(1.2)
            assert len(failures) <= 4
            monkeypatch.setattr(socket.socket, "accept", accept)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200 OK" in connection.recv(1 << 16)
    ((message, reason),) = said
    assert "raise ulimit -n" in message and reason == "Too many open files"


def test_connections_are_as_many_as_files_may_be_open(monkeypatch):
    kept = [(1024, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: kept[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: kept.append(pair))
    limits = Limits()
    assert limits.within_descriptors().max_connections == 1024 - OWN_DESCRIPTORS
    kept.append((256, resource.RLIM_INFINITY))
    assert limits.within_descriptors() == limits
    assert kept[-1] == (1024 + OWN_DESCRIPTORS, resource.RLIM_INFINITY)
    assert limits.within_descriptors() == limits
    kept.append((64, 100))
    with pytest.raises(ValueError, match="ulimit -n is 100, and a server needs"):
        limits.within_descriptors()


@pytest.fixture
def started(tmp_path):
    """Start `ssdlm serve` on a tiny model, in a process of its own."""
    tiny_model().save_pretrained(tmp_path / "tiny")
    command = [sys.executable, "-m", "ssdlm", "serve", "--model", str(tmp_path / "tiny")]
    processes = []

    def start(*more: str) -> tuple[subprocess.Popen[str], int]:
        words = [*command, "--port", "0", "--guides", "", *more]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ)
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.fullmatch(r"serving tiny at http://127\.0\.0\.1:(\d+)/\n", line):
                return process, int(found[1])
        raise AssertionError("it did not start")

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_sigterm_lets_texts_end_and_cuts_off_those_that_do_not(started):
    process, port = started("--grace", "4", "--max-length", "100000", "--log-json")
    slow, fast = connect(port), connect(port)
    for connection, length in ((slow, 90_000), (fast, 8)):
        body = json.dumps({"prompt": "ab", "max_tokens": length, "stream": True}).encode()
        connection.sendall(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200 OK" in connection.recv(1 << 16)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert b"data: [DONE]" in read_all(fast)
    assert b"the server is shutting down" in read_all(slow)
    assert process.wait(20) == 0
    assert time.monotonic() - began < 15
    for connection in (slow, fast):
        connection.close()
    lines = [json.loads(line) for line in process.stderr if line.startswith("{")]
    assert sorted(line["is_whole"] for line in lines) == [False, True]


def test_a_server_that_ends_takes_nothing_on():
    with serving() as server:
        server.server.worker.close()
        answer = server.post("/v1/completions", {"prompt": "ab"})
        assert answer.status_code == 503
        assert server.get("/health").status_code == 503


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "give --api-key-file"),
        (["--host", "192.168.0.1"], "--allow-anonymous"),
        (["--port", "70000"], "--port=70000 is out of range"),
        (["--max-queue", "-1"], "--max-queue=-1 is too low"),
        (["--max-controls", "0"], "--max-controls=0 is too low"),
        (["--max-length", "0"], "--max-length=0 is too low"),
        (["--grace", "-1"], "--grace=-1.0 is out of range"),
        (["--max-compile", "0"], "--max-compile=0.0 is out of range"),
        (["--guides", "sentiment,=x"], "is not NAME or NAME=FOLDER"),
        (["--api-key-file", "/nowhere/key"], "/nowhere/key"),
        (["--api-key-file=--"], "No such file or directory: '--'"),
        (["--cors", "example.org"], "--cors 'example.org' is no website"),
        (["--forwarded-allow-ips", ""], "--forwarded-allow-ips '' is neither"),
        (["--forwarded-allow-ips", "127.0.0.1,proxy"], "'proxy' is neither an address"),
        (["--forwarded-allow-ips", "10.0.0.1/8"], "'10.0.0.1/8' is neither an address"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_loaded(words, message, capsys):
    assert main(["serve", *words, "--model", "/nowhere/model"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert message in said


def test_an_address_in_use_is_said(capsys, tmp_path):
    tiny_model().save_pretrained(tmp_path / "tiny")
    with serving() as server:
        words = ["serve", "--model", str(tmp_path / "tiny"), "--guides", ""]
        assert main([*words, "--port", str(server.port)]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_an_address_that_is_none_is_named():
    with pytest.raises(ValueError, match=r"--host 256\.0\.0\.1 cannot be found .*give an address"):
        listen("256.0.0.1", 0)


def test_the_fixture_ends_what_it_starts():
    with serving() as server:
        assert isinstance(server, Running)
        thread = server.server.worker.thread
        assert thread.is_alive()
    assert not thread.is_alive()
