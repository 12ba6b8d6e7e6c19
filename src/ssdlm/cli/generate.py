"""The command that writes texts: generate."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssdlm.cli.flags import (
    add_options,
    add_ray,
    add_shard,
    given_options,
    refuse_bad_values,
)
from ssdlm.cli.starting import choose_threads, one_thread, without_collecting
from ssdlm.storage.builtin import DEFAULT_MODEL, refuse_unknown
from ssdlm.storage.files import STANDARD
from ssdlm.storage.remote import place_of

if TYPE_CHECKING:
    from ssdlm.api import SSDLM
    from ssdlm.engine.plain import Engine
    from ssdlm.engine.prompt_files import FileReport
    from ssdlm.engine.requests import Requests
    from ssdlm.engine.writers import OptionsWriter
    from ssdlm.options import GenerateOptions
    from ssdlm.storage.cluster import Observe
    from ssdlm.storage.parts import Shard

PROMPT_HELP = "texts to continue; without any, what comes through a pipe is one"


def add_generate(commands: Any) -> None:
    command = commands.add_parser("generate", help="continue prompts")
    command.set_defaults(run=run_generate, gathers="prompts")
    command.add_argument("prompts", nargs="*", metavar="PROMPT", help=PROMPT_HELP)
    add_chat(
        command,
        "answer each PROMPT, or line of --input, as a user's message, by the model's chat "
        'template; what comes through a pipe may be {"messages": [...]}',
    )
    command.add_argument(
        "--input",
        metavar="PROMPTS.jsonl",
        help='a {"prompt": ...} or {"messages": [...]} on each line, which may set options of its '
        "own beside it; - is standard input, s3://... elsewhere; under torchrun the processes "
        "share it",
    )
    command.add_argument(
        "--output",
        metavar="OUT.jsonl",
        help="with --input: where the texts go; - is standard output",
    )
    add_shard(command, "with --input: write one of N parts of the prompts")
    add_ray(command, "with --input: write")
    add_model(command)
    command.add_argument("--json", action="store_true", help="print one JSON object per text")
    command.add_argument(
        "--drafts",
        action="store_true",
        help="with --json: print a text's events, one per line: what each draft changed, the "
        "blocks, and the text",
    )
    command.add_argument(
        "--candidates",
        type=int,
        metavar="K",
        help="with --drafts: the K likeliest tokens of each open position, with probabilities",
    )
    command.add_argument(
        "--guides",
        metavar="NAME,...",
        help="with --drafts: what these guides make of each draft, as label probabilities; "
        "NAME=FOLDER for one of your own",
    )
    command.add_argument("--no-live", action="store_true", help="do not show the text settling")
    add_options(command)


def add_chat(command: argparse.ArgumentParser, about: str) -> None:
    """Add the flags with which a prompt is a message."""
    command.add_argument("--chat", action="store_true", help=about)
    command.add_argument(
        "--system", metavar="TEXT", help="with --chat: what the model is told first"
    )


def refuse_lone_system(arguments: argparse.Namespace) -> None:
    """Raise on a first message of what is no chat."""
    if arguments.system is not None and not arguments.chat:
        raise ValueError("--system is the first message of a chat; give --chat beside it")


def add_model(command: argparse.ArgumentParser) -> None:
    """Add which model is opened, where and how: what `open_model` reads."""
    command.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help=f"builtin:smol, smollm2, folder or Hub id (default {DEFAULT_MODEL}); defaults below "
        "are its",
    )
    command.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    command.add_argument(
        "--dtype",
        default="auto",
        help="float32 or bfloat16 (default auto: bfloat16 on a GPU where it writes as well)",
    )
    command.add_argument(
        "--deterministic",
        action="store_true",
        help="on a GPU, too, write the same text whatever else is being written",
    )
    command.add_argument(
        "--drafter",
        metavar="DIR",
        help="what guesses for --mode speculative, by train-drafter (default: the model's own)",
    )


def run_generate(arguments: argparse.Namespace) -> None:
    """Continue the prompts and print the texts."""
    refuse_idle_flags(arguments)
    if num_started() == 1:  # of several processes the first says what is wrong
        refuse_bad_values(arguments)
    if is_of_files(arguments) or num_started() > 1:
        run_generate_file(arguments)
        return
    model = open_model(arguments)
    from ssdlm.engine.requests import in_order

    prompts = arguments.prompts or [piped_prompt()]
    if arguments.chat:
        from ssdlm.engine.chat import chat_text

        prompts = [chat_text(model.tokenizer, messages_in(one, arguments)) for one in prompts]
    changes = given_options(arguments)
    requests = model.requests(prompts, changes)
    choose_threads(model.denoiser, requests[0].options)
    refuse_idle_drafter(arguments, requests[0].options)
    tell_of_particles(model.engine, requests[0].options)
    if arguments.drafts:
        print_events(model.engine, requests, arguments)
        return
    is_live = not arguments.json and not arguments.no_live and sys.stderr.isatty()
    has_one = len(requests) == 1 and model.engine.num_particles(requests[0]) == 1
    if is_live and has_one and find_spec("rich") is not None:
        from ssdlm.cli.live import watch

        drafts, blocks = model.engine.stream(requests[0]), requests[0].blocks()
        shown = "" if arguments.chat else prompts[0]
        print(shown + watch(shown, drafts, model.spellings(), len(blocks)))
        return
    for text in in_order(model.engine.write(requests)):
        shown = "" if arguments.chat else text.prompt
        line = json.dumps(asdict(text)) if arguments.json else shown + text.text
        print(line, flush=True)
    tell_of_scorers(model.engine)


def tell_of_particles(engine: Engine, options: GenerateOptions) -> None:
    """Say on standard error which controls take particles that nobody asked for."""
    for line in engine.controls.unasked(options):
        print(line, file=sys.stderr)


def tell_of_scorers(engine: Engine) -> None:
    """Say on standard error what each scorer did, and how long it took."""
    for line in engine.controls.scoring():
        print(line, file=sys.stderr)


def is_of_files(arguments: argparse.Namespace) -> bool:
    """Tell whether flags are given that go with files of prompts and texts."""
    names = ("input", "output", "shard", "ray")
    return any(getattr(arguments, name) is not None for name in names)


def refuse_idle_flags(arguments: argparse.Namespace) -> None:
    """Raise on flags that would do nothing."""
    if arguments.drafts and not arguments.json:
        raise ValueError("--drafts prints events as JSON lines; give --json beside it")
    if arguments.drafts and is_of_files(arguments):
        raise ValueError("--drafts prints to standard output; give prompts in place of --input")
    refuse_lone_system(arguments)
    for name in ("candidates", "guides"):
        if getattr(arguments, name) is not None and not arguments.drafts:
            raise ValueError(f"--{name} tells of drafts; give --json --drafts beside it")


def refuse_idle_drafter(arguments: argparse.Namespace, options: GenerateOptions) -> None:
    """Raise on a drafter that would guess nothing."""
    if arguments.drafter and options.mode != "speculative":
        raise ValueError("--drafter is for --mode speculative; give that beside it")


def print_events(engine: Engine, requests: Requests, arguments: argparse.Namespace) -> None:
    """Print the events of each text, one text after another."""
    if requests[0].num_candidates > 1:
        raise ValueError("--drafts shows each text that is written; leave out --best-of and --gap")
    guides = [name for name in (arguments.guides or "").split(",") if name]
    for request in requests:
        for event in engine.events(request, candidates=arguments.candidates or 0, guides=guides):
            print(json.dumps(event), flush=True)


def num_started() -> int:
    """Return how many processes a launcher such as torchrun started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def piped_prompt() -> str:
    """Return what comes through standard input, without its last line end; "" from a terminal."""
    from ssdlm.storage.lines import read_text

    if sys.stdin is None or sys.stdin.isatty():
        return ""
    text = read_text(STANDARD).removeprefix("\ufeff")
    return text.removesuffix("\n").removesuffix("\r")


def messages_in(prompt: str, arguments: argparse.Namespace) -> Any:
    """Return the messages of a chat: what a user says, or all that comes through a pipe."""
    from ssdlm.engine.chat import said
    from ssdlm.storage.files import JsonError, parse_object

    messages: Any = prompt
    if not arguments.prompts:
        with suppress(JsonError):
            piped = parse_object(prompt.encode(), where="standard input", remedy="")
            messages = piped.get("messages", prompt)
    return said(messages, arguments.system)


def open_model(arguments: argparse.Namespace) -> SSDLM:
    """Return the model that is to write, on this process's device."""
    from ssdlm.cli.live import told

    refuse_unknown(arguments.model)  # before anything is imported that takes seconds
    with told(f"loading {arguments.model} ..."), without_collecting():
        from ssdlm.api import SSDLM
        from ssdlm.engine.sharing import own_device

        with one_thread():
            model = SSDLM.from_pretrained(
                arguments.model,
                device=own_device(arguments.device),
                dtype=arguments.dtype,
                deterministic=arguments.deterministic,
                drafter=getattr(arguments, "drafter", None),
            )
    model.engine.runners.tell = told
    return model


def run_generate_file(arguments: argparse.Namespace) -> None:
    """Continue a file of prompts into a file of texts, alone or with a launcher's processes."""
    if not (arguments.input and arguments.output) or arguments.prompts:
        if os.environ.get("RANK", "0") != "0":
            return  # one of several says it
        raise ValueError("--input and --output go together, without other prompts; give both")
    refuse_missing(arguments.input)
    if arguments.ray is not None:
        write_on_ray(arguments)
    elif num_started() > 1:
        from ssdlm.engine.sharing import share_out

        share_out(partial(open_writer, arguments), partial(write_and_say, arguments))
    else:
        write_and_say(arguments, open_writer(arguments))


def refuse_missing(name: str) -> None:
    """Raise where there is no file of prompts, before anything is imported that takes seconds."""
    source = place_of(name, "input")
    if isinstance(source, Path) and source != STANDARD and not source.exists():
        raise ValueError(
            f'there is no file {name}; give --input a .jsonl file with a {{"prompt": ...}} on each '
            "line"
        )


def open_writer(arguments: argparse.Namespace) -> OptionsWriter:
    """Return the model that is to write, with the options that were given."""
    writer = open_model(arguments).writer(**given_options(arguments))
    choose_threads(writer.engine.denoiser, writer.options)
    refuse_idle_drafter(arguments, writer.options)
    return writer


def write_and_say(arguments: argparse.Namespace, writer: OptionsWriter) -> None:
    """Continue a file of prompts into a file of texts, and say so."""
    tell_of_particles(writer.engine, writer.options)
    report = write_file(arguments, writer)
    said = f"wrote {'standard output' if arguments.output == '-' else arguments.output}"
    if report.was_finished:
        said = f"{arguments.output} is already complete"
    print(f"{said}: {report.texts} texts", file=sys.stderr if report.was_streamed else sys.stdout)
    tell_of_scorers(writer.engine)


def write_file(arguments: argparse.Namespace, writer: OptionsWriter) -> FileReport:
    """Let a writer continue a file of prompts into a file of texts; return what is in it."""
    from ssdlm.denoiser import DenoiserModule
    from ssdlm.engine.prompt_files import generate_file
    from ssdlm.storage.checkpoint import digests, find

    # Where it runs and how many go together do not change what is written.
    settings = {k: v for k, v in writer.options.to_json().items() if k != "batch_size"}
    denoiser = writer.engine.denoiser
    assert isinstance(denoiser, DenoiserModule)
    made = {"model": digests(find(arguments.model))}
    made |= {"dtype": str(next(denoiser.parameters()).dtype)}  # what auto came to
    return generate_file(
        writer,
        place_of(arguments.input, "input"),
        place_of(arguments.output, "output"),
        identity=made | settings,
        chat=arguments.chat,
        system=arguments.system,
        shard=arguments.shard,
        is_shown=True,
    )


def write_on_ray(arguments: argparse.Namespace) -> None:
    """Let the workers of a cluster write parts of a file of texts, and put them together."""
    from ssdlm.engine.merging import merge_texts
    from ssdlm.engine.prompt_files import prompt_lines
    from ssdlm.storage.cluster import spread

    if arguments.shard is not None or num_started() > 1:
        raise ValueError("--ray shares the prompts out itself; leave out --shard and torchrun")
    if "-" in (arguments.input, arguments.output):
        raise ValueError("--ray needs files for --input and --output; give names in place of -")
    source, target = place_of(arguments.input, "input"), place_of(arguments.output, "output")
    if target.exists():  # and is compared with what this command would write
        write_and_say(arguments, open_writer(arguments))
        return
    count = len(prompt_lines(source))
    given = {k: v for k, v in vars(arguments).items() if k not in ("command", "run", "gathers")}
    with spread(
        partial(write_part, given),
        target,
        address=arguments.ray,
        most=count,
        ending=".jsonl",
        uses_gpus=arguments.device != "cpu",
        watched=partial(watch_prompts, count),
    ) as parts:
        report = merge_texts(parts, target)
    print(f"wrote {arguments.output}: {report.texts} texts")


@contextmanager
def watch_prompts(count: int) -> Iterator[Observe]:
    """Give what shows how many of all prompts are done."""
    from ssdlm.engine.merging import num_prompts_done
    from ssdlm.progress import bar

    with bar("generate", count) as show:
        yield lambda parts, num_done: show(num_prompts_done(parts, num_done, count), "prompts")


def write_part(given: dict[str, Any], shard: Shard, output: str) -> None:
    """Write one part of a file of texts, in a worker."""
    arguments = argparse.Namespace(**given | {"shard": shard, "output": output})
    write_file(arguments, open_writer(arguments))
