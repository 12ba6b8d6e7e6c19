"""All texts after forty prompts, unchosen: two models, each plain, steered and under a schema.

The prompts (forty_prompts.jsonl) and the schema (forty_schema.json) were there before any text. One
seed, no text twice, none left out; what is not said here is as each model has it. smollm2 is asked
in a chat, builtin:mini continues the prompt. A file that is done is not written again, and the page
has all that are done.

    python benchmarks/forty.py --out runs/forty --page docs/forty.md
    python benchmarks/forty.py --out runs/forty --page page.md --models smollm2 --ways plain
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from ssdlm.cli import main as ssdlm

HERE = Path(__file__).resolve().parent
MODELS = ("builtin:mini", "smollm2")
WAYS = {
    "plain": ["--length", "48"],
    "positive": ["--length", "48", "--control", "sentiment=positive"],
    "schema": ["--length", "96", "--json-schema", str(HERE / "forty_schema.json")],
}
CHAT = "smollm2"
MARKS = "\\`*_[]<>&|#!~$"
"""Characters that mean something in Markdown or HTML."""


def prompts() -> list[dict[str, str]]:
    """Return the prompts with their kinds."""
    return read(HERE / "forty_prompts.jsonl")


def file_of(model: str, way: str, out: Path) -> Path:
    """Return where the texts of a model are."""
    return out / f"{model.replace(':', '-')}-{way}.jsonl"


def write(model: str, way: str, out: Path) -> None:
    """Write the texts of a model after all prompts, unless they are there."""
    target = file_of(model, way, out)
    source = out / "prompts" / target.name
    source.parent.mkdir(parents=True, exist_ok=True)
    asked = [one["prompt"] for one in prompts()]
    lines = [
        {"messages": [{"role": "user", "content": one}]} if model == CHAT else {"prompt": one}
        for one in asked
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = ["--input", str(source), "--output", str(target)]
    if ssdlm(["generate", "--model", model, *files, "--seed", "0", *WAYS[way]]):
        raise SystemExit(2)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def all_texts(out: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the texts of all files that are done, by model and way."""
    files = {(model, way): file_of(model, way, out) for model in MODELS for way in WAYS}
    return {name: read(path) for name, path in files.items() if path.exists()}


def page(texts: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return a page with all texts, prompt by prompt."""
    lines = ["# Forty prompts, every text", "", *INTRODUCTION.strip().splitlines()]
    sets = [(model, way) for model in MODELS for way in WAYS]
    if missing := [" ".join(one) for one in sets if one not in texts]:
        lines += ["", f"Not written yet: {', '.join(missing)}."]
    kind = ""
    for number, one in enumerate(prompts()):
        if one["kind"] != kind:
            kind = one["kind"]
            lines += ["", f"## {kind.capitalize()}"]
        lines += [
            "",
            f"### {number + 1}",
            "",
            *wrap(one["prompt"], 100),
            "",
            "| model | way | text |",
            "|---|---|---|",
        ]
        for (model, way), written in texts.items():
            lines.append(f"| {model} | {way} | {cell(written[number]['text'])} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text as code in a table: as it is, with line ends spelled."""
    shown = text.replace("\n", "\\n")
    plain = "".join(f"&#{ord(one)};" if one in MARKS else one for one in shown)
    return f"<code>{plain}</code>" if text else "(nothing)"


INTRODUCTION = """
Written by `python benchmarks/forty.py --out runs/forty --page docs/forty.md`: seed 0, no text left
out or written twice. The prompts and the schema were committed before any text. `builtin:mini`
continues the prompt; `smollm2` ([SmolLM2-135M-Instruct, 4-bit, dequantised](models.md#smollm2))
gets it as a user's message. *positive* is `--control sentiment=positive`; *schema* asks for an
object with an answer, a topic and whether it is certain. Texts have at most 48 tokens, under the
schema 96. A line end is shown as `\\n`.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the texts that are not there yet, then the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the texts")
    parser.add_argument("--page", type=Path, required=True, help="the page to write")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="names, separated by commas")
    given = parser.parse_args(argv)
    for model in given.models.split(","):
        for way in given.ways.split(","):
            write(model, way, given.out)
    texts = all_texts(given.out)
    given.page.write_text(page(texts), encoding="utf-8")
    print(json.dumps({"texts": sum(map(len, texts.values())), "page": str(given.page)}))


if __name__ == "__main__":
    main()
