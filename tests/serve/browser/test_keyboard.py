"""Every control by keyboard alone: on a phone and at a desk, in light and in dark."""

import json

import pytest
from tests.serve.browser.driving import (
    LOOKS,
    SCHEMA,
    TEXT,
    asked_of,
    chosen_words,
    finish,
    finished,
    go,
    link,
    looks,
    text_of,
    wait_until,
    words,
)

STOP = """() => {
    const at = document.activeElement;
    if (at === document.body || window.visited.has(at)) return null;
    window.visited.add(at);
    const { left, top, width, height } = at.getBoundingClientRect();
    const over = document.elementFromPoint(left + width / 2, top + height / 2);
    const isRinged = (one) => getComputedStyle(one).outlineStyle === "solid";
    const labels = [...(at.labels ?? [])].map((one) => one.textContent).join(" ");
    const faults = [];
    if (!(at.ariaLabel ?? (labels || at.textContent)).trim()) faults.push("has no name");
    if (![at, at.closest("label") ?? at].some(isRinged)) faults.push("does not show the focus");
    if (!(at.contains(over) || over?.contains(at))) faults.push(`is below ${over?.outerHTML}`);
    return { name: at.id || at.outerHTML.slice(0, 90), faults };
}"""
"""What is wrong with the control that has the focus; null where Tab has been there."""
MISSED = """() => [...document.querySelectorAll(
    "button:enabled, a[href], input:not([type=radio]), [type=radio]:checked, select, textarea, " +
        "summary, [tabindex='0']",
)].filter((one) => one.checkVisibility({ visibilityProperty: true }) && !window.visited.has(one))
    .map((one) => one.id || one.outerHTML.slice(0, 90))"""
"""The controls that Tab did not come to."""
PALE = """() => {
    const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const lightOf = (colours) => {
        for (const colour of colours) {
            pen.fillStyle = colour;
            pen.fillRect(0, 0, 1, 1);
        }
        const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((one) => linear(one / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    // As pale as they are unsure, or as they are of no use.
    const isMeant = (one) => one.matches(".position:not(.n0), #legend .n4, :disabled *, :disabled");
    const isText = (node) => node.nodeType === 3 && node.data.trim();
    const found = [];
    for (const one of document.querySelectorAll("body *")) {
        if (isMeant(one) || ![...one.childNodes].some(isText)) continue;
        if (!one.checkVisibility({ visibilityProperty: true })) continue;
        const colours = [getComputedStyle(one).color];
        for (let at = one; at; at = at.parentElement) {
            colours.unshift(getComputedStyle(at).backgroundColor);
        }
        const [ink, paper] = [lightOf(colours), lightOf(colours.slice(0, -1))];
        const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${one.outerHTML.slice(0, 90)}`);
    }
    return found;
}"""
"""Words that are hard to read, by the contrast that WCAG asks for."""


@pytest.mark.parametrize("look", LOOKS, ids=range(4))
def test_tab_comes_to_every_control_which_is_in_view_has_a_name_and_can_be_read(open_page, look):
    page = open_page(link(path="left", T=6, samples=2, must="a"), **look)
    finish(page)
    for summary in page.locator(".group:not([open]) > summary").all():
        summary.press("Enter")
    page.locator("#json_schema").fill(json.dumps(SCHEMA))
    page.locator("header h1").click()  # Tab begins at the top
    for key in ("Tab", "Shift+Tab") if "is_mobile" in look else ("Tab",):
        page.evaluate("() => (window.visited = new Set())")
        stops = []
        while stop := page.keyboard.press(key) or page.evaluate(STOP):
            stops.append(stop)
        assert [f"{stop['name']} {fault}" for stop in stops for fault in stop["faults"]] == []
        assert page.evaluate(MISSED) == [] and len(stops) > 45
    assert page.evaluate(PALE) == []


@pytest.mark.parametrize("look", looks(1))
def test_every_setting(open_page, look):
    page = open_page(finished(), **look)
    wait_until(words(page).first.is_visible)
    go(page, "#prompt", "Control+a", "x", "Shift+Enter", "y")
    go(page, "#paths :checked", "ArrowDown", "ArrowDown", "ArrowUp")
    for name, keys in {
        "length": "ArrowRight",
        "T": "ArrowRight",
        "temperature": "ArrowLeft",
        "top_p": "Home",
        "samples": "ArrowRight",
    }.items():
        go(page, f"#{name}", keys)
        shown = page.locator(f"output[for={name}]").inner_text()
        assert page.locator(f"#{name}").input_value() == shown
    go(page, "#seed", "ArrowUp", "ArrowUp")
    go(page, "#contents summary", "Enter")
    for word in ("hat", "dog", "cat"):
        go(page, "#must", *word, "Enter" if word != "dog" else ",")
    go(page, "#must", "Backspace")
    go(page, "[aria-label='remove hat']", "Space")
    go(page, "#must_not", "e", "Enter")
    go(page, "#suffix", " ", "u", "p")
    go(page, "#structure summary", "Enter")
    go(page, "[data-fill=regex]", "Enter")
    assert "January" in page.locator("#regex").input_value()
    go(page, "#regex", "Control+a", "[", "a", "b", "]", "+")
    go(page, "[data-fill=json_schema]", "Enter")
    assert page.locator("#length").input_value() == "60" and page.get_by_label("title").is_visible()
    go(page, "#json_schema", "Control+a")
    page.keyboard.insert_text(json.dumps(SCHEMA))
    go(page, "#fields input", "n")
    go(page, "#release", "Enter")
    go(page, "#fields select", "ArrowDown")
    with page.expect_request("**/v1/generate") as sent:
        go(page, "#another", "Enter")
    fixed = SCHEMA["properties"] | {"stars": {"const": 1}}
    assert sent.value.post_data_json == {
        "model": "writer",
        "prompt": "x\ny",
        "grid": "staggered",
        "width": 8,
        "T": 16,
        "length": 60,
        "temperature": 0.95,
        "top_p": 0,
        "seed": 3,
        "must": ["dog"],
        "must_not": ["e"],
        "suffix": " up",
        "regex": "[ab]+",
        "json_schema": SCHEMA | {"properties": fixed, "required": ["name", "stars", "inner"]},
        "stream": True,
        "candidates": 5,
        "guides": ["mood", "kind"],
    }
    error = page.locator("#error")
    wait_until(error.is_visible)  # a pattern beside a schema is refused
    assert "the pattern" in error.inner_text().lower() and "regex" not in error.inner_text()


@pytest.mark.parametrize("look", looks(2))
def test_the_words_of_a_text(open_page, site, look):
    page = open_page(finished(), **look)
    wait_until(words(page).first.is_visible)
    go(page, ".word[tabindex='0']", "ArrowRight", "ArrowRight", "Shift+ArrowRight", "Shift+End")
    assert len(chosen_words(page)) == 10
    page.keyboard.press("Escape")
    assert chosen_words(page) == []
    words(page).nth(2).focus()
    for _ in range(2):
        page.keyboard.press("Shift+ArrowRight")
    assert chosen_words(page) == ["river", "ran", "down"]
    with page.expect_request("**/v1/rewrite") as sent:
        page.keyboard.press("Enter")
    finish(page, "rewritten")
    texts = asked_of(site, sent.value.post_data_json)
    assert text_of(page) == texts[0]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert text_of(page) == texts[2]
    page.keyboard.press("Enter")  # keeps it, and goes back to the new words
    assert page.evaluate("() => document.activeElement.className").startswith("word new chosen")
    page.keyboard.press("Control+z")
    assert text_of(page) == TEXT
    page.keyboard.press("Control+Shift+Z")
    assert text_of(page) == texts[2]
    go(page, "#undo", "Enter")
    assert text_of(page) == TEXT
    go(page, "#redo", "Enter")
    assert text_of(page) == texts[2]
    page.locator(".word[tabindex='0']").press("Control+z")
    go(page, ".word[tabindex='0']", "Home", "Space")
    assert page.locator(".word.kept").all_inner_texts() == ["the"]
    page.keyboard.press("Shift+ArrowRight")
    go(page, "#keep", "Enter")
    assert page.locator(".word.kept").all_inner_texts() == ["the", "old"]
    go(page, "#free", "Space")
    with page.expect_request("**/v1/rewrite") as sent:
        go(page, "#rewrite", "Enter")  # all but what is kept
    body = sent.value.post_data_json
    assert (body["spans"], body["length"]) == ([[8, 50]], "free")
    go(page, "#stop", "Enter")
    assert text_of(page) == TEXT
    go(page, ".word[tabindex='0']", "Home", "F2", *"our", "Escape")
    assert text_of(page) == TEXT
    words(page).first.focus()
    for key in (*"our", "Enter"):  # one types over a word
        page.keyboard.press(key)
    assert text_of(page) == TEXT.replace("the", "our", 1)
    go(page, ".word[tabindex='0']", "ArrowRight", "Shift+ArrowRight")
    go(page, "#type", "Enter", *"new", "Enter")
    assert text_of(page) == "our new" + TEXT.removeprefix("the old river")
    assert page.evaluate("() => document.documentElement.scrollWidth") == look["viewport"]["width"]


@pytest.mark.parametrize("look", looks(0))
def test_steering(open_page, site, look):
    page = open_page(link(path="left", T=6, length=5), **look)
    finish(page)
    options = {"grid": "sliding", "width": 1, "T": 6, "top_p": 0.9, "length": 5, "seed": 0}

    def follows(**more):
        expected = "the river" + site.write("the river", **options, **more)
        wait_until(lambda: text_of(page) == expected)
        finish(page)  # until then buttons come and go, and with them what Tab leads to

    go(page, "[aria-label='steer mood']", "End")
    follows(control="mood=glad:11")
    go(page, "[aria-label^='kind:']", "ArrowDown")
    go(page, "[aria-label='steer kind']", "End")
    label = page.locator("[aria-label^='kind:']").input_value()
    follows(control=["mood=glad:11", f"kind={label}:11"])
    go(page, "[aria-label='steer mood']", *["ArrowLeft"] * 11)
    go(page, "#compare", "Space")
    follows(control=f"kind={label}:11")
    finish(page)
    assert text_of(page, "plain") == "the river" + site.write("the river", **options)
    go(page, "#gentle", "Space")
    follows(control=f"kind={label}:8.8", particles=8)


@pytest.mark.parametrize("look", looks(3))
def test_the_timeline_what_is_copied_and_what_was_written_before(open_page, site, look):
    page = open_page(
        link(path="left", T=6, length=5),
        permissions=["clipboard-read", "clipboard-write"],
        **look,
    )
    finish(page)
    text = text_of(page)
    go(page, "#step", "Home", "ArrowRight")
    assert page.locator("#caption").inner_text() == "step 2 of 5: 2 of 2 tokens decided"
    go(page, ".position[tabindex='0']", "ArrowRight")
    wait_until(page.locator("#candidates").is_visible)
    go(page, "#play", "Enter")
    wait_until(lambda: page.locator("#play").inner_text() == "Play" and text_of(page) == text)
    go(page, "#autoregressive", "Enter")
    wait_until(lambda: "; autoregressive" in page.locator("#speed").inner_text())
    begins = {"text": "the river", "link": site.address, "command": "ssdlm generate"}
    for way, begin in (begins | {"python": "from ssdlm", "curl": "curl -s"}).items():
        go(page, f"[data-copy={way}]", "Enter")
        wait_until(lambda begin=begin: copied(page).startswith(begin))
    with page.expect_download() as download:
        go(page, "#picture", "Enter")
    assert download.value.path().read_text().startswith("<svg")
    go(page, "#another", "Space")
    wait_until(lambda: page.locator("#earlier li").count() == 2)
    assert text_of(page) != text
    go(page, "#history summary", "Enter")
    go(page, "#earlier li:last-child button", "Enter")
    assert text_of(page) == text
    for theme in ("light", "dark", "auto"):
        go(page, "#theme", "Enter")
        assert page.locator("#theme").inner_text() == f"Theme: {theme}"
    go(page, "#models summary", "Enter")
    assert page.evaluate("() => document.documentElement.scrollWidth") == look["viewport"]["width"]
    page.keyboard.press("Tab")
    for model in ("talker", "causal"):  # the focus stays in the list, whose cards are made anew
        page.keyboard.press("ArrowDown")
        wait_until(lambda model=model: page.locator("#models summary").inner_text() == model)
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.localName") == "summary"
    go(page, "header a", "Enter")
    page.wait_for_url("**/docs")


@pytest.mark.parametrize("look", looks(1))
def test_a_chat(open_page, site, look):
    page = open_page(
        finished(model="talker"), permissions=["clipboard-read", "clipboard-write"], **look
    )
    wait_until(words(page).first.is_visible)
    page.route("**/v1/generate", lambda route: None)  # it is never answered
    go(page, "#prompt", "Enter")
    go(page, "#tab-chat", "Enter")
    assert page.locator("#send").is_visible()  # nobody would see what is written there
    go(page, "#talk summary", "Enter")
    go(page, "#most", "Control+a", "5")
    go(page, "#heat", "ArrowUp")
    go(page, "#talk-seed", "ArrowUp")
    go(page, "#system", *"be brief")
    go(page, "#message", "h", "i", "Shift+Enter", "x", "Backspace")
    with page.expect_request("**/v1/chat/completions") as sent:
        go(page, "#send", "Enter")
    body = sent.value.post_data_json
    asked = {"model": "talker", "max_completion_tokens": 5, "temperature": 0.1, "seed": 1}
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert body == asked | {"messages": said, "stream": True, "diffusing": True}
    wait_until(page.locator("#talk-tools").is_visible)
    assert page.locator("#send").evaluate("(one) => one === document.activeElement")
    answer = site.ask("v1/chat/completions", messages=said, **asked)["choices"][0]["message"]
    assert page.locator("#messages li p").all_text_contents() == ["hi", answer["content"].strip()]
    for way, begin in {"text": "user: hi", "python": "from openai", "curl": "curl -s"}.items():
        go(page, f"[data-way={way}]", "Enter")
        wait_until(lambda begin=begin: copied(page).startswith(begin))
    page.route("**/v1/chat/completions", lambda route: None)  # it is never answered
    go(page, "#message", "a", "Enter")
    go(page, "#cease", "Enter")
    assert page.locator("#message").input_value() == "a"
    assert page.locator("#messages li").count() == 2
    go(page, "#fresh", "Enter")
    assert page.locator("#messages li").count() == 0
    go(page, "#tab-write", "Enter")
    assert page.locator("#prompt").is_visible()


def copied(page):
    return page.evaluate("() => navigator.clipboard.readText()")
