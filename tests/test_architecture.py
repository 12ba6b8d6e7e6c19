"""The dependency rows, read from the import statements: arrows point down only.

Every rule takes `sources`, a mapping from module name ("denoiser.block"; "" is the package itself)
to its text, and returns its complaints, so that the rules can be shown to fail on made-up packages.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "ssdlm"

ROWS = [
    ["shapes", "values", "needs", "options", "config", "settings", "progress", "extras"],
    ["ops"],
    ["diffusion"],
    ["denoiser"],
    ["storage"],
    ["tokenizer"],
    ["guidance", "constraints", "data"],
    ["engine", "guidance.training"],
    ["api", "train"],
    ["evaluate"],
    ["reproduce", "bench", "serve"],
    ["cli"],
    ["", "__main__"],
]
"""The rooms, from the ground up. Within row 0 rooms may use each other, without circles."""
ROW_OF = {unit: row for row, units in enumerate(ROWS) for unit in units}

FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "registry"}
HEAVY = {"transformers", "accelerate", "datasets", "rich", "mauve", "fastapi", "fsspec", "ray"}
ALGORITHM = {"ops", "diffusion", "denoiser", "guidance.gradient", "constraints"}
ALGORITHM_MAY_IMPORT = {"torch", "numpy", *sys.stdlib_module_names}
FOREIGN = {
    "denoiser.encoder": {"transformers"},
    "ops.kernels.draws": {"triton"},
    "ops.kernels.encoder": {"triton"},
    "ops.kernels.guesses": {"triton"},
    "ops.kernels.guides": {"triton"},
    "ops.kernels.normals": {"triton"},
    "ops.kernels.nudges": {"triton"},
    "ops.kernels.products": {"triton"},
    "ops.kernels.rows": {"triton"},
    "ops.kernels.verify": {"triton"},
}
"""What some modules of the algorithm may import besides."""
ALLOWED = {"serve": {"fastapi"}}
"""What rooms may import on load that only one command loads."""
LOOPS = {"diffusion.sampler"}
"""What a denoiser may not call: it is called by them."""

Sources = dict[str, str]


@dataclass(frozen=True)
class Import:
    """One name that a module imports."""

    importer: str
    line: int
    target: str
    """Dotted and absolute: "torch.nn", "ssdlm.denoiser.block"."""
    on_load: bool
    """It runs when the module is loaded: outside functions and `if TYPE_CHECKING`."""

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]

    @property
    def is_ours(self) -> bool:
        return self.library == "ssdlm"

    @property
    def module(self) -> str:
        """Our module that is meant: "denoiser.block", or "" for the package itself."""
        return self.target.partition(".")[2]

    def __str__(self) -> str:
        return f"{self.importer or '__init__'}:{self.line} imports {self.target}"


def unit_of(module: str) -> str:
    """The entry of the row table a module belongs to: denoiser.block -> denoiser."""
    parts = module.split(".")
    homes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((home for home in homes if home in ROW_OF), parts[0])


def read_sources(root: Path) -> Sources:
    """The text of every module below `root`, by name."""
    sources = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


def nodes_on_load(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the module is loaded."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def absolute(node: ast.ImportFrom, importer: str, is_package: bool) -> str:
    """The dotted module a `from` import names, with leading dots resolved."""
    if node.level == 0:
        return node.module or ""
    here = ["ssdlm", *filter(None, importer.split("."))]
    up = node.level - is_package
    return ".".join([*here[: len(here) - up], *filter(None, [node.module])])


def targets(node: ast.AST, importer: str, sources: Sources) -> list[str]:
    """What an import statement imports; names taken from our packages resolve to modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    is_package = importer == "" or any(name.startswith(f"{importer}.") for name in sources)
    source = absolute(node, importer, is_package)
    if source.partition(".")[0] != "ssdlm":
        return [source]
    found = []
    for alias in node.names:
        module = f"{source}.{alias.name}".partition(".")[2]
        is_module = module in sources or module in ROW_OF
        if source != "ssdlm" or is_module or not alias.name.startswith("__"):  # not __version__
            found.append(f"ssdlm.{module}" if is_module else source)
    return found


@cache
def tree_of(text: str) -> ast.Module:
    return ast.parse(text)


def imports_of(sources: Sources) -> list[Import]:
    """Every import of every module, those inside functions too."""
    return imports_in(tuple(sources.items()))


@cache
def imports_in(modules: tuple[tuple[str, str], ...]) -> list[Import]:
    found, sources = [], dict(modules)
    for importer, text in modules:
        tree = tree_of(text)
        loaded = {id(node) for node in nodes_on_load(tree)}
        for node in ast.walk(tree):
            for target in targets(node, importer, sources):
                found.append(Import(importer, node.lineno, target, id(node) in loaded))
    return found


def unplaced_modules(sources: Sources) -> list[str]:
    return [
        f"{module} has no row: give it one in ROWS of tests/test_architecture.py"
        for module in sources
        if unit_of(module) not in ROW_OF
    ]


def forbidden_names(sources: Sources) -> list[str]:
    return [
        f"{module}: name the missing noun instead"
        for module in sources
        if FORBIDDEN_NAMES & set(module.split("."))
    ]


def arrows_not_down(sources: Sources) -> list[str]:
    complaints = []
    for edge in imports_of(sources):
        importer, target = unit_of(edge.importer), unit_of(edge.module)
        inside_one_room = importer == target and importer != ""
        if not edge.is_ours or inside_one_room or importer not in ROW_OF:
            continue
        if target not in ROW_OF:
            complaints.append(f"{edge}, which has no row")
            continue
        upper, lower = ROW_OF[importer], ROW_OF[target]
        is_shared = upper == lower == 0
        if lower >= upper and not is_shared and (importer, target) != ("__main__", ""):
            complaints.append(f"{edge}: row {upper} -> row {lower}")
    return complaints


def circles(sources: Sources) -> list[str]:
    """Modules that import each other when they are loaded, directly or by way of others."""
    edges: dict[str, set[str]] = {module: set() for module in sources}
    for edge in imports_of(sources):
        if edge.on_load and edge.is_ours and edge.module in sources:
            edges[edge.importer].add(edge.module)
    reached = {module: set(targets) for module, targets in edges.items()}
    for middle in sources:
        for module in sources:
            if middle in reached[module]:
                reached[module] |= reached[middle]
    inside = sorted(module for module in sources if module in reached[module])
    return [f"{', '.join(inside)} import each other in a circle"] if inside else []


def loops_in_denoisers(sources: Sources) -> list[str]:
    return [
        f"{edge}: a denoiser is called by the loops and calls none"
        for edge in imports_of(sources)
        if unit_of(edge.importer) == "denoiser" and edge.module in LOOPS
    ]


def is_algorithm(module: str) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in ALGORITHM)


def libraries_in_the_algorithm(sources: Sources) -> list[str]:
    return [
        f"{edge}: the algorithm imports torch, numpy and the standard library only"
        for edge in imports_of(sources)
        if is_algorithm(edge.importer)
        and not edge.is_ours
        and edge.library not in ALGORITHM_MAY_IMPORT | FOREIGN.get(edge.importer, set())
    ]


def effects_in_the_algorithm(sources: Sources) -> list[str]:
    """Printing, file access, `.cuda()` and logging where the algorithm is."""
    complaints = []
    for module, text in sources.items():
        if not is_algorithm(module):
            continue
        for node in ast.walk(tree_of(text)):
            if isinstance(node, ast.Call) and (
                (isinstance(node.func, ast.Name) and node.func.id in {"print", "open"})
                or (isinstance(node.func, ast.Attribute) and node.func.attr == "cuda")
            ):
                complaints.append(f"{module}:{node.lineno} calls {ast.unparse(node.func)}")
    complaints += [
        str(edge)
        for edge in imports_of(sources)
        if is_algorithm(edge.importer) and edge.library == "logging"
    ]
    return complaints


def heavy_on_load(sources: Sources) -> list[str]:
    return [
        f"{edge} on load: import it inside the function that needs it"
        for edge in imports_of(sources)
        if edge.on_load and edge.library in HEAVY - ALLOWED.get(unit_of(edge.importer), set())
    ]


def libraries_behind_the_door(sources: Sources) -> list[str]:
    """What `import ssdlm` and the command line load, modules of ours followed, beyond stdlib."""
    edges = [edge for edge in imports_of(sources) if edge.on_load]
    todo, seen, complaints = ["", "__main__", "cli"], set(), []
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        for edge in edges:
            if edge.importer != module:
                continue
            if edge.is_ours:
                parts = edge.module.split(".")
                todo += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
            elif edge.library not in sys.stdlib_module_names:
                complaints.append(f"{edge} before the arguments are parsed")
    return complaints


def not_ascii(sources: Sources) -> list[str]:
    return [
        f"{module}:{number} is not ASCII"
        for module, text in sources.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if not line.isascii()
    ]


def names_used(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names that are read in a node and not bound by a comprehension around them."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
        yield node.id
    for part in getattr(node, "generators", ()):
        bound |= {name.id for name in ast.walk(part.target) if isinstance(name, ast.Name)}
    for child in ast.iter_child_nodes(node):
        yield from names_used(child, bound)


def names_hidden_by_comprehensions(sources: Sources) -> list[str]:
    """Python 3.12 runs comprehensions in their function's frame, and once took one name for two."""
    return [
        f"{module}:{node.lineno} {name} is a comprehension's variable and a global name"
        for module, text in sources.items()
        for tree in [tree_of(text)]
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp)
        for name in sorted(
            {
                part.id
                for item in node.generators
                for part in ast.walk(item.target)
                if isinstance(part, ast.Name)
            }
            & set(names_used(function))
            & {
                thing.name
                for thing in tree.body
                if isinstance(thing, ast.FunctionDef | ast.ClassDef)
            }
        )
    ]


RULES = [
    unplaced_modules,
    forbidden_names,
    arrows_not_down,
    circles,
    loops_in_denoisers,
    libraries_in_the_algorithm,
    effects_in_the_algorithm,
    heavy_on_load,
    libraries_behind_the_door,
    not_ascii,
    names_hidden_by_comprehensions,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule):
    sources = read_sources(SRC)
    assert sources, f"no modules found below {SRC}"
    assert rule(sources) == []


@pytest.mark.parametrize(
    ("rule", "sources", "complaint"),
    [
        (unplaced_modules, {"rubbish": ""}, "rubbish has no row"),
        (unplaced_modules, {"rubbish.heap": ""}, "rubbish.heap has no row"),
        (forbidden_names, {"data.utils": ""}, "data.utils"),
        (arrows_not_down, {"storage": "import ssdlm.engine"}, "row 4 -> row 7"),
        (arrows_not_down, {"data": "from ssdlm.guidance import x"}, "row 6 -> row 6"),
        (arrows_not_down, {"data": "from ssdlm import guidance"}, "row 6 -> row 6"),
        (arrows_not_down, {"storage.files": "from .. import engine"}, "imports ssdlm.engine"),
        (arrows_not_down, {"data": "def f():\n    from .api import SSDLM"}, "data:2"),
        (arrows_not_down, {"guidance.grammar": "import ssdlm.guidance.training"}, "-> row 7"),
        (arrows_not_down, {"diffusion.loss": "import ssdlm.denoiser"}, "row 2 -> row 3"),
        (
            arrows_not_down,
            {"denoiser": "from ..x import y", "denoiser.block": ""},
            "imports ssdlm.x",
        ),
        (arrows_not_down, {"api": "from ssdlm import SSDLM"}, "row 8 -> row 12"),
        (arrows_not_down, {"api": "import ssdlm"}, "row 8 -> row 12"),
        (arrows_not_down, {"api": "import ssdlm.rubbish"}, "has no row"),
        (
            circles,
            {"diffusion.a": "import ssdlm.diffusion.b", "diffusion.b": "import ssdlm.diffusion.a"},
            "diffusion.a, diffusion.b import each other",
        ),
        (
            loops_in_denoisers,
            {"diffusion.sampler": "", "denoiser.block": "from ssdlm.diffusion import sampler"},
            "calls none",
        ),
        (libraries_in_the_algorithm, {"diffusion.loss": "import einops"}, "imports einops"),
        (libraries_in_the_algorithm, {"diffusion.loss": "import triton"}, "imports triton"),
        (libraries_in_the_algorithm, {"denoiser.block": "import transformers"}, "transformers"),
        (effects_in_the_algorithm, {"diffusion.a": "def f(x):\n    return x.cuda()"}, "a:2"),
        (effects_in_the_algorithm, {"diffusion.a": "print(1)"}, "calls print"),
        (effects_in_the_algorithm, {"diffusion.a": "import logging"}, "imports logging"),
        (heavy_on_load, {"train": "import accelerate"}, "accelerate on load"),
        (heavy_on_load, {"train": "try:\n    from rich.live import Live\nfinally: 0"}, "rich.live"),
        (libraries_behind_the_door, {"cli": "import torch"}, "cli:1 imports torch"),
        (
            libraries_behind_the_door,
            {"cli": "from ssdlm.data import prepare", "data": "import numpy", "data.prepare": ""},
            "data:1 imports numpy",
        ),
        (
            names_hidden_by_comprehensions,
            {"loss": "def a(x):\n    return [a for a in x] + [a(b) for b in x]\n"},
            "loss:2 a is",
        ),
        (not_ascii, {"loss": "\n# \N{GREEK SMALL LETTER LAMDA}"}, "loss:2"),
    ],
)
def test_the_rule_names_a_break(rule, sources, complaint):
    found = rule(sources)
    assert len(found) == 1
    assert complaint in found[0]


def test_the_rules_allow_what_the_layout_needs():
    sources = {
        "": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ssdlm.api import SSDLM",
        "__main__": "from ssdlm.cli import main",
        "cli": "from ssdlm import __version__\ndef f():\n    import torch, ssdlm.train",
        "config": "from dataclasses import dataclass",
        "train.recipes": "from ssdlm.config import Config",
        "ops.kernels.normals": "def f():\n    import triton",
        "tokenizer": "import tokenizers\nopen('x')",
        "denoiser": "",
        "denoiser.block": "import torch.nn\nfrom ssdlm.diffusion import schedule\nimport numpy",
        "denoiser.encoder": "def f():\n    import transformers",
        "diffusion.schedule": "",
        "diffusion.sampler": "from ssdlm.diffusion.denoiser import Denoiser",
        "diffusion.denoiser": "",
        "guidance.training": "from ssdlm.guidance import classifiers\nimport ssdlm.data.windows",
        "guidance.classifiers": "",
        "train": "import torch\nfrom ssdlm.data.windows import windows",
        "data.windows": "import pyarrow",
    }
    assert [complaint for rule in RULES for complaint in rule(sources)] == []


def test_every_module_stands_in_one_row():
    units = [unit for row in ROWS for unit in row]
    assert len(units) == len(set(units))
