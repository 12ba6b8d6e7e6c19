"""The command that serves models over HTTP."""

from __future__ import annotations

import argparse
import gc
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssdlm.cli.generate import open_model
from ssdlm.cli.starting import choose_threads, is_small
from ssdlm.extras import lacking
from ssdlm.storage.builtin import DEFAULT_MODEL, builtin_guides

if TYPE_CHECKING:
    from ssdlm.serve.limits import Limits

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve", help="serve models over HTTP, as OpenAI's API and on a page"
    )
    command.set_defaults(run=run_serve)
    command.add_argument(
        "--model",
        action="append",
        help=f"builtin:smol, smollm2, folder or Hub id (default {DEFAULT_MODEL}); several times "
        "for several models, of which the first answers those who name none",
    )
    command.add_argument(
        "--name",
        action="append",
        help="what clients call the model (default: its own name); one for each model",
    )
    command.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    command.add_argument("--port", type=int, default=8000, help="port (default 8000)")
    command.add_argument(
        "--api-key-file", metavar="F", help="a file of keys, one a line; clients must send one"
    )
    command.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="serve other machines without a key; whoever can reach the address may use it",
    )
    guides = ",".join(builtin_guides())
    command.add_argument(
        "--guides",
        default=guides,
        metavar="NAME,NAME=FOLDER",
        help=f"the guides that requests may name (default {guides})",
    )
    for flag, default, help in (
        ("--max-queue", 256, "texts that may wait; then requests are answered 429"),
        ("--max-length", 512, "tokens of a text"),
        ("--max-prompt", 2048, "tokens of a prompt"),
        ("--max-rows", 64, "texts of one request: prompts times samples, candidates and particles"),
        ("--max-controls", 8, "controls of a text"),
        ("--max-body", 1 << 20, "bytes of a request"),
        ("--max-connections", 1024, "connections at a time"),
    ):
        command.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{help} (default {default})"
        )
    for flag, default, help in (
        ("--max-compile", 10.0, "processor seconds to compile the constraints of a request"),
        ("--grace", 30.0, "seconds that running requests have after SIGTERM"),
    ):
        command.add_argument(
            flag, type=float, default=default, metavar="S", help=f"{help} (default {default:g})"
        )
    command.add_argument("--cors", metavar="ORIGIN", help="a website that may use the server")
    command.add_argument(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies whose X-Forwarded-For is believed: addresses or networks with commas "
        "between, or * (default: none)",
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    command.add_argument("--dtype", default="auto", help="float32 or bfloat16 (default auto)")
    command.add_argument(
        "--deterministic",
        action="store_true",
        help="on a GPU, too, write the same text whatever else is being written",
    )
    command.add_argument("--log-json", action="store_true", help="log a JSON object per request")
    command.add_argument("--log-prompts", action="store_true", help="log what clients send, too")


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Return the bounds that the arguments set; raise on those that make no sense."""
    from ssdlm.serve.limits import Limits

    names = ("max_queue", "max_length", "max_prompt", "max_rows", "max_controls", "max_body")
    names += ("max_connections",)
    for name in names:
        least = 0 if name == "max_queue" else 1
        if getattr(arguments, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag}={getattr(arguments, name)} is too low; use {least} or more")
    if not 0 <= arguments.grace <= 86400:
        raise ValueError(f"--grace={arguments.grace} is out of range; use 0 to 86400 seconds")
    if not 0 < arguments.max_compile <= 86400:
        given = arguments.max_compile
        raise ValueError(f"--max-compile={given} is out of range; use seconds above 0")
    values = {name: getattr(arguments, name) for name in names}
    return Limits(**values, compile_seconds=arguments.max_compile, grace=arguments.grace)


def run_serve(arguments: argparse.Namespace) -> None:
    """Serve models until a signal comes."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise lacking(missing[0], "serve")
    from ssdlm.serve.gate import check_origin, check_proxies, is_loopback, read_keys

    wanted = limits_of(arguments)
    limits = wanted.within_descriptors()
    if limits != wanted:
        print(
            f"--max-connections={wanted.max_connections} is lowered to {limits.max_connections}: "
            "more files may not be open; raise ulimit -n",
            file=sys.stderr,
        )
    given = arguments.api_key_file
    keys = frozenset() if given is None else read_keys(Path(given))
    is_local = is_loopback(arguments.host)
    if not is_local and not keys and not arguments.allow_anonymous:
        raise ValueError(
            f"--host {arguments.host} can be reached from other machines; give --api-key-file, or "
            "--allow-anonymous if anybody may use the server"
        )
    if not 0 <= arguments.port < 65536:
        raise ValueError(f"--port={arguments.port} is out of range; use 1 to 65535, or 0 for any")
    cors = None if arguments.cors is None else check_origin(arguments.cors)
    proxies = arguments.forwarded_allow_ips
    proxies = None if proxies is None else check_proxies(proxies)
    from ssdlm.serve.guides import Guides, parse_guides

    folders = parse_guides(arguments.guides)
    sources = arguments.model or [DEFAULT_MODEL]
    names = names_of(sources, arguments.name)
    models = [open_model(argparse.Namespace(**vars(arguments) | {"model": s})) for s in sources]
    if all(is_small(model.denoiser, model.options) for model in models):
        choose_threads(models[0].denoiser, models[0].options)
    from ssdlm.serve.app import Server
    from ssdlm.serve.fields import Served
    from ssdlm.serve.log import RequestLog, set_up_logging
    from ssdlm.serve.running import listen, uvicorn_for

    set_up_logging(is_json=arguments.log_json)
    served = [
        Served(model, name, Guides(folders, str(model.device)), limits, source=source)
        for model, name, source in zip(models, names, sources, strict=True)
    ]
    log = RequestLog(is_json=arguments.log_json, has_prompts=arguments.log_prompts)
    server = Server(*served, keys=keys, is_local=is_local, cors=cors, proxies=proxies, log=log)
    socket = listen(arguments.host, arguments.port)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    port = socket.getsockname()[1]
    print(f"serving {', '.join(names)} at http://{host}:{port}/", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()  # else each full collection stops the server to look through torch and the model
    uvicorn_for(server).run([socket])


def names_of(sources: list[str], given: list[str] | None) -> list[str]:
    """Return what clients call the models; raise where two have one name."""
    names = given or list(map(name_of, sources))
    if len(names) != len(sources):
        raise ValueError(
            f"--name is given {len(names)} times for {len(sources)} models; give one for each"
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are called {name}; give each a --name of its own")
    return names


def name_of(model: str) -> str:
    """Return what clients call a model: a folder's own name, without the way to it."""
    return Path(model).resolve().name if Path(model).is_dir() else model
