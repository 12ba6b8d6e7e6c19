"""The paths of a server, and what each answers.  worker, completions, native -> [app] -> cli"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ssdlm import __version__
from ssdlm.serve.body import parse, read_body
from ssdlm.serve.chat import read_chat
from ssdlm.serve.completions import read_completion
from ssdlm.serve.delivery import Asked, deliver, unless_gone
from ssdlm.serve.errors import ApiError, json_response
from ssdlm.serve.fields import Served, field_at_fault, nearest
from ssdlm.serve.gate import Gate
from ssdlm.serve.log import RequestLog
from ssdlm.serve.metrics import CONTENT_TYPE, Metrics
from ssdlm.serve.native import read_explain, read_native
from ssdlm.serve.pages import INDEX, Pages, docs_page
from ssdlm.serve.responses import read_response
from ssdlm.serve.rewriting import read_rewrite
from ssdlm.serve.schemas import (
    CHAT,
    COMPLETION,
    RESPONSE,
    chat_schema,
    completion_schema,
    native_schema,
    response_schema,
    rewrite_schema,
)
from ssdlm.serve.worker import Turns, Worker
from ssdlm.values import quote

PATHS = {
    "/": "the page: watch a text settle, and steer it",
    "/v1/completions": "POST: continue prompts, as OpenAI defines it",
    "/v1/chat/completions": "POST: answer messages, as OpenAI defines it",
    "/v1/responses": "POST: answer a text or messages, as OpenAI's responses do",
    "/v1/generate": "POST: the native form; an answer, or every draft as an event",
    "/v1/explain": "POST: the native form; how it would be written, without writing it",
    "/v1/rewrite": "POST: spans of a text anew, in view of both sides; an answer, or events",
    "/v1/models": "GET: the models there are, and what each can do",
    "/v1/info": "GET: a model's own settings (?model=NAME), guides and their labels, limits",
    "/health": "GET: whether the server is well",
    "/metrics": "GET: figures for Prometheus",
    "/docs": "GET: this page",
}


class Server:
    """Models behind HTTP, the first for those who name none; `app` is the ASGI application."""

    def __init__(
        self,
        served: Served,
        *others: Served,
        keys: frozenset[bytes] = frozenset(),
        is_local: bool = True,
        cors: str | None = None,
        proxies: str | None = None,
        log: RequestLog | None = None,
    ) -> None:
        self.served, self.keys, self.is_local = served, keys, is_local
        self.metrics, self.pages = Metrics(), Pages()
        turns = Turns()
        self.all = {one.name: one for one in (served, *others)}
        self.workers = {
            name: Worker(
                one.model.engine, one.guides, one.limits, self.metrics.of(name), turns=turns
            )
            for name, one in self.all.items()
        }
        self.reading = ThreadPoolExecutor(1, "reading")
        """The thread that parses bodies and counts tokens, while the event loop goes on."""
        inner: Any = Gate(
            self.routes(),
            metrics=self.metrics,
            log=log or RequestLog(),
            paths=PATHS,
            keys=keys,
            is_local=is_local,
        )
        if cors is not None:
            headers = ["authorization", "content-type"]
            methods = ["GET", "POST"]
            inner = CORSMiddleware(inner, [cors], methods, headers)
        if proxies is not None:
            inner = ProxyHeadersMiddleware(inner, proxies)
        self.app = inner

    @property
    def worker(self) -> Worker:
        """The worker of the first model."""
        return self.workers[self.served.name]

    def close(self) -> None:
        """Take on nothing more."""
        for worker in self.workers.values():
            worker.close()

    def abort(self) -> None:
        """Give up everything that is open, with a word to each client."""
        for worker in self.workers.values():
            worker.abort()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the engines' threads as long as the server."""
        del app
        for worker in self.workers.values():
            worker.thread.start()
        yield
        self.close()
        self.abort()
        for worker in self.workers.values():
            worker.end()
        self.reading.shutdown(cancel_futures=True)

    def routes(self) -> FastAPI:
        """Return the application without its gate."""
        app = FastAPI(
            title="ssdlm",
            version=__version__,
            lifespan=self.lifespan,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={ApiError: tell, HTTPException: tell_http, Exception: tell_fault},
        )
        both = ["GET", "HEAD"]
        app.add_api_route("/", self.page, methods=both, include_in_schema=False)
        app.add_api_route("/page/{name}", self.file, methods=both, include_in_schema=False)
        app.add_api_route("/favicon.ico", nothing, methods=both, include_in_schema=False)
        app.add_api_route("/docs", self.docs, methods=["GET"], include_in_schema=False)
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_api_route("/health", self.health, methods=["HEAD"], include_in_schema=False)
        app.add_api_route("/metrics", self.figures, methods=["GET"])
        app.add_api_route("/v1/info", self.info, methods=["GET"])
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{name:path}", self.model, methods=["GET"])
        for path, answer, schema in (
            ("/v1/completions", self.completions, completion_schema()),
            ("/v1/chat/completions", self.chat, chat_schema()),
            ("/v1/responses", self.responses, response_schema()),
            ("/v1/generate", self.generate, native_schema()),
            ("/v1/explain", self.explain, native_schema()),
            ("/v1/rewrite", self.rewrite, rewrite_schema()),
        ):
            body = {"required": True, "content": {"application/json": {"schema": schema}}}
            app.add_api_route(path, answer, methods=["POST"], openapi_extra={"requestBody": body})
        return app

    async def completions(self, request: Request) -> Response:
        """Continue prompts, as OpenAI defines it."""
        return await self.ask(request, read_completion)

    async def chat(self, request: Request) -> Response:
        """Answer messages, as OpenAI defines it."""
        return await self.ask(request, read_chat)

    async def responses(self, request: Request) -> Response:
        """Answer a text or messages, as OpenAI's responses do."""
        return await self.ask(request, read_response)

    async def generate(self, request: Request) -> Response:
        """Continue prompts with the options of this library."""
        return await self.ask(request, read_native)

    async def explain(self, request: Request) -> Response:
        """Tell how prompts would be continued."""
        return await self.ask(request, read_explain)

    async def rewrite(self, request: Request) -> Response:
        """Write spans of a text anew."""
        return await self.ask(request, read_rewrite)

    async def ask(
        self, request: Request, read: Callable[[Mapping[str, Any], Served], Asked]
    ) -> Response:
        """Return the answer to a request for texts."""
        raw = await read_body(request, self.served.limits)
        loop, understand = asyncio.get_running_loop(), self.understand
        work = loop.run_in_executor(self.reading, understand, raw, read)
        del raw  # a text may take long
        asked, fields, worker = await unless_gone(request, work)
        try:
            return await deliver(request, worker, asked)
        except ApiError as error:
            if error.status == 400 and error.param is None:
                if "length" not in fields:
                    own = asked.length_field
                    error.call_length("max_tokens" if "max_tokens" in fields else own)
                error.param = field_at_fault(error, fields)
            raise

    def understand(
        self, raw: bytes, read: Callable[[Mapping[str, Any], Served], Asked]
    ) -> tuple[Asked, Collection[str], Worker]:
        """Return what a body asks for, the names of its fields, and who writes it."""
        body = parse(raw)
        served = self.find(body.get("model"))
        try:
            return read(body, served), frozenset(body), self.workers[served.name]
        except ValueError as error:
            raise ApiError(400, error, param=field_at_fault(error, body)) from None

    async def page(self, request: Request) -> Response:
        return self.pages.response(request, INDEX)

    async def file(self, request: Request, name: str) -> Response:
        return self.pages.response(request, name)

    async def docs(self) -> Response:
        return docs_page(PATHS, native_schema()["properties"], COMPLETION, CHAT, RESPONSE)

    async def health(self) -> Response:
        """Return whether texts get written."""
        is_well = all(one.is_well and not one.is_closing for one in self.workers.values())
        return json_response({"status": "ok" if is_well else "ill"}, 200 if is_well else 503)

    async def figures(self) -> Response:
        """Return figures for Prometheus."""
        return Response(self.metrics.page(), media_type=CONTENT_TYPE)

    async def info(self, model: str | None = None) -> Response:
        """Return a model's own settings, the guides and their labels, and the limits."""
        info = self.find(model).info(is_local=self.is_local)
        return json_response(info | {"needs_key": bool(self.keys)})

    async def models(self) -> Response:
        """Return the models there are, and what each can do."""
        return json_response({"object": "list", "data": [one.about() for one in self.all.values()]})

    async def model(self, name: str) -> Response:
        """Return the model of a name."""
        return json_response(self.find(name).about())

    def find(self, name: Any) -> Served:
        """Return the model of a name, the first for none; or raise an ApiError."""
        if name is None:
            return self.served
        if not isinstance(name, str) or name not in self.all:
            there = ", ".join(map(quote, self.all))
            raise ApiError(
                404,
                f"the model {quote(name)} does not exist; this server has {there}",
                param="model",
                code="model_not_found",
            )
        return self.all[name]


async def nothing() -> Response:
    return Response(status_code=204)


async def tell(request: Request, error: Exception) -> Response:
    """Return the answer to a request that cannot be served."""
    del request
    assert isinstance(error, ApiError)
    return error.response()


async def tell_http(request: Request, error: Exception) -> Response:
    """Return the answer to a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    path, said = request.scope["path"], str(error.detail)
    if error.status_code == 404:
        near = next((one for one in PATHS if one.startswith(path)), nearest(path, PATHS))
        said = f"there is no path {quote(path)}; "
        said += f"the nearest is {near}" if near else "see /docs"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        said = f"{quote(path)} takes {allowed}, not {quote(request.method)}; see /docs"
    return ApiError(error.status_code, said, headers=error.headers).response()


async def tell_fault(request: Request, error: Exception) -> Response:
    """Return the answer where something broke; the log has the reason."""
    del request, error
    return ApiError(500, "something broke in the server; see its log").response()
