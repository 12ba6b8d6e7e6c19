"""What a text must have: words, a gap, a pattern, a schema with its form; models, and the chat."""

import json
import re

from tests.serve.browser.driving import (
    DESK,
    PHONE,
    SCHEMA,
    TEXT,
    finish,
    finished,
    go,
    link,
    text_of,
    wait_until,
)


def test_words_and_a_gap(open_page, site):
    page = open_page(link(path="left", T=6), **DESK)
    finish(page)
    page.locator("#contents summary").click()
    for word in ("hat", "e", "o"):
        page.locator("#must" if word == "hat" else "#must_not").fill(word)
        page.keyboard.press("Enter")
    page.get_by_label("remove o").click()
    page.locator("#suffix").fill(" was up.")
    page.locator("#go").click()
    asked = {"must": ["hat"], "must_not": ["e"], "suffix": " was up."}
    options = {"grid": "sliding", "width": 1, "T": 6, "top_p": 0.9, "length": 10, "seed": 0}
    expected = "the river" + site.write("the river", **options, **asked)
    wait_until(lambda: text_of(page) == expected)
    assert "hat" in expected
    given = page.locator("#main-text .word.given").all_inner_texts()
    assert given == ["the", "was", "up."]  # letters were added to the other


def test_a_pattern_is_followed(open_page):
    page = open_page(link(path="left", T=6), **DESK)
    finish(page)
    page.locator("#structure summary").click()
    page.locator("#regex").fill(" [ab]{4}")
    page.locator("#go").click()
    wait_until(lambda: re.match("the river [ab]{4}", text_of(page)))
    finish(page)
    assert re.fullmatch("the river [ab]{4}", text_of(page))


def test_a_schema_becomes_a_form_whose_known_fields_are_fixed_and_the_rest_is_written(open_page):
    mini = {"model": "builtin:mini", "path": "left", "T": 25}
    page = open_page(link(prompt="it is ", length=5, **mini), **PHONE)
    finish(page)
    page.locator("#length").fill("40")
    page.locator("#structure summary").click()
    page.locator("#json_schema").fill(json.dumps(SCHEMA))
    page.locator("#fields label:has-text('stars') select").select_option("2")
    page.locator("#fields label:has-text('good') select").select_option("true")
    page.locator("#go").click()
    wait_until(lambda: text_of(page).startswith("it is {") and page.locator("#go").is_visible())
    found = json.loads(text_of(page).removeprefix("it is "))
    assert found["stars"] == 2 and found["inner"] == {"good": True}
    name = page.locator("#fields label:has-text('name')")
    assert name.locator("input").input_value() == found["name"]
    assert name.get_attribute("data-kind") == "written"
    assert page.locator("[data-kind=fixed]").count() == 2
    page.reload()  # the link knows what was filled in
    finish(page)
    assert json.loads(text_of(page).removeprefix("it is ")) == found
    page.locator("#release").click()
    assert page.locator("[data-kind=fixed]").count() == 0
    page.locator("#history summary").click()
    page.locator("#earlier button").click()
    assert name.locator("input").input_value() == found["name"]


def test_models_say_what_they_are_good_for_and_one_is_chosen_by_keyboard(open_page, site):
    page = open_page(link(path="left", T=6, must="dog"), **DESK)
    wait_until(lambda: page.locator("#go").is_visible())
    summary = page.locator("#models summary")
    assert summary.inner_text() == "writer"
    summary.focus()
    page.keyboard.press("Enter")
    writer, talker, causal, _ = page.locator(".model").all_inner_texts()
    assert "rewrites the middle" in writer and "chats" not in writer
    assert "chats" in talker
    assert "writes left to right" in causal and "rewrites" not in causal
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    wait_until(lambda: summary.inner_text() == "causal")
    page.keyboard.press("Escape")
    for hidden in ("label:has(input[value=window])", "#T", "#must", "#suffix"):
        wait_until(page.locator(hidden).is_hidden)
    assert "An adapter lets it do more" in page.locator("#single").inner_text()
    page.locator("#length").fill("10")
    page.locator("#prompt").fill("the river")
    page.locator("#prompt").press("Enter")
    finish(page)
    T = int(page.locator("#T").input_value())
    options = {"length": 10, "seed": 0, "grid": "sliding", "width": 1.0, "T": T, "top_p": 0.9}
    expected = "the river" + site.write("the river", model="causal", **options)
    assert text_of(page) == expected
    assert page.locator("#rewrite").is_disabled()
    assert "left to right only" in page.locator("#hint").inner_text()
    other = open_page(link(model="causal", must="dog", suffix=" ran"), **DESK)
    finish(other)
    said = other.locator("#linked").inner_text()
    assert "path=window is not known here" in said and "must=dog is not known here" in said
    other.evaluate(f"() => location.hash = {json.dumps(finished(model='builtin:mini', length=5))}")
    wait_until(lambda: other.locator("#models summary").inner_text() == "builtin:mini")
    wait_until(lambda: text_of(other) == TEXT)
    go(other, "#examples button", "Enter")
    wait_until(lambda: text_of(other).startswith("The movie was"))
    finish(other)


def last_is_open(page):
    return page.locator("#messages .on-its-way").count() > 0


def test_a_model_with_a_template_chats_beside_writing(open_page, site):
    page = open_page(
        link(model="talker", path="left", T=6),
        permissions=["clipboard-read", "clipboard-write"],
        **PHONE,
    )
    finish(page)
    page.locator("#tab-chat").tap()
    page.locator("#talk summary").tap()
    page.locator("#most").fill("9")
    page.locator("#heat").fill("1")
    page.locator("#system").fill("be brief")
    page.locator("#message").fill("hello")
    page.locator("#message").press("Enter")
    wait_until(page.locator("#talk-tools").is_visible)
    body = {
        "model": "talker",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
        "max_completion_tokens": 9,
        "temperature": 1,
        "seed": 0,
    }
    answer = site.ask("v1/chat/completions", **body)["choices"][0]["message"]["content"]
    last = page.locator("#messages li").last.locator("p")
    assert last.text_content() == answer.strip()
    assert page.locator("#spoken").text_content() == answer.strip()
    page.locator("[data-way=curl]").tap()
    page.wait_for_selector("#said")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith(f"curl -s {site.address}v1/chat/completions")
    assert json.dumps(body, separators=(",", ":")) in copied
    where, busy = "**/v1/chat/completions", {"error": {"message": "256 texts wait already"}}
    page.route(
        where, lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, json=busy)
    )
    page.locator("#message").fill("more")
    page.locator("#message").press("Enter")
    wait_until(lambda: "Try again in 7 seconds." in page.locator("#error").inner_text())
    assert page.locator("#message").input_value() == "more"  # nothing is lost
    assert page.locator("#messages li").count() == 2
    page.unroute(where)
    page.locator("#retry").click()
    wait_until(lambda: page.locator("#messages li").count() == 4 and not last_is_open(page))
    assert page.locator("#message").input_value() == ""
    page.locator("#fresh").tap()
    assert page.locator("#messages li").count() == 0
    page.locator("#tab-write").tap()
    assert page.locator("#prompt").is_visible()
