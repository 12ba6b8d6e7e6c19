"""Models of the Hub: their files, or soon a line that says why there are none.

[hub] -> checkpoint, tokenizer, guidance, evaluate, train
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssdlm.values import first_line


def download(name: str, patterns: Sequence[str], **options: Any) -> Path:
    """Return the folder with the files of a Hub id that match; from the cache without a network."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns), **options))
    except Exception as error:  # network, permission, no such repository, no such cache
        raise ValueError(
            f"{name} is no folder here and the Hub did not give it ({first_line(error)}); "
            "check the name, or give a folder"
        ) from error


def upload(name: str, folder: str | Path, *, private: bool | None = None) -> str:
    """Put a folder's files into a repository of the Hub, and return its address."""
    from huggingface_hub import HfApi

    try:
        address = HfApi().create_repo(name, private=private, exist_ok=True)
        HfApi().upload_folder(repo_id=name, folder_path=folder, commit_message="ssdlm model")
    except Exception as error:  # network, permission, a name that cannot be
        raise ValueError(
            f"the Hub did not take {name} ({first_line(error)}); name it org/name, and log in with "
            "`hf auth login`"
        ) from error
    return str(address)


def for_transformers(name: str) -> str:
    """Return what transformers is to open: a folder, or a Hub id that is known to be there.

    Left to itself, it asks a Hub that does not answer again and again, for half a minute.
    """
    if Path(name).exists():
        return name
    folder = download(name, ["config.json"])
    needed = (("*.safetensors", "*.bin"), ("tokenizer*", "vocab*"))
    is_whole = all(any(any(folder.glob(one)) for one in either) for either in needed)
    return str(folder) if is_whole else name
