"""The pages tell the truth: snippets run, commands parse, links lead somewhere, lists are whole."""

import ast
import dataclasses
import json
import re
import runpy
import shlex
import subprocess
import sys
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import torch
from tests.closeness import assert_close

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli import main, parser
from ssdlm.diffusion.grid import Uniform
from ssdlm.diffusion.steps import Ddpm, Renoise
from ssdlm.guidance.grammar import parse_control
from ssdlm.settings import override
from ssdlm.storage.builtin import builtin_guides, unpacked_smollm2
from ssdlm.train.recipes import recipe

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "ssdlm"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS_RUN = ["README.md", "docs/quickstart.md", "docs/choosing.md", "docs/control.md"]
SNIPPETS_RUN += [
    "docs/how-it-works.md",
    "docs/constraints.md",
    "docs/rewriting.md",
    "docs/migrating.md",
]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(text: str, *languages: str) -> list[str]:
    """The code blocks of a page that are marked as one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [body for language, body in found if language in languages]


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def run_script(path: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(path), *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[str, str]:
    """The paths of a tiny model and a classifier for it, written by the examples' own code."""
    write = runpy.run_path(str(ROOT / "examples" / "tiny_model.py"))["tiny"]
    return write(tmp_path_factory.mktemp("tiny"))


def tiny_form(snippet: str, model: str, classifier: str, folder: Path) -> str:
    """A snippet with the models of the Hub and its sizes replaced by tiny ones."""
    snippet = snippet.replace("xhan77/ssdlm", model).replace("models/", f"{folder}/")
    snippet = snippet.replace("builtin:mini", model)
    snippet = snippet.replace("cardiffnlp/twitter-roberta-base-sentiment", classifier)
    snippet = snippet.replace('classifier_guide("sentiment"', f'classifier_guide("{classifier}"')
    snippet = snippet.replace('guides=["sentiment"]', f'guides=["sentiment={classifier}"]')
    for name, value in (("length", 6), ("T", 3), ("B", 4)):
        snippet = re.sub(rf"\b{name}=\d+", f"{name}={value}", snippet)
    return snippet


@pytest.mark.parametrize("page", SNIPPETS_RUN)
def test_python_on_the_page_runs(page, tiny, tmp_path, capsys):
    snippets = fences((ROOT / page).read_text(), "python")
    assert snippets
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(tiny_form(snippet, *tiny, tmp_path), page, "exec"), namespace)
    assert "Error" not in capsys.readouterr().out


def test_the_control_pages_own_function_acts_on_the_default_model(tmp_path):
    (snippet,) = (
        body
        for body in fences((ROOT / "docs/control.md").read_text(), "python")
        if "def no_letter_e" in body
    )
    *_, call = snippet.strip().splitlines()
    assert call.startswith("model.generate(")
    namespace: dict[str, object] = {"SSDLM": SSDLM}
    exec(snippet.replace(call, "made = " + call.replace("length=20", "length=4")), namespace)
    plain = namespace["model"].generate("The food", length=4, seed=0)
    assert namespace["made"].tokens != plain.tokens


@pytest.mark.filterwarnings("ignore::ssdlm.engine.controls.ControlWarning")  # of tiny models
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_a_network(example, tmp_path, monkeypatch, capsys, unchecked):
    """In this process: most of an example's ten seconds would be importing torch."""
    assert len(example.read_text().splitlines()) < 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), "--tiny"])
    monkeypatch.syspath_prepend(str(example.parent))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_an_example_is_a_script_of_its_own(tmp_path):
    done = run_script(ROOT / "examples" / "01_generate.py", "--tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_opens_what_is_built_in_unless_told(example):
    """What has to be downloaded would end in a traceback where there is no network."""
    tree = ast.walk(ast.parse(example.read_text()))
    for node in (node for node in tree if isinstance(node, ast.Call)):
        flags = {one.value for one in node.args if isinstance(one, ast.Constant)}
        if {"--model", "--classifier", "--tokenizer"} & flags:
            (default,) = (word.value for word in node.keywords if word.arg == "default")
            assert default.value.removeprefix("builtin:") in ("mini", *builtin_guides())


def test_ddpm_benchmark_ends_in_a_json_line(tmp_path):
    done = run_script(ROOT / "benchmarks" / "ddpm.py", "--tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    collapsed = [r for r in results if "Eq. 21" in r["rule"] and r["projection"] == "greedy"]
    assert [r["distinct"] for r in collapsed] == [1]


def test_ddpm_without_its_noise_is_the_mean_of_rho_one():
    grid = Uniform(10)(4)
    w_t, w_hat = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    z = torch.zeros_like(w_t)
    for t in range(10, 0, -1):
        mean = Renoise(1.0)(w_t, w_hat, grid=grid, t=t, K=5.0, z=z)
        assert_close(Ddpm()(w_t, w_hat, grid=grid, t=t, K=5.0, z=z), mean)


def commands_on(page: Path) -> list[list[str]]:
    """The words of every `ssdlm` command in the page's shell blocks, up to a pipe or a comment."""
    found = []
    for body in fences(page.read_text(), "sh", "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for end in (">", "|", "&&"):
                words = words[: words.index(end)] if end in words else words
            found += [words[1:]] if words[:1] == ["ssdlm"] else []
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_on_the_page_parse(page, capsys):
    wrong = []
    for words in commands_on(page):
        try:
            parser().parse_args(words)
        except SystemExit:
            wrong.append(f"{shlex.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")
    assert wrong == []


def options_of_all_commands() -> set[str]:
    """Every `--option` that some command takes, and those of our own scripts and of pip."""
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text()
    names = re.findall(r"^\| `(--[^`]+)`", reference, re.M)
    return {*re.findall(r"--[\w-]+", " ".join(names)), "--tiny", "--help", "--index-url"}


@pytest.mark.parametrize("page", [*SNIPPETS_RUN, "docs/footguns.md"])
def test_options_named_in_the_text_exist(page):
    named = set(re.findall(r"`(?:[^`\n]* )?(--[\w-]+)", prose((ROOT / page).read_text())))
    assert named - options_of_all_commands() == set()


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page.read_text()), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_on_the_page_resolve(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def defined_in(path: Path) -> set[str]:
    """The functions and classes of a file, and the methods of its classes as Class.method."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            names |= {f"{node.name}.{name}" for name in inner}
    return names


def test_functions_named_beside_equations_exist():
    page = ROOT / "docs" / "how-it-works.md"
    links = re.findall(r"\[`(\w+)\.([\w.]+)`\]\(([^)]+\.py)\)", page.read_text())
    assert len(links) > 30
    for module, name, link in links:
        path = (page.parent / link).resolve()
        home = path.parent.name if path.stem == "__init__" else path.stem
        assert module == home, f"{module}.{name} is linked to {link}"
        assert name in defined_in(path), f"{link} has no {name}"


def test_every_equation_of_the_paper_is_on_the_page():
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    listed: set[int] = set()
    for first, last in re.findall(r"^\| Eq\. (\d+)(?:-(\d+))? \|", text, re.M):
        listed |= set(range(int(first), int(last or first) + 1))
    assert listed == {*range(1, 10), *range(13, 20), 21, 22, 23}


def files_in_tree(block: str) -> dict[str, str]:
    """Each file or folder of an indented tree, below its first line, with what is said of it."""
    glosses, folders = {}, []
    for line in block.splitlines():
        name, _, gloss = line.strip().partition(" ")
        del folders[(len(line) - len(line.lstrip())) // 2 :]
        glosses["".join([*folders, name])] = gloss.strip()
        folders += [name] if name.endswith("/") else []
    return glosses


def test_readme_lists_every_room():
    blocks = fences((ROOT / "README.md").read_text(), "")
    (block,) = [block for block in blocks if block.startswith("src/ssdlm/")]
    listed = files_in_tree(block)
    rooms = {f"src/ssdlm/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    files = {f"src/ssdlm/{path.name}" for path in PACKAGE.glob("*.py") if path.name[0] != "_"}
    assert sorted({"src/ssdlm/"} | rooms | files) == sorted(listed)
    assert [path for path, gloss in listed.items() if not gloss] == []


def plain(value: object) -> str:
    """A setting as docs/choosing.md writes it."""
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_defaults_on_the_page_are_those_users_get():
    """The columns of docs/choosing.md: the built-in model's own file, and the library's values."""
    text = (ROOT / "docs" / "choosing.md").read_text()
    table = text.partition("\n## Defaults\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| `([^`]+)` \|$", table, re.M)
    library = {field.name: plain(field.default) for field in dataclasses.fields(DecodeConfig)}
    stored = json.loads((PACKAGE / "builtin/mini/generation_config.json").read_text())
    builtin = library | {name: plain(value) for name, value in stored.items()}
    assert set(stored) <= {name for name, _, _ in rows}
    for name, own, other in rows:
        assert (name, own, other) == (name, builtin[name], library[name])


def prose_lines(page: Path) -> list[tuple[int, str]]:
    """The lines of a page outside code, with their numbers."""
    found, in_code = [], False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        in_code ^= line.startswith("```")
        if not in_code and not line.startswith(("```", "    ")):
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_prose_is_at_most_120_columns_wide(page):
    is_readme = page.name == "README.md"
    lines = [(n, line) for n, line in prose_lines(page) if is_readme or not line.startswith("|")]
    assert [n for n, line in lines if len(line) > 120] == []


UNITS = "token|block|prompt|position|byte|sequence"
COUNTED = "nats|bits|passes|calls|steps|texts|samples|seeds|sequences"
BANNED = rf"\b(?:{COUNTED}) a (?:{UNITS})\b|\ba token\)|\bpeople's\b"
TEXTS = "control-texts.md"
WRITTEN = [page for page in PAGES if "reference" not in page.parts and page.name != TEXTS]
"""Pages that are not generated from the source, nor by a model."""


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_prose_says_per_token_and_human_text(page):
    text = re.sub(r"\s+", " ", prose(page.read_text()))
    assert re.findall(BANNED, text) == []


def test_measured_figures_have_their_path_and_passes():
    tables = {"README.md": "| what | ours |", "docs/results.md": "| experiment | ours |"}
    for page, first in tables.items():
        lines = (ROOT / page).read_text().partition(first)[2].splitlines()
        rows = [line.split("|")[1:-1] for line in takewhile(lambda line: "|" in line, lines[2:])]
        assert len(rows) >= 3
        for what, _, *beside in rows:
            assert re.search(r"[a-z]", beside[0]) or "training" in what, f"{page}: {what}"
            assert re.search(r"\d", "".join(beside[:2])) or "training" in what, f"{page}: {what}"


def section_of(page: Path, anchor: str) -> str:
    """The part of a page below a heading, up to the next heading of that depth."""
    parts = re.split(r"^(#+ .*)$", page.read_text(), flags=re.M)
    for heading, rest in zip(parts[1::2], range(2, len(parts), 2), strict=True):
        if slug(heading.lstrip("#")) == anchor:
            depth = len(heading) - len(heading.lstrip("#"))
            text = "".join(parts[rest:])
            return re.split(rf"^#{{1,{depth}}} ", text, flags=re.M)[0]
    raise ValueError(f"{page.name} has no heading {anchor}")


def headlines() -> list[tuple[str, Path, str]]:
    """The rows of README's table and of that on top of docs/results.md, and what they link."""
    found = []
    for page, first in ((ROOT / "README.md", "| what |"), (ROOT / "docs/results.md", "| exper")):
        lines = page.read_text().partition(first)[2].splitlines()
        for row in takewhile(lambda line: "|" in line, lines[2:]):
            if numbered := re.search(r"\]\[(\d)\]", row):
                (place,) = re.findall(rf"^\[{numbered[1]}\]: (.*)$", page.read_text(), re.M)
            else:
                place = re.findall(r"\]\(([^)]+)\)", row)[0]
            link, _, anchor = place.partition("#")
            found.append((row, page.parent / link if link else page, anchor))
    return found


def test_a_headline_has_the_figures_of_the_table_that_it_links():
    """So that the figures of README, docs/results.md and docs/speed.md are those of one run."""
    number, wrong = r"\d+(?:,\d{3})*(?:\.\d+)?", []
    for row, page, anchor in headlines():
        _, ours, _, beside = (re.sub(r"\(.*?\)", "", cell) for cell in row.split("|")[1:-1])
        known = set(re.findall(number, section_of(page, anchor)))
        figures = {one for one in re.findall(number, f"{ours} {beside}") if len(one) > 1}
        wrong += [f"{row}: {one}" for one in figures - known]
    assert wrong == []


def test_the_default_has_one_perplexity_on_every_page():
    rows = {
        "README.md": r"after 200 reviews \| (\S+ \[\d+, \d+\])",
        "docs/results.md": r"after 200 reviews\]\S* \| (\S+ \[\d+, \d+\])",
        "docs/speed.md": r"\| reviews \| sliding \| 1.02 \| (\S+ \[\d+, \d+\])",
        "docs/choosing.md": r"\| none: the default \| [^|]+ \| (\S+ \[\d+, \d+\])",
        "docs/model-card.md": r"\| sliding \(default\) \| [^|]+ \| (\S+ \[\d+, \d+\])",
    }
    found = {re.findall(row, (ROOT / page).read_text())[0] for page, row in rows.items()}
    assert len(found) == 1


def test_readme_leads_with_three_figures():
    assert len([page for _, page, _ in headlines()]) > 12
    rows = (ROOT / "README.md").read_text().partition("## What has been measured")[2]
    assert len(re.findall(r"^\|", rows.partition("\n## ")[0], re.M)) == 2 + 3


def test_choosing_says_why_the_default_is_not_the_mode_of_the_lowest_perplexity():
    page = ROOT / "docs" / "choosing.md"
    modes = section_of(page, "modes")
    ((lower, ours),) = re.findall(
        r"is the default\*\*, although .* \((\S+) against (\S+) on", modes
    )
    table = section_of(page, "which-path-when")
    assert f"`--mode autoregressive` | 1.0 (GPU 1.02) | {lower} [" in table
    assert f"none: the default | 1.0 (GPU 1.02) | {ours} [" in table


def test_serving_ends_with_what_was_measured_and_the_log_has_the_stories():
    serving = section_of(ROOT / "docs" / "serving.md", "what-was-measured")
    assert "crash that is mended" not in serving
    assert len(serving.rpartition("|")[2].split()) < 80
    section_of(ROOT / "docs" / "log.md", "2026-11-17-what-a-server-spends-its-time-on")


def test_the_law_of_particles_is_said_of_the_guided_p_where_a_gradient_steers_too():
    particles = " ".join(section_of(ROOT / "docs" / "control.md", "particles").split())
    law = particles.partition("tend to the law p(text) exp(weight * score(text))")[2]
    assert "a gradient steers too, **p is the guided p**" in law.partition(" - **")[0]


def test_parity_is_told_by_the_bound_that_its_test_asserts():
    told = section_of(ROOT / "docs" / "how-it-works.md", "parity-with-the-authors-code")
    assert "no logit by 1e-4 or more" in told and not re.search(r"e-0\d", told)
    assert "< 1e-4" in (ROOT / "tests/parity/test_replay.py").read_text()


def test_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def values_of(words: list[str], flag: str) -> list[str]:
    """What follows a repeatable flag on a command line."""
    return [value for name, value in pairwise(words) if name == flag]


def test_a_built_in_guide_is_shown_only_with_a_model_it_can_steer():
    """The built-in guides know the built-in model's tokens and not those of the paper's model."""
    shown = []
    for words in (words for page in PAGES for words in commands_on(page)):
        specs = [parse_control(text) for text in values_of(words, "--control")]
        if {spec.name for spec in specs} & set(builtin_guides()):
            shown += values_of(words, "--model") or ["builtin:mini"]
    assert len(shown) > 4
    assert [model for model in shown if "/" in model and not model.startswith("models/")] == []


def test_settings_of_training_on_the_pages_exist():
    checked = 0
    for words in (words for page in PAGES for words in commands_on(page) if words[0] == "train"):
        (name,) = values_of(words, "--recipe")
        settings = [word for word in words if re.match(r"[\w.]+=", word)]
        if "$" not in name:
            override(recipe(name), settings)
            checked += len(settings)
    assert checked > 10


@pytest.mark.parametrize("number", [0, 1])
def test_the_first_commands_of_the_readme_write_what_it_says(number, capsys):
    text = (ROOT / "README.md").read_text()
    commands = [line for line in text.splitlines() if line.startswith("ssdlm generate")]
    _, *words = shlex.split(commands[number])
    if "smollm2" in words and not unpacked_smollm2().is_dir():
        pytest.skip("smollm2 is not unpacked here; `make smol` does it")
    whole = re.sub(r"\s+", " ", text)
    shown = re.search(r'The first writes "(.*?) \.\.\."; the second "(.*?)"', whole)
    assert shown is not None
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(shown[1 + number])
