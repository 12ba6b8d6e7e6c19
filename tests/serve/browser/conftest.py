"""A server with a tiny model, and a real browser that looks at it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import causal, tiny
from tests.serve.running import wait_for

from ssdlm import SSDLM, GenerateOptions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 90
"""After which something that should have happened has not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")  # while it is open, its thread has a running event loop
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


@dataclass
class Site:
    """A server that runs as users start it."""

    address: str
    folder: Path
    """Where its model and its guides are."""

    def write(self, prompt: str, **options: Any) -> str:
        """Return the text that the server writes for one who does not watch."""
        body = json.dumps({"prompt": prompt, **options}).encode()
        url, headers = f"{self.address}v1/generate", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return json.loads(answer.read())["texts"][0]["text"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`ssdlm serve` with a tiny model and two guides, one of two labels and one of three."""
    folder = tmp_path_factory.mktemp("page")
    options = GenerateOptions(length=12, B=(6,), T=4, top_p=0.9, returns="w_0", gradient="simplex")
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(folder / "model")
    yield from started(folder)


@pytest.fixture(scope="module")
def causal_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same with a causal language model, and a guide that reads none of its drafts."""
    folder = tmp_path_factory.mktemp("causal")
    causal.save(folder / "model", "llama")
    yield from started(folder, ",tense")


def started(folder: Path, more: str = "") -> Iterator[Site]:
    """Serve the model of a folder, two guides and more, until the tests have been."""
    mood = tiny.save_classifier(folder / "mood", names=("sad", "glad"))
    kind = tiny.save_classifier(folder / "kind", seed=2)
    command = [sys.executable, "-m", "ssdlm", "serve", "--model", str(folder / "model")]
    command += ["--port", "0", "--device", "cpu", "--guides", f"mood={mood},kind={kind}{more}"]
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)

    def address() -> str:
        assert process.poll() is None, log.read_text()
        found = re.search(r"http://\S+", log.read_text())
        return found[0] if found else ""

    wait_for(address, SECONDS)
    yield Site(address(), folder)
    process.terminate()
    assert process.wait(SECONDS) == 0, log.read_text()


@pytest.fixture
def open_page(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """Opens the page as somebody new; in the end there must have been no error on its console."""
    contexts, errors = [], []

    def tell(message: Any) -> None:
        # A refused request is told by the browser as well; that is no error of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def open_one(
        hash: str = "",
        before: Callable[[Any], None] | None = None,
        where: Site | None = None,
        **kind: Any,
    ) -> Any:
        context = browser.new_context(**kind)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", tell)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before is not None:
            before(page)
        page.goto((where or site).address + hash)
        if before is None:
            page.wait_for_selector(".guide")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []
