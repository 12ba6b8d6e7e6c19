"""What tests do with the page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from tests.serve.running import wait_for

WINDOW = {"grid": "staggered", "width": 8.0, "T": 10, "top_p": 0.9}
"""What the moving window is for the server."""
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESK = {"viewport": {"width": 1280, "height": 800}}
LOOKS = [kind | {"color_scheme": scheme} for kind in (PHONE, DESK) for scheme in ("light", "dark")]
"""The widths of the page, light and dark."""
TEXT = "the old river ran down to the mill. and so it was."
SCHEMA = {
    "type": "object",
    "required": ["name", "stars", "inner"],
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "stars": {"enum": [1, 2]},
        "inner": {"type": "object", "properties": {"good": {"type": "boolean"}}},
    },
}


def looks(by_day: int, *others: Any, name: str = "") -> list[Any]:
    """All looks as parameters, after some others; one of them is tried by day, three at night."""
    return [
        pytest.param(
            *others,
            look,
            id=f"{name}{look['viewport']['width']}-{look['color_scheme']}",
            marks=[] if number == by_day % len(LOOKS) else [pytest.mark.nightly],
        )
        for number, look in enumerate(LOOKS)
    ]


def link(**settings: Any) -> str:
    """An address's part that asks for a text."""
    usual = {"prompt": "the river", "path": "window", "length": 10, "T": 10}
    return "#" + urlencode(usual | settings, doseq=True)


def finished(**settings: Any) -> str:
    """One that shows a finished text, with nothing to write."""
    return link(text=TEXT, path="left", T=6, **settings)


def text_of(page: Any, which: str = "main") -> str:
    """The text as it stands on the page, its prompt with it."""
    return page.locator(f"#{which}-text .stage").inner_text()


def wait_until(is_so: Any) -> None:
    """Wait for something on a page; its policy forbids what Playwright would wait with."""
    wait_for(is_so, 90)


def finish(page: Any, *said: str) -> None:
    """Wait until a text is written: the page says so."""
    status, error = page.locator("#status"), page.locator("#error")
    wait_until(lambda: status.inner_text() in (said or ("done",)) or error.is_visible())
    assert not error.is_visible(), error.inner_text()


def go(page: Any, selector: str, *keys: str) -> None:
    """Press keys on a control, to which Tab leads."""
    control = page.locator(selector).first
    control.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    is_there = control.evaluate("(one) => one === document.activeElement")
    assert is_there, f"Tab does not lead to {selector}"
    for key in keys:
        page.keyboard.press(key)


def words(page: Any) -> Any:
    """The words of the finished text."""
    return page.locator("#main-text .word")


def drag(page: Any, first: int, last: int) -> None:
    """Choose words with the mouse."""
    boxes = [words(page).nth(number).bounding_box() for number in (first, last)]
    for box, act in zip(boxes, (page.mouse.down, page.mouse.up), strict=True):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
        act()


def chosen_words(page: Any) -> list[str]:
    """The words that would be written anew."""
    return page.locator("#main-text .word.chosen").all_inner_texts()


def asked_of(site: Any, body: dict[str, Any]) -> list[str]:
    """The texts that the server gives for the body of a request that was watched."""
    body = {name: value for name, value in body.items() if name not in ("stream", "candidates")}
    return [one["text"] for one in site.ask("v1/rewrite", **body)["rewrites"]]
