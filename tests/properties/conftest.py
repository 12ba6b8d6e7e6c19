"""How many inputs are made up: a few dozen for each property, always the same; `make fuzz` many.

FUZZ is how many for each property, FUZZ_SECONDS how long each may go on: what comes later counts
as passed, and the report says how many were tried.
"""

import os
import time
from collections import Counter

import pytest

hypothesis = pytest.importorskip("hypothesis")

NUMBER = int(os.environ.get("FUZZ", "40"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
TRIED: Counter[str] = Counter()

hypothesis.settings.register_profile(
    "made_up",
    max_examples=NUMBER,
    derandomize=NUMBER <= 40,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
)
hypothesis.settings.load_profile("made_up")


@pytest.fixture
def has_time(request):
    """A function that counts an input, and tells whether there is time for it."""
    end = time.monotonic() + SECONDS

    def count() -> bool:
        if time.monotonic() > end:
            return False
        TRIED[request.node.name] += 1
        return True

    return count


def pytest_terminal_summary(terminalreporter) -> None:
    if TRIED and NUMBER > 40:
        terminalreporter.write_line(f"{sum(TRIED.values()):,} inputs: {dict(TRIED)}")
