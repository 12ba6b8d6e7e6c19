"""The package from outside: what it loads, how it starts, what it weighs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ssdlm

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20


def run_python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter on the sources, as `PYTHONPATH=src python ...` does."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)


def libraries_loaded(importtime: str) -> set[str]:
    """The top-level packages that `python -X importtime` reports."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def walked_files(root: Path) -> list[Path]:
    """The files below `root`, less the folders that .gitignore names: for a tree without git."""
    ignored = {line.strip("/") for line in (root / ".gitignore").read_text().splitlines()} | {
        ".git"
    }
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in ignored]
        found += [Path(folder) / name for name in names]
    return found


def tracked_files(root: Path) -> list[Path]:
    """The files git tracks, or those it would where there is no checkout."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True).stdout
    except FileNotFoundError:
        listing = b""
    paths = [root / os.fsdecode(name) for name in listing.split(b"\0") if name]
    return [path for path in paths if path.is_file()] or walked_files(root)


def pyproject_version() -> str:
    """The version that pyproject.toml declares."""
    return re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[0]


def test_the_readme_of_a_published_package_has_whole_links():
    pytest.importorskip("hatchling")
    from hatch_build import with_whole_links

    home = "https://example.org/we/it"
    text = with_whole_links((ROOT / "README.md").read_text(), home, "v1")
    links = re.findall(r"\]\(([^)]+)\)|^\[\w+\]: (\S+)", text, re.M)
    paths = [
        re.fullmatch(rf"{home}/(?:blob|raw)/v1/([^#]+).*", one or other) for one, other in links
    ]
    assert len(paths) > 30 and all(path and (ROOT / path[1]).is_file() for path in paths)


def test_import_loads_neither_torch_nor_transformers(tmp_path):
    done = run_python("-X", "importtime", "-c", "import ssdlm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = libraries_loaded(done.stderr)
    assert "ssdlm" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "rich"}


def test_help_loads_neither_torch_nor_transformers_nor_rich(tmp_path):
    done = run_python("-X", "importtime", "-m", "ssdlm", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = libraries_loaded(done.stderr)
    assert "argparse" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "rich"}


def test_module_runs_from_source(tmp_path):
    done = run_python("-m", "ssdlm", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ssdlm")
    assert done.stderr == ""


def test_import_is_silent(tmp_path):
    done = run_python("-W", "error", "-c", "import ssdlm; ssdlm.SSDLM", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_public_name_resolves():
    assert ssdlm.__all__
    assert [name for name in ssdlm.__all__ if getattr(ssdlm, name, None) is None] == []
    assert set(ssdlm.__all__) <= set(dir(ssdlm))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        ssdlm.no_such_name  # noqa: B018


def test_version_is_the_same_everywhere():
    version = pyproject_version()
    assert ssdlm.__version__ == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.findall(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest == version


def test_every_dependency_is_pinned():
    declared = re.findall(r'^    "([\w-]+)>=', (ROOT / "pyproject.toml").read_text(), re.M)
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.M)
    assert "torch" in declared
    assert {name.lower().replace("_", "-") for name in declared} <= set(pinned)


def test_shapes_are_checked_in_tests():
    jaxtyping = pytest.importorskip("jaxtyping")
    import torch

    from ssdlm.diffusion.simplex import to_logits

    with pytest.raises(jaxtyping.TypeCheckError):
        to_logits(torch.zeros(1, 2, 3), V=8, K=5.0)


def test_tracked_files_stay_under_61_mib():
    sizes = {path: path.stat().st_size for path in tracked_files(ROOT)}
    largest = sorted(sizes, key=sizes.__getitem__)[-5:]
    assert ROOT / "pyproject.toml" in sizes
    assert sum(sizes.values()) < 61 * MIB, f"largest: {[str(path) for path in largest]}"


def test_what_adapters_guides_and_drafters_add_stays_under_17_5_mb():
    builtin = ROOT / "src/ssdlm/builtin"
    sizes = {
        path.relative_to(builtin).parent.as_posix(): path.stat().st_size
        for path in builtin.rglob("*.safetensors")
    }
    assert sizes["smol"] <= 6e6
    assert sizes["drafters/mini"] <= 3.5e6
    assert sizes["drafters/smollm2"] <= 4e6
    before = {"mini", "guides/sentiment", "guides/tense"}
    assert sum(size for name, size in sizes.items() if name not in before) <= 17.5e6


def test_tree_without_git_is_walked(tmp_path):
    (tmp_path / ".gitignore").write_text(".venv/\n*.pyc\n")
    for name in ("pyproject.toml", ".venv/lib/big.bin", "src/ssdlm/cli.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = {path.relative_to(tmp_path).as_posix() for path in tracked_files(tmp_path)}
    assert names == {".gitignore", "pyproject.toml", "src/ssdlm/cli.py"}


def test_the_wheel_has_the_whole_package_and_the_sdist_every_tracked_file():
    wheels, sdists = (
        pytest.importorskip(f"hatchling.builders.{kind}") for kind in ("wheel", "sdist")
    )
    builders = wheels.WheelBuilder(str(ROOT)), sdists.SdistBuilder(str(ROOT))
    wheel, sdist = (
        {Path(one.path) for one in builder.recurse_included_files()} for builder in builders
    )
    tracked = set(tracked_files(ROOT))
    always = {".gitignore", "pyproject.toml", "PKG-INFO"}
    assert {path.name for path in tracked - sdist} <= always
    assert {path for path in tracked if ROOT / "src" in path.parents} <= wheel
    kinds = {path.suffix for path in wheel}
    assert {".py", ".safetensors", ".json", ".js", ".css", ".html", ".typed"} <= kinds


def test_the_metadata_are_what_an_index_takes():
    metadata = pytest.importorskip("packaging.metadata")
    spec = pytest.importorskip("hatchling.metadata.spec")
    wheels = pytest.importorskip("hatchling.builders.wheel")
    write = list(spec.get_core_metadata_constructors().values())[-1]
    text = write(wheels.WheelBuilder(str(ROOT)).metadata)
    read = metadata.Metadata.from_email(text, validate=True)
    assert (read.name, str(read.version)) == ("ssdlm", ssdlm.__version__)
    assert read.description_content_type == "text/markdown" and read.description
    assert {"train", "eval", "serve"} <= set(read.provides_extra or ())
