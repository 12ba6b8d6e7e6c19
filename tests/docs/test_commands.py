"""Every command on the pages is one that works: it parses, its values exist, its files are known.

The tutorial's are run (test_tutorial.py). The others are checked up to where the work would begin.
"""

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests import tiny
from tests.docs.test_docs import PAGES, ROOT, fences, name_of, prose

from ssdlm import GenerateOptions
from ssdlm.cli import parser
from ssdlm.cli.flags import given_options
from ssdlm.cli.serve import limits_of
from ssdlm.data.repeats import RULES
from ssdlm.engine.strategy import strategy_of
from ssdlm.evaluate.run import METRICS
from ssdlm.guidance.grammar import parse_control
from ssdlm.guidance.training import configure as configure_guide
from ssdlm.reproduce.run import STAGES, TABLES
from ssdlm.reproduce.scale import scale_of
from ssdlm.serve.guides import parse_guides
from ssdlm.settings import override
from ssdlm.storage.builtin import DEFAULT_MODEL, GUIDES, builtin_guides, generation_config
from ssdlm.storage.checkpoint import DTYPES
from ssdlm.train.drafting import configure as configure_drafter
from ssdlm.train.estimate import find_gpu
from ssdlm.train.recipes import recipe

SHELL = {"mkdir", "for", "do", "done", "echo", "tail", "cp", "export", "cd", "curl"}
PAPERS_MODEL = "xhan77/ssdlm"
the_parser = cache(parser)


def lines_of(page: Path) -> Iterator[list[str]]:
    """The words of every command in the page's shell blocks, its variables put in."""
    variables: dict[str, str] = {}
    for body in fences(page.read_text(), "sh", "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            for name, value in variables.items():
                line = line.replace(f"${name}", value)
            if found := re.match(r'\s*(?:for (\w+) in ([\w.]+)|(\w+)="([^"]*)")', line):
                variables[found[1] or found[3]] = found[2] or found[4]
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|&;"):
                    yield words
                    words = []
                else:
                    words.append(word)


def commands_on(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Each command's words, and the files that the shell writes for it."""
    for words in filter(None, lines_of(page)):
        targets = [words[i + 1] for i, word in enumerate(words) if set(word) == {">"}]
        end = next((i for i, word in enumerate(words) if set(word) == {">"}), len(words))
        yield words[:end], targets


def ssdlm_words(words: list[str]) -> list[str] | None:
    """The arguments of `ssdlm`, however it is started; None for another command."""
    if words[0] in ("ssdlm", ".venv/bin/ssdlm"):
        return words[1:]
    starts = words[0] in ("torchrun", "accelerate") and "ssdlm" in words
    return words[words.index("ssdlm") + 1 :] if starts else None


@cache
def parsed(*words: str) -> argparse.Namespace:
    """The arguments of a command."""
    return the_parser().parse_args(words)


def options_for(arguments: argparse.Namespace, model: str) -> GenerateOptions:
    """The options of a request, over those of the model; a run has the library's own."""
    own = generation_config(DEFAULT_MODEL) if model == DEFAULT_MODEL else {}
    return GenerateOptions().change(**own).change(**given_options(arguments))


def check_controls(texts: list[str], model: str = DEFAULT_MODEL) -> None:
    """Raise on a label that a built-in guide lacks, or a model whose tokens it does not know."""
    for spec in map(parse_control, texts):
        if spec.name in builtin_guides():
            labels = json.loads((GUIDES / spec.name / "config.json").read_text())["id2label"]
            assert spec.label in labels.values(), f"{spec.name} has no label {spec.label}"
            assert model != PAPERS_MODEL, f"{spec.name} does not know the tokens of {model}"


def check_generate(arguments: argparse.Namespace) -> None:
    options = options_for(arguments, arguments.model)
    is_papers = arguments.model == PAPERS_MODEL
    strategy_of(options, tiny.encoder() if is_papers else tiny.block())
    check_controls(list(options.control), arguments.model)
    assert arguments.dtype in ("auto", *DTYPES)
    assert bool(arguments.input) == bool(arguments.output)


def check_explain(arguments: argparse.Namespace) -> None:
    check_controls(list(options_for(arguments, arguments.model).control), arguments.model)


def check_convert(arguments: argparse.Namespace) -> None:
    strategy_of(options_for(arguments, arguments.source), tiny.block())
    assert arguments.quantise in ("none", "int8")


def check_train(arguments: argparse.Namespace) -> None:
    settings = [word for word in arguments.data if "=" in word] + arguments.overrides
    override(recipe(arguments.recipe), settings)


def check_estimate(arguments: argparse.Namespace) -> None:
    override(recipe(arguments.recipe), arguments.overrides)
    find_gpu(arguments.gpu, arguments.gpu_memory, arguments.gpu_tflops)


def check_train_guide(arguments: argparse.Namespace) -> None:
    configure_guide([word for word in arguments.data if "=" in word])
    assert bool(arguments.tokenizer) != bool(arguments.start)


def check_evaluate(arguments: argparse.Namespace) -> None:
    assert set(" ".join(arguments.metrics or []).replace(",", " ").split()) <= set(METRICS)
    check_controls([*arguments.control_guide, *arguments.control_judge])


def check_reproduce(arguments: argparse.Namespace) -> None:
    assert arguments.table in TABLES and arguments.stage in STAGES
    scale = scale_of(arguments.scale, arguments.set)
    if scale.story_train:
        override(recipe("paper_rocstories"), scale.story_train)
    assert arguments.dtype in ("auto", *DTYPES)
    assert all("=" in word for word in arguments.model)


def check_train_drafter(arguments: argparse.Namespace) -> None:
    configure_drafter([word for word in arguments.data + arguments.overrides if "=" in word])


def check_prepare(arguments: argparse.Namespace) -> None:
    assert 0 <= arguments.holdout < 1 and arguments.deduplicate in RULES


def check_prompts(arguments: argparse.Namespace) -> None:
    assert min(arguments.count, arguments.prompt_length, arguments.length) > 0


def check_bench(arguments: argparse.Namespace) -> None:
    check_controls(list(getattr(arguments, "control", None) or []))


def check_serve(arguments: argparse.Namespace) -> None:
    limits_of(arguments)
    guides = parse_guides(arguments.guides)
    assert {name for name, home in guides.items() if name == home} <= set(builtin_guides())


CHECKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "generate": check_generate,
    "convert": check_convert,
    "explain": check_explain,
    "rewrite": check_explain,
    "train": check_train,
    "estimate": check_estimate,
    "train-guide": check_train_guide,
    "train-drafter": check_train_drafter,
    "train-judge": lambda _: None,
    "evaluate": check_evaluate,
    "reproduce": check_reproduce,
    "prepare": check_prepare,
    "prompts": check_prompts,
    "bench": check_bench,
    "serve": check_serve,
    "merge": lambda _: None,
    "models": lambda _: None,
    "tokenizer": lambda _: None,
    "plot": lambda _: None,
}


def check_other(words: list[str]) -> None:
    """Raise on a script, a target or an option of them that does not exist."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in words[1:])
    elif words[0].endswith("python"):
        source = source_of(ROOT / words[1])
        flags = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
        assert [flag for flag in flags if not has_option(source, flag)] == []
        if "add_parser(" in source:
            assert f'"{words[2]}"' in source
    elif words[0] == "pytest":
        paths = [word for word in words[1:] if word.startswith("tests/")]
        assert paths and all((ROOT / path).exists() for path in paths)
    else:
        assert words[0] in SHELL or re.match(r"\w+=", words[0]), "what is this?"


def source_of(script: Path) -> str:
    """The text of a script, with those beside it that it imports."""
    text = script.read_text()
    beside = [
        script.with_name(f"{name}.py") for name in re.findall(r"^from (\w+) import", text, re.M)
    ]
    return "\n".join([text, *(path.read_text() for path in beside if path.exists())])


def has_option(source: str, flag: str) -> bool:
    """Tell whether a script takes an option: named itself, or made from a field of its settings."""
    field = re.escape(flag[2:].replace("-", "_"))
    return f'"{flag}"' in source or re.search(rf"^    {field}: ", source, re.M) is not None


def wrong_on(page: Path) -> list[str]:
    """The page's commands that would be refused, with the reason."""
    wrong = []
    for words, _ in commands_on(page):
        try:
            own = ssdlm_words(words)
            if own is None:
                check_other(words)
            else:
                CHECKS[own[0]](parsed(*own))
        except (AssertionError, ValueError, OSError, KeyError, SystemExit) as error:
            wrong.append(f"{shlex.join(words)}: {error}")
    return wrong


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_every_command_is_accepted_up_to_its_work(page):
    assert wrong_on(page) == []


@pytest.mark.parametrize(
    "command",
    [
        f'ssdlm generate --model {PAPERS_MODEL} "x" --control sentiment=positive',
        "ssdlm generate x --control 'tense!=passed:300'",
        f"ssdlm generate --model {PAPERS_MODEL} x --nucleus network",
        "ssdlm generate x --top-p 2",
        "ssdlm train --recipe mini --data d --out o lrr=3",
        "torchrun -m ssdlm train --recipe midi --data d --out o",
        "ssdlm reproduce table4 --out o",
        "ssdlm evaluate x.jsonl --metrics pppl --out o",
        "echo x | ssdlm generate --outputs y",
        "python benchmarks/guides.py cost --no-such-option",
        "make no-such-target",
        "pip install something",
    ],
)
def test_a_command_that_would_be_refused_is_found(command, tmp_path, capsys):
    (tmp_path / "page.md").write_text(f"```sh\n{command}\n```\n")
    assert len(wrong_on(tmp_path / "page.md")) == 1


def inputs_of(arguments: argparse.Namespace) -> list[str]:
    """The files and folders that a command reads."""
    names = ("input", "data", "inputs", "sources", "generations", "reference", "source", "test")
    names += ("parts",)
    values = [getattr(arguments, name, None) or [] for name in names]
    values += [getattr(arguments, "init", None) or [], getattr(arguments, "tokenizer", None) or []]
    found = [one for value in values for one in ([value] if isinstance(value, str) else value)]
    found += [
        word.partition("=")[2] for word in getattr(arguments, "prompts", None) or () if "=" in word
    ]
    found += [getattr(arguments, "model", "")] if hasattr(arguments, "input") else []
    return [name for name in found if name and "=" not in name and name != "-"]


def outputs_of(arguments: argparse.Namespace) -> list[str]:
    """The files and folders that a command writes."""
    return [
        one
        for name in ("out", "output", "destination")
        if isinstance(one := vars(arguments).get(name), str)
    ]


def is_known_elsewhere(name: str) -> bool:
    """Tell whether a name is built in, on the Hub, in this repository, or for the reader to say."""
    on_the_hub = {PAPERS_MODEL, "gpt2", "roberta-large", "openwebtext"}
    is_placeholder = re.fullmatch(r"[A-Z_]+", name) is not None
    is_ready = name.startswith("builtin:") or name == "smollm2" or name in on_the_hub
    return is_ready or is_placeholder or (ROOT / name).exists()


def made_on(page: Path) -> set[str]:
    """The files and folders that the commands of a page write."""
    made: set[str] = set()
    for words, targets in commands_on(page):
        made |= set(targets)
        if (own := ssdlm_words(words)) is not None:
            made |= set(outputs_of(parsed(*own)))
        else:
            made |= {words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--out")}
            made |= set(words[-1:]) if words[0] in ("mkdir", "cp") else set()
    return made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_schema_that_a_page_uses_is_written_on_that_page(page):
    written: dict[str, str] = {}
    for words, targets in commands_on(page):
        for name in targets if words[0] == "echo" else ():
            written[name] = written.get(name, "") + " ".join(words[1:])
        if (own := ssdlm_words(words)) and (name := vars(parsed(*own)).get("json_schema")):
            assert json.loads(written.get(name, "{}")).get("properties"), f"where is {name}?"


@pytest.mark.parametrize("name", ["quickstart", "tutorial", "control", "constraints"])
def test_a_page_opens_with_what_is_built_in(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    first = next(body for body in fences(page, "sh", "python") if re.search("ssdlm|SSDLM", body))
    assert PAPERS_MODEL not in first


@pytest.fixture(scope="module")
def made() -> set[str]:
    return set().union(*map(made_on, PAGES))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_command_reads_is_made_by_another_or_explained(page, made):
    explained, unknown = prose(page.read_text()), []
    for words, _ in commands_on(page):
        own = ssdlm_words(words)
        for name in inputs_of(parsed(*own)) if own is not None else ():
            is_made = name in made or any(name.startswith(f"{one}/") for one in made)
            is_said = f"`{name}`" in explained or f"# {name}: " in page.read_text()
            if not (is_made or is_said or is_known_elsewhere(name)):
                unknown.append(f"{shlex.join(words)}: {name}")
    assert unknown == []
