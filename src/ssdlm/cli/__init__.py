"""The command line: arguments in, one call of the library, a result or a one-line error out."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NoReturn

from ssdlm import __version__
from ssdlm.cli import bench, explain, generate, measure, merge, models, rewrite, score, serve, train
from ssdlm.extras import extra_of, lacking
from ssdlm.options import FOREIGN_NAMES

LONGEST = 1000
"""Characters of an error."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What is wrong where something cannot be written to its end."""
PATHS = {"input", "output", "model", "source", "destination", "inputs", "tokenizer", "out", "data"}
PATHS |= {"start", "words", "test", "generations", "reference", "sources", "parts"}
PATHS |= {"api_key_file"}
"""Arguments that name files or folders."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; bad input ends in a line on stderr and exit code 2."""
    try:
        try:
            arguments = parse(sys.argv[1:] if argv is None else argv)
            with warnings.catch_warnings(), noticing_termination():
                warnings.showwarning = show_warning
                arguments.run(arguments)
        finally:
            flush()
    except ModuleNotFoundError as error:
        if extra_of(error.name or "") is None:
            raise  # no optional library: a mistake of ours
        print(f"error: {lacking(str(error.name))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        return 128 + 13
    except (MemoryError, RuntimeError) as error:
        # torch has errors of its own where memory ends, on a CPU without a class of their own.
        if isinstance(error, RuntimeError) and not re.search(
            "(not enough|out of) memory", str(error)
        ):
            raise
        print("error: there is not enough memory; ask for less at a time", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        if getattr(error, "errno", None) in FULL and not getattr(error, "filename", None):
            error = f"{error}: standard output"  # all files have their names in errors
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Terminated:
        print("terminated", file=sys.stderr)
        return 128 + 15
    return 0


class Terminated(BaseException):
    """SIGTERM has come, as KeyboardInterrupt says of SIGINT."""


@contextmanager
def noticing_termination() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what is open is closed, what is half is removed."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    has_come = False

    def stop(*_: Any) -> NoReturn:
        nonlocal has_come
        has_come = True
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Exception as error:
        if has_come:  # a library that was being imported has made an error of its own of it
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def flush() -> None:
    """Write out what was printed; what nobody takes is dropped, so that Python does not retry."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def one_line(error: object) -> str:
    """Return a message in one line; of a very long one, such as a quoted file, both ends."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 300]} ... {text[-200:]}"


def show_warning(message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning as one line, without the place in the code."""
    del category, place
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line; an unknown option is answered with the nearest."""
    arguments, unknown = parser().parse_known_args(argv)
    if gathers := getattr(arguments, "gathers", None):
        # argparse takes one run of words; those after the next option are of the same list.
        more = [word for word in unknown if not word.startswith("-")]
        setattr(arguments, gathers, [*getattr(arguments, gathers), *more])
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        command: Parser = arguments.command
        word = next((word for word in unknown if word.startswith("-")), unknown[0])
        flags = [flag for action in command._actions for flag in action.option_strings]
        name = word.partition("=")[0].lstrip("-").replace("-", "_")
        near = get_close_matches(word.partition("=")[0], flags, 1)
        remedy = FOREIGN_NAMES.get(name) if arguments.run is generate.run_generate else None
        if remedy is None and near:
            remedy = f"the nearest is {near[0]}"
        command.error(f"unrecognized argument {word}" + (f"; {remedy}" if remedy else ""))
    expand_paths(arguments)
    return arguments


def expand_paths(arguments: argparse.Namespace) -> None:
    """Let `~` be the home folder in the names of files, also after `=`; refuse empty ones."""
    for name in PATHS & vars(arguments).keys():
        given = getattr(arguments, name)
        for word in [given] if isinstance(given, str) else given or []:
            if not word.strip():
                arguments.command.error(f"{name} is empty; give the name of a file or folder")
        if isinstance(given, str):
            setattr(arguments, name, os.path.expanduser(given))
        elif given is not None:
            setattr(arguments, name, [os.path.expanduser(word) for word in given])


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line and no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation would change its meaning when an option is added.
        super().__init__(*args, **kwargs | {"allow_abbrev": False})
        # -1/3 and -1e5 are values, as -1 is, which is then said to be out of range.
        self._negative_number_matcher = re.compile(r"-\d|-\.\d")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse drops `--`, which before Python 3.13 makes an empty list of --flag=--.
        if action.option_strings and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value if action.nargs in (None, argparse.OPTIONAL) else [value]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        print(f"error: {one_line(message)}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def parser() -> Parser:
    """Return the parser of all commands."""
    top = Parser(
        prog="ssdlm", description="Simplex diffusion language models: write, steer, train, measure."
    )
    top.add_argument("--version", action="version", version=f"ssdlm {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        generate.add_generate,
        merge.add_merge,
        models.add_models,
        models.add_convert,
        explain.add_explain,
        rewrite.add_rewrite,
        score.add_score,
        serve.add_serve,
        train.add_tokenizer,
        train.add_prepare,
        train.add_train,
        train.add_estimate,
        train.add_train_guide,
        train.add_train_judge,
        train.add_train_drafter,
        train.add_plot,
        measure.add_evaluate,
        measure.add_prompts,
        measure.add_reproduce,
        bench.add_bench,
    ):
        add(commands)
    for command, _ in subcommands(top):
        command.set_defaults(command=command)
    return top


def subcommands(
    top: argparse.ArgumentParser, about: str = ""
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield every command that takes arguments of its own, with its line of help."""
    kinds = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not kinds:
        yield top, about
    for kind in kinds:
        lines = {choice.dest: choice.help or "" for choice in kind._choices_actions}
        for name, command in kind.choices.items():
            yield from subcommands(command, lines.get(name, ""))
