"""The documentation site builds strictly, from what is here, and every public name is on it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ssdlm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it; skipped where the extra `docs` is not installed."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it hides warnings from --strict as well.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("INFO ")] == []
    return folder


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    missing = [page for page in pages if not (site / page).with_suffix(".html").is_file()]
    assert len(pages) > 15
    assert missing == []


def test_pages_load_nothing_from_elsewhere(site):
    """A link may lead away; what a browser fetches by itself may not."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//[^>]*"""
        r"""|<link[^>]*\shref=["']?(?:https?:)?//[^>]*|@import[^;]*//[^;]*"""
    )
    found = [
        (path.name, match[0])
        for path in [*site.rglob("*.html"), *site.rglob("*.css")]
        for match in fetched.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_links_to_sources_lead_to_their_text(site):
    page = (site / "how-it-works.html").read_text(encoding="utf-8")
    assert 'href="files/src/ssdlm/diffusion/noising.py.html"' in page
    text = (site / "files/src/ssdlm/diffusion/noising.py.html").read_text(encoding="utf-8")
    assert "add_noise" in text


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    shown = set(re.findall(r"^::: ssdlm\.(\w+)$", page, re.M))
    assert set(ssdlm.__all__) - shown == {"recipes"}
    assert "::: ssdlm.train.recipes" in page
