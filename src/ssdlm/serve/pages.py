"""What a browser gets: the page, its files, and the fields of the native form as a table.

All of it is inside the package: nothing is fetched from elsewhere, and nothing may be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from ssdlm.serve.errors import ApiError
from ssdlm.values import quote

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Pages:
    """The static files, by name; they are read anew when they change."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Return the files that are served."""
        return sorted(path.name for path in self.folder.iterdir() if path.suffix in TYPES)

    def response(self, request: Request, name: str) -> Response:
        """Return a file, or that the client has it already."""
        if name not in self.names():
            raise ApiError(404, f"there is no page {quote(name)}")
        path = self.folder / name
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = HEADERS | {"etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, TYPES[path.suffix])


def docs_page(
    paths: Mapping[str, str],
    native: Mapping[str, Any],
    completion: Mapping[str, Any],
    chat: Mapping[str, Any],
    response: Mapping[str, Any],
) -> Response:
    """Return the paths, the fields of the native form and those of OpenAI's forms, as a page."""
    listed = "\n".join(
        f"<tr><td><code>{escape(path)}</code></td><td>{escape(help)}</td></tr>"
        for path, help in paths.items()
    )
    return Response(
        "<!doctype html><html lang=en><meta charset=utf-8><title>ssdlm: the API</title>"
        '<meta name=viewport content="width=device-width">'
        '<link rel=icon href="/page/icon.svg"><link rel=stylesheet href="/page/look.css">'
        '<link rel=stylesheet href="/page/docs.css">'
        '<p class=top><a href="/"><img src="/page/icon.svg" alt=""> ssdlm</a></p>'
        f"<h1>Paths</h1><table>{listed}</table>"
        '<p>All of it as JSON: <a href="/openapi.json">openapi.json</a></p>'
        "<h1>Fields of POST /v1/generate</h1>"
        f"{field_table(native)}"
        "<h1>Fields of POST /v1/completions</h1>"
        "<p>Those of OpenAI; of the fields above all options are taken, too.</p>"
        f"{field_table(completion)}"
        "<h1>Fields of POST /v1/chat/completions</h1>"
        "<p>These, and those of completions but prompt and echo.</p>"
        f"{field_table(chat)}"
        "<h1>Fields of POST /v1/responses</h1>"
        "<p>These, temperature, stream, and all options.</p>"
        f"{field_table(response)}</html>",
        200,
        HEADERS,
        "text/html",
    )


def field_table(fields: Mapping[str, Any]) -> str:
    """Return the fields of a JSON schema as a table of HTML."""
    rows = "\n".join(
        f"<tr><td><code>{escape(name)}</code></td>"
        f"<td>{escape(kind_of(about))}</td><td>{escape(about['description'])}</td></tr>"
        for name, about in fields.items()
    )
    return f"<table>{rows}</table>"


def kind_of(about: dict[str, Any]) -> str:
    """Return what a field of a JSON schema may be, in words."""
    if "enum" in about:
        return " | ".join(map(str, about["enum"]))
    if "anyOf" in about:
        return " or ".join(map(kind_of, about["anyOf"]))
    if about.get("type") == "array":
        return f"list of {kind_of(about['items'])}"
    bounds = [("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<=")]
    ranges = [f"{sign} {about[name]}" for name, sign in bounds if name in about]
    return " ".join([about.get("type", "any"), *ranges])
