"""A server that the tests of a file share."""

import pytest
from tests.serve.running import Running, serving


@pytest.fixture(scope="module")
def server():
    """A server with a tiny model, as it is without any setting."""
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """Nothing that a test asked for is left in the server that it shares."""
    yield
    if "server" in request.fixturenames:
        shared: Running = request.getfixturevalue("server")
        shared.settle()
