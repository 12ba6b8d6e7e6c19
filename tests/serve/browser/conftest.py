"""A server with tiny models and a real browser that looks at it, which the tests share."""

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
TEMPLATE = "{% for one in messages %}{{ one.content }}\n{% endfor %}"
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
    """Where its models and its guides are."""

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the server's answer to one who does not watch."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, content, headers)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def write(self, prompt: str, **options: Any) -> str:
        """Return the text that the server writes after a prompt."""
        return self.ask("v1/generate", prompt=prompt, **options)["texts"][0]["text"]


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`ssdlm serve` with a denoiser, one that chats, a causal model, and guides."""
    folder = tmp_path_factory.mktemp("page")
    options = GenerateOptions(length=12, B=(6,), T=6, top_p=0.9, returns="w_0", gradient="simplex")
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(folder / "writer")
    tokenizer = tiny.tokenizer()
    tokenizer.settings["chat_template"] = TEMPLATE
    SSDLM(tiny.block(), tokenizer, options).save_pretrained(folder / "talker")
    causal.save(folder / "causal", "llama")
    mood = tiny.save_classifier(folder / "mood", names=("sad", "glad"))
    kind = tiny.save_classifier(folder / "kind", seed=2)
    for guide in (mood, kind):  # so that it is known which models they can read
        tiny.tokenizer().save(guide)
    command = [sys.executable, "-m", "ssdlm", "serve", "--port", "0", "--device", "cpu"]
    for name in ("writer", "talker", "causal"):
        command += ["--model", str(folder / name)]
    command += ["--model", "builtin:mini"]  # the others have no letters for JSON
    command += ["--guides", f"mood={mood},kind={kind},tense"]
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

    def open_one(hash: str = "", before: Callable[[Any], None] | None = None, **kind: Any) -> Any:
        context = browser.new_context(**kind)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", tell)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before is not None:
            before(page)
        page.goto(site.address + hash)
        if before is None:
            page.wait_for_selector("#guides .guide", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []
