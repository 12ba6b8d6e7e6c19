"""A missing optional library is one line with the command that brings it, whatever the command."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ssdlm.cli import main
from ssdlm.extras import EXTRAS, extra_of, install

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without(monkeypatch):
    """Returns what makes libraries impossible to import, as where they are not installed."""

    def hide(*libraries):
        for name in list(sys.modules):
            if name.partition(".")[0] in libraries:
                monkeypatch.delitem(sys.modules, name)
        for library in libraries:
            monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)

    return hide


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a few files to work on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text('{"text": "the river had been quiet"}\n' * 40)
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    return tmp_path


def one_line(capsys):
    stderr = capsys.readouterr().err.strip().splitlines()
    assert len(stderr) == 1 and stderr[0].startswith("error: "), stderr
    return stderr[0]


def test_training_without_accelerate_is_one_line_and_leaves_nothing(folder, without, capsys):
    words = ["prepare", "texts.jsonl", "--tokenizer", "builtin:mini", "--out", "store"]
    assert main(words) == 0
    capsys.readouterr()
    without("accelerate")
    words = ["train", "--recipe", "tiny", "--data", "store", "--out", "run", "steps=1"]
    assert main(words) == 2
    line = one_line(capsys)
    assert "accelerate" in line and line.endswith("-m pip install 'ssdlm[train]'")
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("zstandard", "train", ["prepare", "a.txt.zst"]),
        ("pyarrow", "train", ["prepare", "a.parquet"]),
        ("datasets", "train", ["prepare", "org/name"]),
        ("ray", "ray", ["prepare", "texts.jsonl", "--ray"]),
        ("matplotlib", "train", ["plot", "run"]),
        ("s3fs", "s3", ["generate", "--input", "s3://b/a.jsonl", "--output", "b.jsonl"]),
    ],
)
def test_a_command_without_its_library_is_one_line(folder, without, capsys, library, extra, words):
    if words[0] == "prepare":
        words = [*words, "--tokenizer", "builtin:mini", "--out", "store"]
    if words[0] == "plot":
        (folder / "run").mkdir()
        (folder / "run" / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n' * 2)
    without(library)
    assert main(words) == 2
    said = rf".* needs {library}[.\w]*, which is not installed; {re.escape(install(library))}"
    assert re.fullmatch(said, line := one_line(capsys)), line
    assert line.endswith(f"-m pip install 'ssdlm[{extra}]'")


def test_serving_without_its_libraries_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("ssdlm.cli.serve.find_spec", lambda name: None)
    assert main(["serve"]) == 2
    assert one_line(capsys).endswith("pip install 'ssdlm[serve]'")


def test_any_optional_library_that_a_command_lacks_is_one_line(monkeypatch, capsys):
    for extra, libraries in EXTRAS.items():
        for library in libraries:

            def lack(arguments, name=library):
                raise ModuleNotFoundError(f"No module named {name!r}", name=f"{name}.inner")

            monkeypatch.setattr("ssdlm.cli.models.run_models", lack)
            assert main(["models"]) == 2
            assert f"pip install 'ssdlm[{extra}]'" in one_line(capsys)


def test_a_module_that_no_extra_brings_is_a_mistake_and_not_hidden(monkeypatch):
    def lack(arguments):
        raise ModuleNotFoundError("No module named 'ssdlm.lost'", name="ssdlm.lost")

    monkeypatch.setattr("ssdlm.cli.models.run_models", lack)
    with pytest.raises(ModuleNotFoundError):
        main(["models"])
    assert install("trackio").endswith(" -m pip install trackio")


def test_every_optional_library_is_brought_by_the_extra_that_is_named():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"mauve": "mauve-text", "mlflow": "mlflow-skinny"}
    brought_by_others = {"sklearn", "faiss", "starlette"}
    for extra, libraries in EXTRAS.items():
        listed = [
            re.split(r"[><=,;\[ ]", one)[0] for one in project["optional-dependencies"][extra]
        ]
        for library in set(libraries) - brought_by_others:
            assert names.get(library, library) in listed
            assert extra_of(f"{library}.inner") == extra
