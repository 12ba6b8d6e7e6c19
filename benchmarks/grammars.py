"""Whether texts match their grammar, always: some 200 patterns of many kinds, 20 samples each.

Every text is held against `re.fullmatch`; one that does not match ends the run with an error.
Beside the rate stands what a pass costs with a grammar and without, on one path in one run: every
few patterns (`--compare`), since texts without a grammar never end early and take most of the time.

    python benchmarks/grammars.py builtin:mini --samples 20
    python benchmarks/grammars.py builtin:mini --samples 2 --count 40 --seconds 120
    python benchmarks/grammars.py builtin:mini --part 1/8 > 1.log    # and so on; then
    python benchmarks/grammars.py --merge *.log
    python benchmarks/grammars.py smollm2 --valid valid.jsonl --samples 20
    python benchmarks/grammars.py --judge valid.jsonl

The last but one writes texts of 200 patterns, 50 schemas and 30 context-free grammars, and goes on
where it was stopped; wide windows (`--paths`) take minutes a grammar. The last one asks `re`,
jsonschema and lark whether each text is valid.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from context_free import GRAMMARS, LARK, TWINS
from schemas import SCHEMAS

from ssdlm import SSDLM
from ssdlm.engine.requests import Generation, in_order

PROMPT = "The report says that"
PATHS = {
    "left to right": {"grid": "sliding", "width": 1.0, "T": 25},
    "sliding window": {"grid": "sliding", "width": 4.0, "T": 25},
    "window in blocks": {"grid": "staggered", "width": 4.0, "T": 28},
    "all at once": {"grid": "uniform", "T": 10},
    "autoregressive": {"mode": "autoregressive"},
}
"""How texts are written; patterns take turns, so that every kind of pattern meets every path."""
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
WORDS = ["river", "house", "night", "garden", "winter", "bridge", "letter", "stone"]
COLOURS = ["red", "green", "blue", "white", "black", "yellow"]


def dates() -> Iterator[str]:
    yield r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    yield rf" ({MONTHS}) [1-9]\d?, (19|20)\d{{2}}"
    yield r"(0?[1-9]|[12]\d|3[01])/(0?[1-9]|1[0-2])/\d{2}(\d{2})?"
    yield r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?"
    yield r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})"
    yield from (rf" (on|by|since) the {n}(st|nd|rd|th) of ({MONTHS})" for n in range(1, 11))


def addresses() -> Iterator[str]:
    yield r"[a-z0-9]+(\.[a-z0-9]+)*@[a-z0-9]+(-[a-z0-9]+)*(\.[a-z]{2,4})+"
    yield r"https?://(www\.)?[a-z]{3,12}\.(com|org|net)(/[a-z0-9]{1,8}){0,3}/?"
    yield r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
    yield r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    yield r"#([0-9A-F]{3}){1,2}"
    yield r"\d{1,4} [A-Z][a-z]+ (Street|Road|Lane), [A-Z][a-z]+ \d{5}"
    for name in WORDS:
        yield rf"{name}[._-]?\d{{0,3}}@({'|'.join(COLOURS)})\.example"


def telephones() -> Iterator[str]:
    yield r"\(\d{3}\) \d{3}-\d{4}"
    yield r"\+\d{1,3}( \d{2,4}){2,4}"
    yield r"(\+44|0)7\d{3}[ -]?\d{6}"
    yield r"\d{3}([.-])?\d{3}\d{4}"
    for digits in range(4, 20):
        yield rf"(tel: )?0\d{{{digits}}}"


def lists() -> Iterator[str]:
    yield r"( \w+,){2,4} and \w+\."
    yield r"(- [a-z ]{3,20}\n){2,4}"
    yield r"(\d\. [A-Z][a-z ]{2,15}\n){3}"
    yield r"\[(\d+(, \d+){0,5})?\]"
    yield r"(\w+;)*\w+"
    for count in range(1, 12):
        yield rf" ({'|'.join(WORDS)})(, ({'|'.join(WORDS)})){{{count}}}"
        yield rf"(({'|'.join(COLOURS)}) ){{{count}}}end"


def records() -> Iterator[str]:
    string, number = r'"[^"\\\x00-\x1f]{0,20}"', r"(0|-?[1-9]\d{0,5})"
    yield rf'\{{"name": {string}, "age": {number}\}}'
    yield rf'\{{"a": (true|false|null), "b": \[({number}(, {number}){{0,3}})?\]\}}'
    yield rf'\[(\{{"id": {number}\}}(, \{{"id": {number}\}}){{0,3}})?\]'
    yield r"<p>(<b>[a-z ]+</b>|[a-z ]+){1,3}</p>"
    yield rf"[a-z]+=({number}|[a-z]+)(&[a-z]+=({number}|[a-z]+)){{0,3}}"
    yield r"(\w+,){3}\w+\n(\d+,){3}\d+"
    for key in WORDS:
        yield rf'\{{"{key}": ({string}|{number}|null)\}}'
        yield rf"{key}: {number}(\.\d{{1,2}})?( (kg|km|s))?"


def poems() -> Iterator[str]:
    for rhyme in ("ight", "ing", "all", "ay", "ove", "own", "ear", "ore"):
        yield rf"( [a-z]+){{2,5}}{rhyme},\n( [a-z]+){{2,5}}{rhyme}\."
    for first, second in (("ee", "ound"), ("ain", "ose"), ("ade", "ill"), ("end", "oo")):
        line = r"[A-Z][a-z]*( [a-z]+){1,4}"
        yield rf"{line}{first}\n{line}{second}\n{line}{first}\n{line}{second}"


def alternatives() -> Iterator[str]:
    yield "(a|ab)(c|bcd)(d*)"
    yield "((a|b)(c|d)|(e|f)(g|h))+"
    yield "(((red|green) (light|dark))|((old|new) (house|(small|large) garden)))!?"
    yield "(|a|bb|ccc)(|x|yy)"
    yield r"(yes|no|maybe(, (yes|no))?)\."
    for one in COLOURS:
        for other in COLOURS[:4]:
            yield rf" the ({one}|{other}( and {one})?) ({'|'.join(WORDS[:3])})(s|'s \w+)?"


def unicode_classes() -> Iterator[str]:
    yield "[\u03b1-\u03c9]{3,8}"
    yield "[\u0430-\u044f]+( [\u0430-\u044f]+)?"
    yield "[\u4e00-\u9fff]{2,6}"
    yield "(\u65e5\u672c|\u4e2d\u56fd)\u8a9e?"
    yield "[\u00e0-\u00ff]{1,5}!"
    yield "[\U0001f600-\U0001f64f]{1,3}"
    yield r"[^\W\d_]{2,10}"
    yield r"\w{3,12}\W\w{3,12}"
    yield "(?i)stra\u00dfe|caf\u00e9"
    yield r"[^\x00-\x7f]{1,4}"
    yield r"\S+\s\S+"
    yield r"\D{3,9}"
    yield "na\u00efve( r\u00e9sum\u00e9)*"


def anchors() -> Iterator[str]:
    yield "^ [a-z]+$"
    yield r"\A\d{3}\Z"
    yield "(?m)^a$\n^b$"
    yield "(^ one| two$)"
    yield "(?s)^.{5,10}$"
    yield r"(?x) [a-z]+ \  \d+  # a word and a number"
    yield "(?i)^the [a-z]{3,9}$"
    yield "(?i:ABC)d(?-i:E)?"
    yield r"(?P<head>[A-Z]\w*)(?: (?P<tail>\w+))?"
    yield "a$\n?"


def repeats() -> Iterator[str]:
    for low, high in ((0, 1), (1, 1), (0, 7), (5, 9), (12, 12), (20, 60), (0, 300), (30, 40)):
        yield rf"a{{{low},{high}}}"
        yield rf"[a-z ]{{{low},{high}}}"
        yield rf"(ab?){{{low},{high}}}c"
    yield "(a?){40}"
    yield "(x{2}){3,5}"
    yield ".{0,80}"
    yield "[^e]{10,60}"
    yield "(ha){2,10}!*?"
    yield r"(\w+ ){4,9}\w+\."


def near_empty() -> Iterator[str]:
    yield ""
    yield "a{0}"
    yield "()"
    yield "x"
    yield "(|)"
    yield "[z]"
    yield "a|a|a"
    yield "\\n"
    yield "^$"
    yield " "
    yield r"\\"
    yield "(?:)*"


KINDS = (dates, addresses, telephones, lists, records, poems, alternatives)
KINDS += (unicode_classes, anchors, repeats, near_empty)


def patterns() -> list[tuple[str, str]]:
    """Return (kind, pattern) in turns, one of each kind after another, so that any part has all."""
    left = {kind.__name__: kind() for kind in KINDS}
    found: list[tuple[str, str]] = []
    while left:
        for name, source in list(left.items()):
            pattern = next(source, None)
            if pattern is None:
                del left[name]
            else:
                found.append((name, pattern))
    return found


def timed(model: SSDLM, options: dict[str, object]) -> tuple[list[Generation], float]:
    """Return texts and the milliseconds per pass, the compiling not counted."""
    requests = model.requests([PROMPT], options)
    began = time.perf_counter()
    texts = [text for _, text in model.engine.write(requests)]
    passes = sum(text.passes_per_token * max(1, len(text.tokens)) for text in texts)
    return texts, 1000 * (time.perf_counter() - began) / passes


@dataclass
class Found:
    """What a run, or a part of one, has found."""

    kinds: dict[str, list[int]] = field(default_factory=dict)
    """For each kind of pattern how many, and how many texts, all of which match."""
    cost: dict[str, list[list[float]]] = field(default_factory=dict)
    """For each path pairs of milliseconds per pass: without a grammar, and with one."""
    compiling: list[float] = field(default_factory=list)
    """Seconds that each pattern took to compile."""

    def add(self, other: Found) -> None:
        """Take in what another part has found."""
        for kind, counts in other.kinds.items():
            own = self.kinds.get(kind, [0, 0])
            self.kinds[kind] = [a + b for a, b in zip(own, counts, strict=True)]
        for path, pairs in other.cost.items():
            self.cost.setdefault(path, []).extend(pairs)
        self.compiling += other.compiling

    def report(self) -> None:
        """Print the tables, and a JSON line with all that a merge needs."""
        print("| patterns | number | texts | match |\n|---|---|---|---|")
        for kind, (number, texts) in self.kinds.items():
            print(f"| {kind.replace('_', ' ')} | {number} | {texts} | 100 % |")
        print("\n| path | ms per pass, plain | with a grammar | ratio |\n|---|---|---|---|")
        ratios = {}
        for path, pairs in self.cost.items():
            ratios[path] = median(held / plain for plain, held in pairs)
            plain, held = (median(column) for column in zip(*pairs, strict=True))
            print(f"| {path} | {plain:.1f} | {held:.1f} | {ratios[path]:.2f} |")
        figures = {
            "patterns": sum(number for number, _ in self.kinds.values()),
            "texts": sum(texts for _, texts in self.kinds.values()),
            "match": 1.0,
            "cost_ratio": ratios,
            "median_compile_s": median(self.compiling),
            "longest_compile_s": max(self.compiling),
        }
        print(json.dumps(figures | {"found": asdict(self)}))


def merged(files: Sequence[str]) -> Found:
    """Return what the parts of a run have found together."""
    found = Found()
    for file in files:
        found.add(Found(**json.loads(Path(file).read_text().splitlines()[-1])["found"]))
    return found


def chosen_paths(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the paths that were asked for, or all."""
    return {name: PATHS[name] for name in args.paths.split(",")} if args.paths else PATHS


def run(args: argparse.Namespace) -> Found:
    """Write texts of one pattern after another, and return what was found."""
    model = SSDLM.from_pretrained(args.model)
    paths = {
        name: {"length": args.length, "top_p": 0.95, **path}
        | ({} if "mode" in path else {"returns": "w_0"})
        for name, path in chosen_paths(args).items()
    }
    for path in paths.values():
        timed(model, path)  # the first of anything takes longer
    began, found = time.perf_counter(), Found()
    part, num_parts = map(int, args.part.split("/"))
    mine = islice(enumerate(islice(patterns(), args.count)), part - 1, None, num_parts)
    for number, (kind, pattern) in mine:
        if time.perf_counter() - began > args.seconds:
            break
        name = list(paths)[(number + number // len(KINDS)) % len(paths)]
        options = paths[name] | {"regex": pattern, "seed": number}
        start = time.perf_counter()
        model.requests([PROMPT], options)
        compiling = time.perf_counter() - start
        texts, held = timed(model, options | {"num_samples": args.samples})
        for text in texts:
            assert re.fullmatch(pattern, text.text), f"{pattern!r} is not matched by {text.text!r}"
        found.add(Found({kind: [1, len(texts)]}, {}, [compiling]))
        if number % args.compare == 0 and any(text.tokens for text in texts):
            # Right after the other, since the machine may have other things to do.
            plain = timed(model, paths[name] | {"seed": number, "num_samples": args.samples})[1]
            found.add(Found(cost={name: [[plain, held]]}))
    return found


def languages() -> Iterator[tuple[str, str, Any]]:
    """Yield option, name and value of every grammar, schema and pattern."""
    yield from (("grammar", name, grammar) for name, grammar in GRAMMARS.items())
    yield from (("json_schema", str(number), schema) for number, schema in enumerate(SCHEMAS))
    yield from (("regex", pattern, pattern) for _, pattern in patterns()[:200])


def ways_of(model: SSDLM, args: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the paths that a model can write on; a causal language model has one open position."""
    common: dict[str, object] = {"length": args.length, "top_p": 0.95}
    ways = {name: common | path for name, path in chosen_paths(args).items()}
    for name, way in list(ways.items()):
        try:
            model.requests([PROMPT], way)
        except ValueError:
            del ways[name]
    return ways


def write_languages(args: argparse.Namespace) -> None:
    """Write texts of every grammar, schema and pattern that the file does not have yet."""
    model, out = SSDLM.from_pretrained(args.model), Path(args.valid)
    ways = ways_of(model, args)
    done = {(one["option"], one["name"]) for one in read_lines([args.valid])}
    began, (part, num_parts) = time.perf_counter(), map(int, args.part.split("/"))
    todo = [
        (list(ways)[number % len(ways)], number, *language)
        for number, language in islice(enumerate(languages()), part - 1, None, num_parts)
        if language[:2] not in done
    ]
    todo.sort(key=lambda one: list(ways).index(one[0]))  # texts of one path go together
    for first in range(0, len(todo), args.together):
        if time.perf_counter() - began > args.seconds:
            break
        lines, options = [], []
        for path, number, option, name, value in todo[first : first + args.together]:
            line = {"option": option, "name": name, "path": path, "texts": args.samples}
            changes = {option: value, "seed": number, "num_samples": args.samples}
            try:
                options.append(model.requests([PROMPT], ways[path] | changes)[0].options)
            except ValueError as error:
                line |= {"refused": str(error), "texts": 0}
            lines.append(line)
        requests = model.engine.prepare([PROMPT] * len(options), options)
        texts = (text.text for text in in_order(model.engine.write(requests)))
        with out.open("a") as file:
            for line in lines:
                line["texts"] = list(islice(texts, line["texts"]))
                file.write(json.dumps(line) + "\n")
        seconds = time.perf_counter() - began
        print(f"{first + len(lines)} of {len(todo)} languages in {seconds:.0f} s", flush=True)


def read_lines(files: Sequence[str]) -> list[dict[str, Any]]:
    """Return what was written, as far as there are files."""
    there = [Path(file) for file in files if Path(file).exists()]
    return [json.loads(line) for file in there for line in file.read_text().splitlines()]


def judges() -> dict[tuple[str, str], Callable[[str], Any]]:
    """Return for each option and name what raises or is false on a text that is not valid."""
    import jsonschema
    import lark

    def judge(option: str, name: str, value: Any) -> Callable[[str], Any]:
        if option == "regex":
            return re.compile(value).fullmatch
        if option == "json_schema":
            is_valid = jsonschema.Draft202012Validator(value).is_valid
            return lambda text: is_valid(json.loads(text))
        notation = LARK.get(name) or TWINS[name]
        parse = lark.Lark(notation, parser="earley", lexer="dynamic_complete").parse
        return lambda text: parse(text) is not None

    return {(option, name): judge(option, name, value) for option, name, value in languages()}


def judge_files(files: Sequence[str]) -> None:
    """Print how many texts are valid, and each that is not."""
    lines, judge_of = read_lines(files), judges()
    figures = {}
    for option in ("regex", "json_schema", "grammar"):
        own = [one for one in lines if one["option"] == option]
        all_texts = [(one["name"], text) for one in own for text in one["texts"]]
        bad = [one for one in all_texts if not is_true(judge_of[option, one[0]], one[1])]
        refused = {one["name"]: one["refused"] for one in own if "refused" in one}
        found = {"languages": len(own), "texts": len(all_texts), "bad": bad, "refused": refused}
        figures[option] = found | {"different": len(set(all_texts))}
        print(f"{option}: {len(own)} languages, {len(all_texts)} texts, {len(bad)} not valid")
    print(json.dumps(figures))


def is_true(is_valid: Callable[[str], Any], text: str) -> bool:
    """Tell whether a text is valid; those who say so by an error are heard too."""
    try:
        return bool(is_valid(text))
    except Exception:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="folder, Hub id or builtin:mini")
    parser.add_argument("--samples", type=int, default=20, help="texts per pattern")
    parser.add_argument("--count", type=int, help="patterns, all without it")
    parser.add_argument("--part", default="1/1", help="every n-th pattern from the i-th: i/n")
    parser.add_argument("--length", type=int, default=75, help="the most tokens in a text")
    parser.add_argument(
        "--compare", type=int, default=5, help="every so many patterns, cost without"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--valid", metavar="FILE", help="write all kinds of grammars there")
    parser.add_argument("--together", type=int, default=8, help="grammars at once, of --valid")
    parser.add_argument("--paths", help="which paths, with commas between; without it all")
    parser.add_argument("--judge", nargs="+", metavar="FILE", help="what --valid wrote")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="what the parts printed")
    args = parser.parse_args()
    if args.valid:
        write_languages(args)
    elif args.judge:
        judge_files(args.judge)
    else:
        (merged(args.merge) if args.merge else run(args)).report()


if __name__ == "__main__":
    main()
