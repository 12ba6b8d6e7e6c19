"""Take the pictures of the page, and the recording: python docs/draw_page.py

It needs chromium, playwright and Pillow, which matplotlib brings.
All are real runs of the built-in model. The recording has the frames that the browser drew, at the
times when it drew them, as an animated WebP: GitHub and mkdocs show that as they show pictures.
"""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

HERE = Path(__file__).parent
DESK = {"viewport": {"width": 1200, "height": 720}}
STAGE = {"viewport": {"width": 960, "height": 640}}
SMALL = (750, 500)
"""The size of the recording; the page in it is 960 wide."""
COLOURS = 128
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
TEXT = {"prompt": "The movie was", "length": 25, "seed": 0}
SECONDS = 300
"""After which something that should have happened has not."""
LASTS = 20
"""Seconds of the recording, at the most."""
CURSOR = """() => {
    const dot = document.createElement("div");
    Object.assign(dot.style, {
        position: "fixed", zIndex: 9, width: "18px", height: "18px", margin: "-9px", left: "-50px",
        borderRadius: "50%", background: "#1c1b1a66", pointerEvents: "none",
    });
    document.body.append(dot);
    addEventListener("pointermove", ({ clientX, clientY }) => {
        dot.style.left = `${clientX}px`;
        dot.style.top = `${clientY}px`;
    });
}"""


@contextmanager
def server() -> Iterator[str]:
    """Run a server, and give its address."""
    command = [sys.executable, "-m", "ssdlm", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = (re.search(r"http://\S+", line) for line in process.stderr)
        yield next(found[0] for found in lines if found)
    finally:
        process.terminate()
        process.wait()


def wait(page: Any, *said: str) -> None:
    """Wait until the page says that a text is written."""
    end = time.monotonic() + SECONDS
    while page.locator("#status").inner_text() not in said:
        assert time.monotonic() < end, page.locator("#error").inner_text()
        page.wait_for_timeout(50)


def opened(browser: Any, address: str, settings: dict[str, Any], **kind: Any) -> Any:
    """Return the page of a link, once its text is written."""
    page = browser.new_context(**kind).new_page()
    page.goto(f"{address}#{urlencode(settings)}")
    wait(page, "done")
    return page


def middle(page: Any, selector: str, number: int = 0) -> tuple[float, float]:
    """Return the middle of an element."""
    box = page.locator(selector).nth(number).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def move(page: Any, selector: str, number: int = 0) -> None:
    """Move the mouse there so that one can follow it."""
    page.mouse.move(*middle(page, selector, number), steps=12)


def choose(page: Any, first: int, last: int) -> None:
    """Choose words with the mouse."""
    move(page, "#main-text .word", first)
    page.mouse.down()
    move(page, "#main-text .word", last)
    page.mouse.up()


def slide(page: Any, share: float) -> None:
    """Drag the first guide's slider to a share of its way."""
    box = page.locator("#guides input").first.bounding_box()
    page.mouse.move(*middle(page, "#guides input"), steps=8)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2, steps=20)
    page.mouse.up()


@dataclass
class Recording:
    """The frames of a page, each with the time when it was drawn."""

    page: Any
    frames: list[tuple[float, bytes]] = field(default_factory=list)

    def __enter__(self) -> Recording:
        self.session = self.page.context.new_cdp_session(self.page)
        self.session.on("Page.screencastFrame", self.take)
        self.session.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})
        return self

    def take(self, frame: dict[str, Any]) -> None:
        self.frames.append((frame["metadata"]["timestamp"], base64.b64decode(frame["data"])))
        self.session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

    def __exit__(self, *_: object) -> None:
        self.session.send("Page.stopScreencast")

    def save(self, path: Path, end: float) -> float:
        """Write the frames, at most five a second; return by how much they go too fast.

        A machine that is slow, or busy with something else, is shown in twenty seconds too.
        """
        from PIL import Image

        pace = max(1.0, (end - self.frames[0][0]) / LASTS)
        kept: list[tuple[float, bytes]] = []
        for at, raw in self.frames:
            if kept and at - kept[-1][0] < pace / 5:
                kept[-1] = (kept[-1][0], raw)
            else:
                kept.append((at, raw))
        times = [at for at, _ in kept] + [end]
        lengths = [round(1000 * (after - at) / pace) for at, after in pairwise(times)]
        images = [Image.open(io.BytesIO(raw)).convert("RGB").resize(SMALL) for _, raw in kept]
        moving = {"save_all": True, "append_images": images[1:], "duration": lengths, "loop": 0}
        images[0].save(path, quality=36, method=4, **moving)
        return pace


def record(browser: Any, address: str) -> float:
    """Record a text that is written, steered and rewritten; return by how much it goes too fast."""
    page = browser.new_context(**STAGE, color_scheme="light").new_page()
    page.goto(address)
    page.wait_for_selector(".guide")
    page.evaluate(CURSOR)
    with Recording(page) as recording:
        move(page, "#go")
        page.wait_for_timeout(500)
        page.locator("#go").click()
        wait(page, "done")
        page.wait_for_timeout(1000)
        for share in (0.05, 0.9):
            slide(page, share)
            page.wait_for_timeout(150)
            wait(page, "done")
            page.wait_for_timeout(1500)
        choose(page, 8, 11)
        page.wait_for_timeout(700)
        page.keyboard.press("Enter")
        wait(page, "rewritten")
        for _ in range(2):
            page.wait_for_timeout(1000)
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(1000)
        page.keyboard.press("Enter")
        page.locator("#main-text .word").nth(5).scroll_into_view_if_needed()
        move(page, "#main-text .word", 5)
        page.mouse.dblclick(*middle(page, "#main-text .word", 5))
        page.keyboard.type("your own", delay=100)
        page.keyboard.press("Enter")
        page.wait_for_timeout(1000)
        page.keyboard.press("Enter")
        wait(page, "rewritten")
        page.wait_for_timeout(2000)
    return recording.save(HERE / "page.webp", time.time())


def shoot(page: Any, name: str) -> None:
    """Write what is seen as a picture of few colours, which is small."""
    from PIL import Image

    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLOURS).save(HERE / name, optimize=True)


def take_pictures(browser: Any, address: str) -> None:
    """Take a picture of each: alternatives, steering, and a phone."""
    page = opened(browser, address, TEXT, **DESK, color_scheme="light")
    choose(page, 8, 11)
    page.keyboard.press("Enter")
    wait(page, "rewritten")
    page.keyboard.press("ArrowRight")
    page.mouse.move(2, 2)
    page.wait_for_timeout(500)  # colours take a moment
    shoot(page, "page.png")
    steered = TEXT | {"guide.sentiment": "positive:1", "compare": 1, "path": "window", "T": 63}
    page = opened(browser, address, steered, **DESK, color_scheme="dark")
    page.locator("#step").fill("48")
    page.locator("#step").blur()
    page.wait_for_timeout(500)
    shoot(page, "page-steering.png")
    page = opened(browser, address, TEXT | {"guide.sentiment": "positive:1"}, **PHONE)
    shoot(page, "page-phone.png")


def main() -> None:
    from playwright.sync_api import sync_playwright

    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        opened(browser, address, TEXT | {"length": 5}, **DESK)  # guides load
        take_pictures(browser, address)
        print(f"the recording goes {record(browser, address):.1f} times as fast as it went")
        browser.close()
    for path in [*sorted(HERE.glob("page*.png")), HERE / "page.webp"]:
        print(f"wrote docs/{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
