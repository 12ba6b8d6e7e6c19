"""What tests of training share."""

from pathlib import Path

import pytest
from tests.processes import make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token store of a few documents, which no test changes."""
    return make_store(tmp_path_factory.mktemp("data") / "store")
