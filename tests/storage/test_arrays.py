"""Arrays on disk: kept by a key, and of spare ones no more than there is room for."""

import numpy as np
import pytest

from ssdlm.storage import arrays
from ssdlm.storage.arrays import ArrayCache, user_cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A spare folder with room for three files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(arrays, "MOST_SPARE", 3 * arrays.LEAST_FILE)
    return user_cache("test")


def computed(cache: ArrayCache, key: str) -> bool:
    """Ask for an array; tell whether it was not there."""
    made = []

    def compute():
        made.append(key)
        return {"x": np.array([len(key)])}

    assert cache.get("x", key, compute)["x"].tolist() == [len(key)]
    return bool(made)


def test_what_was_used_longest_ago_goes_where_a_spare_folder_is_full(cache):
    assert all(computed(cache, key) for key in ("a", "bb", "ccc"))
    assert not computed(cache, "a")
    assert computed(cache, "dddd")
    assert not any(computed(cache, key) for key in ("a", "ccc", "dddd"))
    assert computed(cache, "bb")
    assert len(list(cache.folder.iterdir())) == 3


def test_what_is_asked_for_is_never_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_SPARE", 0)
    cache = ArrayCache(tmp_path, is_writable=True)
    assert computed(cache, "a") and not computed(cache, "a")


def test_a_spare_folder_that_cannot_be_written_is_no_error(cache, monkeypatch):
    cache.folder.parent.mkdir()
    cache.folder.write_text("no folder")
    assert computed(cache, "a") and computed(cache, "a")
