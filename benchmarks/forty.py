"""All texts after forty prompts and in forty passages, unchosen, by every model and in every way.

The prompts (forty_prompts.jsonl), the schema (forty_schema.json) and the passages
(forty_passages.jsonl) were there before any text. One seed, no text twice, none left out; what is
not said here is as each model has it. builtin:mini continues a prompt, the others are asked in a
chat. In a passage the eight words in the middle are a gap, and the second sentence is rewritten, by
models that see both sides. A file that is done is not written again, and the page has all that are
done.

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

from ssdlm import SSDLM
from ssdlm.cli import main as ssdlm
from ssdlm.storage.files import write_text

HERE = Path(__file__).resolve().parent
MODELS = ("builtin:mini", "smollm2", "builtin:smol")
WAYS = {
    "plain": ["--length", "48"],
    "positive": ["--length", "48", "--control", "sentiment=positive"],
    "schema": ["--length", "96", "--json-schema", str(HERE / "forty_schema.json")],
}
LENGTHS = {"gap": "equal", "rewrite": "free"}
"""Ways to write in a passage, and how many tokens the new words have."""
BOTH_SIDES = ("builtin:mini", "builtin:smol")
CHAT = ("smollm2", "builtin:smol")
GAP = 8
"""Words of a gap."""
MARKS = "\\`*_[]<>&|#!~$"
"""Characters that mean something in Markdown or HTML."""


def prompts() -> list[dict[str, str]]:
    """Return the prompts with their kinds."""
    return read(HERE / "forty_prompts.jsonl")


def passages() -> list[dict[str, str]]:
    """Return the passages with their kinds."""
    return read(HERE / "forty_passages.jsonl")


def span(text: str, way: str) -> tuple[int, int]:
    """Return what of a passage is written anew: words in the middle, or its second sentence."""
    if way == "rewrite":
        first, second, _ = text.split(". ")
        return len(first) + 2, len(first) + 2 + len(second)
    words = text.split(" ")
    place = (len(words) - GAP) // 2
    start = sum(len(word) + 1 for word in words[:place])
    return start, start + len(" ".join(words[place : place + GAP]))


def sets() -> list[tuple[str, str]]:
    """Return every model with every way that it writes."""
    found = [(model, way) for model in MODELS for way in WAYS]
    return found + [(model, way) for way in LENGTHS for model in BOTH_SIDES]


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
        {"messages": [{"role": "user", "content": one}]} if model in CHAT else {"prompt": one}
        for one in asked
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = ["--input", str(source), "--output", str(target)]
    if ssdlm(["generate", "--model", model, *files, "--seed", "0", *WAYS[way]]):
        raise SystemExit(2)


def fill(model: str, way: str, out: Path) -> None:
    """Write the new words of a model in all passages, unless they are there."""
    target = file_of(model, way, out)
    if target.exists():
        return
    opened, lines = SSDLM.from_pretrained(model), []
    for one in passages():
        asked = {"length": LENGTHS[way], "seed": 0}
        (done,) = opened.rewrite(one["text"], [span(one["text"], way)], **asked)
        lines.append(json.dumps({"text": done.text, "span": done.spans[0]}) + "\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, "".join(lines))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def all_texts(out: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the texts of all files that are done, by model and way."""
    files = {one: file_of(*one, out) for one in sets()}
    return {name: read(path) for name, path in files.items() if path.exists()}


def page(texts: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return a page with all texts, prompt by prompt."""
    lines = ["# Forty prompts, every text", "", *INTRODUCTION.strip().splitlines()]
    if missing := [" ".join(one) for one in sets() if one not in texts]:
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
            if way in WAYS:
                lines.append(f"| {model} | {way} | {cell(written[number]['text'])} |")
    lines += ["", "## Gaps and rewrites"]
    for number, one in enumerate(passages()):
        lines += ["", f"### Passage {number + 1}", "", "| model | way | text |", "|---|---|---|"]
        for way in LENGTHS:
            rows = {"as it was": {"text": one["text"], "span": span(one["text"], way)}}
            rows |= {model: all_of[number] for (model, own), all_of in texts.items() if own == way}
            lines += [f"| {name} | {way} | {marked(**row)} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text as code in a table: as it is, with line ends spelled."""
    return f"<code>{plain(text)}</code>" if text else "(nothing)"


def marked(text: str, span: Sequence[int]) -> str:
    """Return a passage in a table, with the words of a span in bold."""
    parts = text[: span[0]], text[span[0] : span[1]], text[span[1] :]
    left, new, right = map(plain, parts)
    return f"{left}<b>{new}</b>{right}"


def plain(text: str) -> str:
    """Return a text that is no markup, with line ends spelled."""
    shown = text.replace("\n", "\\n")
    return "".join(f"&#{ord(one)};" if one in MARKS else one for one in shown)


INTRODUCTION = """
Written by `python benchmarks/forty.py --out runs/forty --page docs/forty.md`: seed 0, no text left
out or written twice. Prompts, schema and passages were committed before any text. `builtin:mini`
continues the prompt; `smollm2` ([SmolLM2-135M-Instruct, 4-bit, dequantised](models.md#smollm2)) and
`builtin:smol` (its [adapter](adapter.md), four positions open) get it as a user's message.
*positive* is `--control sentiment=positive`; *schema* asks for an object with an answer, a topic
and whether it is certain. Texts have at most 48 tokens, under the schema 96. In each of forty
[passages](#gaps-and-rewrites), *gap* takes out the eight words in the middle, which are written
anew in as many tokens, and *rewrite* the second sentence, in a free number of tokens: new words are
bold. A line end is shown as `\\n`.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the texts that are not there yet, then the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the texts")
    parser.add_argument("--page", type=Path, required=True, help="the page to write")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    ways = ",".join((*WAYS, *LENGTHS))
    parser.add_argument("--ways", default=ways, help="names, separated by commas")
    given = parser.parse_args(argv)
    models, asked = given.models.split(","), given.ways.split(",")
    for option, names, known in (("models", models, MODELS), ("ways", asked, ways.split(","))):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"--{option} {unknown[0]} is none of {', '.join(known)}")
    for model, way in sets():
        if model in models and way in asked:
            (write if way in WAYS else fill)(model, way, given.out)
    texts = all_texts(given.out)
    given.page.write_text(page(texts), encoding="utf-8")
    print(json.dumps({"texts": sum(map(len, texts.values())), "page": str(given.page)}))


if __name__ == "__main__":
    main()
