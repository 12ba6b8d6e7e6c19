"""Which model the other examples open: python examples/chosen_model.py [--model NAME] [--tiny]"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiny_model import tiny


@contextmanager
def model_and_size(doc: str) -> Iterator[tuple[str, bool]]:
    """Give the model that the command line names and False, or with --tiny a tiny one and True."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--model", default="builtin:mini", help="or a folder, or a Hub id")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, no network")
    given = parser.parse_args()
    if not given.tiny:
        yield given.model, False
        return
    with tempfile.TemporaryDirectory() as folder:
        yield tiny(Path(folder))[0], True


if __name__ == "__main__":
    with model_and_size(__doc__) as (name, is_tiny):
        print("a tiny random model" if is_tiny else name)
