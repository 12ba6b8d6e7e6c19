"""Hooks of the documentation site: files of the repository that pages link to become pages.

On a code host `../src/ssdlm/api.py` opens the file; the site has only what is below docs/. So every
such link gets a page with the file's text, and CHANGELOG.md becomes a page of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?P<path>\.\.?/[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml", ".md": "markdown"}
CHANGELOG = "changelog.md"
PAGE = ROOT / "src" / "ssdlm" / "serve" / "page"
LOOK = ("look.css", "icon.svg")
"""What the site has from the page that a server shows: colours, faces and the sign."""


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog, the look, and a page for every file outside docs/ that is linked to."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, CHANGELOG, content=text))
    for name in LOOK:
        files.append(File.generated(config, name, abs_src_path=str(PAGE / name)))
    for page in files.documentation_pages():
        for match in LINK.finditer(page.content_string):
            target = outside(page.src_uri, match["path"])
            if target is not None and files.get_file_from_path(uri_of(target)) is None:
                made = File.generated(config, uri_of(target), content=listing(target))
                made.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links out of docs/ turned to the pages made for them."""

    def turned(match: re.Match[str]) -> str:
        target = outside(page.file.src_uri, match["path"])
        if target is None:
            return match[0]
        return f"]({os.path.relpath(uri_of(target), Path(page.file.src_uri).parent)})"

    return LINK.sub(turned, markdown)


def outside(page: str, link: str) -> Path | None:
    """Return the file outside docs/ that a link of a page leads to, if it does."""
    target = (ROOT / "docs" / Path(page).parent / link).resolve()
    is_outside = ROOT in target.parents and ROOT / "docs" not in target.parents
    return target if is_outside and target.is_file() else None


def uri_of(target: Path) -> str:
    """Return where a repository's file stands on the site."""
    if target == ROOT / "CHANGELOG.md":
        return CHANGELOG
    return f"files/{target.relative_to(ROOT).as_posix()}.md"


def listing(target: Path) -> str:
    """Return a page that shows a file."""
    text = target.read_text(encoding="utf-8").rstrip("\n")
    if target.suffix == ".md":
        return text
    name, language = target.relative_to(ROOT).as_posix(), LANGUAGES.get(target.suffix, "text")
    return f"# `{name}`\n\n````{language}\n{text}\n````\n"
