"""A server with a tiny model, and a real browser that looks at it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import tiny

from ssdlm import SSDLM, GenerateOptions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 90
"""After which something that should have happened has not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The address of a server, and its model opened here."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("page")
    options = GenerateOptions(length=12, B=(6,), T=4, top_p=0.9, returns="w_0", gradient="simplex")
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(folder / "model")
    mood = tiny.save_classifier(folder / "mood", names=("sad", "glad"))
    kind = tiny.save_classifier(folder / "kind", seed=2)
    command = [sys.executable, "-m", "ssdlm", "serve", "--model", str(folder / "model")]
    command += ["--port", "0", "--device", "cpu", "--guides", f"mood={mood},kind={kind}"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            address = found[0]
            break
    assert address, "the server did not start"
    model = SSDLM.from_pretrained(folder / "model", device="cpu")
    yield SimpleNamespace(address=address, model=model, guides={"mood": mood, "kind": kind})
    process.terminate()
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.fixture
def open_page(browser: Any, server: SimpleNamespace) -> Iterator[Callable[..., Any]]:
    """Opens the page as somebody new; in the end there must have been no error on its console."""
    contexts, errors = [], []

    def tell(message: Any) -> None:
        # A refused request is told by the browser as well; that is no error of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_one(hash: str = "", before: Callable[[Any], None] | None = None, **kind: Any) -> Any:
        context = browser.new_context(**kind)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", tell)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before is not None:
            before(page)
        page.goto(server.address + hash)
        if before is None:
            page.wait_for_selector(".guide")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something on a page. Its policy forbids what Playwright would wait with."""
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    return wait_until
