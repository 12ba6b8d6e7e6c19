"""What a client is told that cannot be served, in the form that OpenAI's clients read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""What OpenAI calls errors by their status; others of a client are invalid_request_error."""
LONGEST = 1000
"""Characters of a message."""


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: object,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        super().__init__(text if len(text) <= LONGEST else f"{text[:LONGEST]} ...")
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def call_length(self, name: str) -> None:
        """Let the message call the length as a form does."""
        self.args = (re.sub(r"\blength(?==\d)|(?<=raise )length\b", name, str(self)),)

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = KINDS.get(self.status, kind)
        about = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": about}

    def response(self) -> Response:
        """Return the answer."""
        return json_response(self.to_json(), self.status, self.headers)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a value as JSON in ASCII, so that no half of a character can break it."""
    return Response(json.dumps(value), status, headers, "application/json")
