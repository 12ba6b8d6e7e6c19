"""One line per request: for people, or as JSON.  gate -> [log]"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from ssdlm.serve.tickets import Ticket
from ssdlm.values import escape

COLOURS = {2: "green", 3: "cyan", 4: "yellow", 5: "red"}
ADDRESS = re.compile(r"[0-9A-Za-z.:%-]+")
"""A client as it is logged bare; what else a proxy may have sent is quoted."""


class RequestLog:
    """Writes a line for every request that was answered; prompts only if asked.

    `file` is what one can print to; standard error without it.
    """

    def __init__(
        self, *, is_json: bool = False, has_prompts: bool = False, file: Any = None
    ) -> None:
        self.is_json, self.has_prompts = is_json, has_prompts
        self.file = sys.stderr if file is None else file
        self.console: Any = None
        if self.file.isatty() and not is_json:
            from rich.console import Console

            self.console = Console(file=self.file, highlight=False)

    def answered(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Write the line of one request."""
        client = scope.get("client")
        about: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "client": client[0][:200] if client else "",
            "method": scope["method"][:200],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 3),
        }
        ticket: Ticket | None = scope["state"].get("ticket")
        if ticket is not None:
            about |= {"texts": ticket.num_rows, "tokens": ticket.num_tokens}
            about["passes"] = sum(sum(job.passes) for job in ticket.jobs)
            if ticket.began is not None:
                about["first_draft"] = round(ticket.began - ticket.came, 3)
            about["is_whole"] = ticket.ended is not None
            if self.has_prompts:
                about["prompts"] = [str(prompt) for prompt in ticket.prompts]
        self.write(about, status)

    def write(self, about: Mapping[str, Any], status: int) -> None:
        """Write what is known about a request."""
        if self.is_json:
            print(as_json(about), file=self.file, flush=True)
            return
        client = about["client"]
        client = client if ADDRESS.fullmatch(client) else as_json(client)
        words = [about["time"], client, about["method"], as_json(about["path"])]
        words += [str(status), f"{about['seconds']:.3f} s"]
        others = list(about)[6:]
        words += [f"{name}={as_json(about[name])}" for name in others]
        line = " ".join(words)
        if self.console is None:
            print(line, file=self.file, flush=True)
        else:
            self.console.print(
                line, style=COLOURS.get(status // 100, ""), markup=False, soft_wrap=True
            )


def as_json(value: Any) -> str:
    """Return a value as JSON without any control character, so that it is one line everywhere."""
    return json.dumps(value).replace("\x7f", "\\u007f")


class LineFormatter(logging.Formatter):
    """Messages of libraries, escaped; the lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(map(escape, super().format(record).split("\n")))


class JsonFormatter(logging.Formatter):
    """Messages of libraries as JSON, too."""

    def format(self, record: logging.LogRecord) -> str:
        about = {"time": self.formatTime(record), "level": record.levelname.lower()}
        about["message"] = record.getMessage()
        if record.exc_info:
            about["error"] = self.formatException(record.exc_info)
        return as_json(about)


def set_up_logging(*, is_json: bool) -> None:
    """Let what goes wrong inside be written to standard error, a line each."""
    handler = logging.StreamHandler()
    plain = LineFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonFormatter() if is_json else plain)
    for name in ("ssdlm.serve", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
