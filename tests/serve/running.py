"""A server in this process, on a tiny model: real sockets, its own thread, the test's own hands."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from tests import tiny

from ssdlm import SSDLM, GenerateOptions
from ssdlm.serve.app import Server
from ssdlm.serve.fields import Served
from ssdlm.serve.guides import Guides
from ssdlm.serve.limits import Limits
from ssdlm.serve.log import RequestLog
from ssdlm.serve.running import GracefulServer, listen, uvicorn_for

OPTIONS = GenerateOptions(
    length=12, B=(6,), T=6, grid="sliding", width=1.0, nucleus="network", returns="w_0"
)


def tiny_model(**changes: Any) -> SSDLM:
    """A model that writes a letter a pass, in a moment."""
    return SSDLM(tiny.block(), tiny.tokenizer(), OPTIONS.change(**changes))


@dataclass
class Running:
    """A server that runs, and what is needed to talk to it."""

    server: Server
    uvicorn: GracefulServer
    port: int
    log: io.StringIO

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> SSDLM:
        return self.server.served.model

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, trust_env=False, **more)

    def complete(self, **body: Any) -> dict[str, Any]:
        """The answer to a request for completions, which must be one."""
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
        """What is wrong with a request, which must be refused as a client's mistake."""
        answer = self.post(path, body)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]

    def chunks(self, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
        """The messages of a stream of completions, which must end with [DONE]."""
        lines = self.post(path, body | {"stream": True}).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line[6:]) for line in lines[:-2] if not line.startswith(":")]

    def events(self, path: str = "/v1/generate", **body: Any) -> list[dict[str, Any]]:
        """The events of a native stream, or of a response."""
        answer = self.post(path, body | {"stream": True})
        assert answer.status_code == 200, answer.text
        texts = [text for text in answer.text.split("\n\n") if text and not text.startswith(":")]
        return [parse_event(text) for text in texts]

    def is_idle(self) -> bool:
        return not any(
            worker.rows or worker.open or worker.waiting or worker.schedule.num_jobs
            for worker in self.server.workers.values()
        )

    def settle(self, seconds: float = 20) -> None:
        """Wait until nothing is being written."""
        wait_for(self.is_idle, seconds)


def parse_event(text: str) -> dict[str, Any]:
    """An event, whose name stands in its data, too."""
    name, data = text.split("\n")
    found = json.loads(data.removeprefix("data: "))
    assert name == f"event: {found.get('event') or found['type']}"
    return found


def wait_for(is_true: Any, seconds: float = 20) -> None:
    """Wait until something is true, but not for ever."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


@contextmanager
def serving(
    model: SSDLM | None = None,
    *,
    folders: dict[str, str] | None = None,
    limits: dict[str, Any] | None = None,
    others: dict[str, SSDLM] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server for a while."""
    bounds = Limits(**{"grace": 5.0} | (limits or {}))
    served = [
        Served(one, name, Guides(folders or {}), bounds)
        for name, one in {"tiny": model or tiny_model(), **(others or {})}.items()
    ]
    log = io.StringIO()
    server = Server(*served, log=RequestLog(file=log, **settings.pop("log", {})), **settings)
    socket = listen("127.0.0.1", 0)
    found = uvicorn_for(server)
    thread = threading.Thread(target=found.run, args=([socket],))
    thread.start()
    wait_for(lambda: found.started)
    try:
        yield Running(server, found, socket.getsockname()[1], log)
    finally:
        found.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
