"""How soon a text follows the slider of the page: in a browser, over HTTP, and in Python.

    python benchmarks/live.py [--length 25] [--states 11] [--guide sentiment]

Every state is the text of one place of the slider, with the same seed, steered by gradient. In the
browser, which shares the cores with the server, the time goes from the key that moves the slider to
the finished text on the page. The same states are then asked for over HTTP as the page asks for
them, and of the library without anybody who watches; unsteered text is the yardstick. It needs
chromium and playwright, starts a server of its own with the built-in model, and prints one JSON
line at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from serve import started
from ssdlm import SSDLM
from ssdlm.storage.builtin import DEFAULT_MODEL

PROMPT = "The movie was"
SECONDS = 120
"""After which something that should have happened has not."""
FINISHED = """() => {
    window.finished = [];
    const spoken = document.getElementById("spoken");  // told every finished text, once
    new MutationObserver(() => finished.push(performance.now()))
        .observe(spoken, { childList: true });
    addEventListener("keydown", () => (window.pressed = performance.now()), true);
}"""


def timed(work: Callable[..., Any], *args: Any, **options: Any) -> float:
    """Return how many seconds some work takes."""
    began = time.perf_counter()
    work(*args, **options)
    return time.perf_counter() - began


def in_browser(address: str, args: argparse.Namespace) -> tuple[list[float], list[dict[str, Any]]]:
    """Return the seconds of each state on the page, and what the page asked the server for."""
    from playwright.sync_api import sync_playwright

    bodies: list[dict[str, Any]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{address}#prompt={PROMPT}&length={args.length}")
        wait(page, lambda: page.locator("#status").inner_text() == "done")
        page.on("request", lambda one: one.post_data and bodies.append(one.post_data_json))
        page.evaluate(FINISHED)
        page.get_by_label(f"steer {args.guide}").focus()
        times: list[float] = []
        for state in range(args.states):
            page.keyboard.press("ArrowRight")
            wait(page, lambda count=state + 1: page.evaluate("() => finished.length") == count)
            times.append(page.evaluate("() => finished.at(-1) - pressed") / 1000)
        browser.close()
    return times, bodies


def wait(page: Any, is_so: Callable[[], bool]) -> None:
    """Wait until something is so, seldom enough to leave the cores to the page and the server."""
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, page.locator("#error").inner_text()
        page.wait_for_timeout(100)


def over_http(address: str, body: dict[str, Any]) -> None:
    """Take in the events of a text."""
    content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, content, headers)) as answer:
        assert b"event: done" in answer.read()


def rows(args: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    """Yield how the states were asked for, and the seconds of each."""
    with started(DEFAULT_MODEL, "--device", "cpu") as server:
        address = f"http://127.0.0.1:{server.port}/"
        page, bodies = in_browser(address, args)
        yield "on the page", page
        yield "over HTTP", [timed(over_http, f"{address}v1/generate", body) for body in bodies]
    model = SSDLM.from_pretrained(DEFAULT_MODEL)
    prompt = bodies[0]["prompt"]
    of_page = ("prompt", "stream", "candidates", "guides")
    asked = [{name: body[name] for name in body if name not in of_page} for body in bodies]
    plain = {name: value for name, value in asked[0].items() if name != "control"}
    model.generate(prompt, **asked[0])  # guides load
    yield "in Python", [timed(model.generate, prompt, **one) for one in asked]
    yield "in Python, unsteered", [timed(model.generate, prompt, **plain) for _ in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=25, help="tokens of the text")
    parser.add_argument("--states", type=int, default=11, help="places of the slider, at most 11")
    parser.add_argument("--guide", default="sentiment", help="the guide whose slider moves")
    args = parser.parse_args()
    print(f"{args.states} states of {args.length} tokens, seconds: median, slowest")
    found: dict[str, list[float]] = {}
    for name, times in rows(args):
        found[name] = times
        print(f"{name:<22} {statistics.median(times):6.2f} {max(times):6.2f}", flush=True)
    middle = {name: statistics.median(times) for name, times in found.items()}
    ratio = middle["on the page"] / middle["in Python, unsteered"]
    print(f"the page takes {ratio:.1f} times as long as unsteered text that nobody watches")
    print(json.dumps({"length": args.length, "guide": args.guide, "seconds": found}))


if __name__ == "__main__":
    main()
