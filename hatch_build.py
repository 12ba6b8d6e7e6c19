"""The README as a package index shows it: links lead to the repository that builds the package."""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Gives the project its readme."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme, with whole links where a workflow says which repository it runs for."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if home := os.environ.get("GITHUB_REPOSITORY"):
            server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
            text = with_whole_links(text, f"{server}/{home}", os.environ["GITHUB_REF_NAME"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_whole_links(text: str, home: str, version: str) -> str:
    """Return Markdown whose relative links and pictures lead to files of a repository."""

    def whole(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({home}/{kind}/{version}/{link[3]})"

    text = re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", whole, text)
    return re.sub(r"^(\[\w+\]: )(?!\w+:|#)(\S+)", rf"\1{home}/blob/{version}/\2", text, flags=re.M)
