"""Take the two pictures of the page: python docs/draw_page.py (needs chromium and playwright)

Both are real runs of the built-in model, each opened by a link, as anybody may open it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

HERE = Path(__file__).parent
SIZE = {"width": 1200, "height": 660}
WINDOW = {"path": "window", "length": 25, "T": 63, "top_p": 0.85}
TEXT = {"prompt": "The old man", "seed": 7}
STEERED = {"prompt": "The movie was", "seed": 1, "guide.sentiment": "positive:1", "compare": 1}
SECONDS = 300


def start() -> tuple[subprocess.Popen[str], str]:
    """Return a server and its address."""
    command = [sys.executable, "-m", "ssdlm", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            return process, found[0]
    raise RuntimeError("the server did not start")


def opened(browser: Any, address: str, settings: dict[str, Any], scheme: str) -> Any:
    """Return the page of a link, once its text is written."""
    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
    page.goto(f"{address}#{urlencode(settings)}")
    end = time.monotonic() + SECONDS
    while "passes" not in page.locator("#status").inner_text():
        assert time.monotonic() < end, page.locator("#error").inner_text()
        time.sleep(0.1)
    return page


def go_to(page: Any, step: int) -> None:
    """Drag the timeline to a step."""
    page.locator("#step").fill(str(step))
    page.locator("#step").blur()
    page.wait_for_timeout(500)  # colours take a moment


def main() -> None:
    from playwright.sync_api import sync_playwright

    process, address = start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            opened(browser, address, TEXT | {"path": "left", "length": 5}, "light")  # guides load
            page = opened(browser, address, TEXT | WINDOW, "light")
            go_to(page, 36)
            page.locator("#main-text .position").nth(15).hover()
            page.screenshot(path=HERE / "page.png")
            page = opened(browser, address, STEERED | WINDOW, "dark")
            go_to(page, 48)
            page.screenshot(path=HERE / "page-steering.png")
            browser.close()
    finally:
        process.terminate()
        process.wait()
    for name in ("page.png", "page-steering.png"):
        print(f"wrote docs/{name}: {(HERE / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
