"""What goes wrong is said in the words of a person, and can be tried again."""

import pytest
from tests.serve.browser.driving import (
    DESK,
    finish,
    finished,
    go,
    link,
    looks,
    wait_until,
    words,
)


def refusing(page, path, **answer):
    page.route(path, lambda route: route.fulfill(**answer) if answer else route.abort())


WRONG = {
    "gone": (None, "The server does not answer. Is it still running?"),
    "busy": (
        {
            "status": 429,
            "headers": {"Retry-After": "7"},
            "json": {"error": {"message": "256 texts wait already"}},
        },
        "Too many people are writing just now. Try again in 7 seconds.",
    ),
    "refused": (
        {"status": 400, "json": {"error": {"message": "T=0 is too small; use 1 to 9"}}},
        "Steps 0 is too small; use 1 to 9.",
    ),
    "broken": ({"status": 500, "json": {}}, "Something broke in the server; its log says what."),
    "cut off": (
        {"content_type": "text/event-stream", "body": 'data: {"event": "queued"}\n\n'},
        "The server broke off",
    ),
}
"""What may become of a request, and what the page says about it."""


def write(page):
    go(page, "#prompt", "Enter")


def steer(page):
    go(page, "[aria-label='steer mood']", "ArrowRight")


def steer_around_kept_words(page):
    if page.locator(".kept").count() == 0:
        go(page, ".word[tabindex='0']", "Home", "Space")
    go(page, "[aria-label='steer mood']", "ArrowRight")


def rewrite(page):
    words(page).nth(2).press("Enter")


def chat(page):
    if page.locator("#tab-chat").get_attribute("aria-pressed") == "false":
        go(page, "#tab-chat", "Enter")
    page.locator("#message").fill("hello")
    go(page, "#message", "Enter")


DOES = [write, steer, steer_around_kept_words, rewrite, chat]
EACH = [one for n, does in enumerate(DOES) for one in looks(n, does, name=f"{does.__name__}-")]


@pytest.mark.parametrize("does, look", EACH)
def test_what_goes_wrong_is_told_in_view_loses_nothing_and_can_be_tried_again(
    open_page, look, does
):
    page = open_page(finished(length=5, model="talker"), **look)
    wait_until(words(page).first.is_visible)
    if does is chat:
        chat(page)
        wait_until(page.locator("#talk-tools").is_visible)
    where = "**/v1/" + {rewrite: "rewrite", chat: "chat/completions"}.get(does, "generate")
    if does is steer_around_kept_words:
        where = "**/v1/rewrite"
    place = "#messages" if does is chat else "#main-text .stage"
    text = page.locator(place).inner_text()
    error = page.locator("#error")
    for answer, words_of_it in WRONG.values():
        refusing(page, where, **(answer or {}))
        page.evaluate("() => scrollTo(0, document.body.scrollHeight)")
        does(page)
        wait_until(lambda told=words_of_it: error.is_visible() and told in error.inner_text())
        box, height = error.bounding_box(), look["viewport"]["height"]
        assert 0 <= box["y"] and box["y"] + box["height"] <= height
        assert page.locator(place).inner_text() == text
        assert page.locator("#stop").is_hidden() and page.locator("#cease").is_hidden()
        if does is chat:
            assert page.locator("#message").input_value() == "hello"
        page.unroute(where)
    with page.expect_request(where) as sent:
        go(page, "#retry", "Enter")
    if does in (steer, steer_around_kept_words):
        assert sent.value.post_data_json["control"] == ["mood=glad:5"]  # the fifth place
    wait_until(lambda: page.locator(place).inner_text() != text and error.is_hidden())
    wait_until(page.locator("#send" if does is chat else "#go").is_visible)
    assert error.is_hidden()


def test_what_is_refused_is_named_as_the_page_names_it_and_its_control_is_marked(open_page):
    page = open_page(link(length=5, path="left", T=6, must="a word that is long"), **DESK)
    error = page.locator("#error")
    wait_until(error.is_visible)
    assert "required words" in error.inner_text() and "must" not in error.inner_text()
    assert page.locator("#must").get_attribute("aria-invalid") == "true"
    assert page.locator("#must").is_visible()
    page.locator(".chips li button").click()
    page.locator("#go").click()
    finish(page)
    assert page.locator("[aria-invalid]").count() == 0
    page.locator("#structure summary").click()
    page.locator("#json_schema").fill("{not json")
    page.locator("#go").click()
    wait_until(lambda: "The schema is no JSON" in error.inner_text())


def test_a_busy_server_says_where_one_stands_and_what_it_broke_off(open_page):
    page = open_page(**DESK)
    told = 'event: queued\ndata: {"event": "queued", "position": 3}\n\n'
    page.evaluate(
        """() => {
            window.told = [];
            const status = document.getElementById("status");
            new MutationObserver(() => told.push(status.textContent))
                .observe(status, { childList: true });
        }"""
    )
    refusing(page, "**/v1/generate", content_type="text/event-stream", body=told)
    page.locator("#go").click()
    wait_until(page.locator("#error").is_visible)
    assert "broke off before the text was done" in page.locator("#error").inner_text()
    assert "waiting: 3 before you" in page.evaluate("() => told")


def test_the_key_is_asked_for_and_kept_out_of_the_link(open_page):
    def guarded(page):
        def answer(route):
            if route.request.headers.get("authorization") == "Bearer secret-17":
                route.continue_()
            else:
                route.fulfill(status=401, json={"error": {"message": "this server needs a key"}})

        page.route("**/v1/*", answer)

    page = open_page(link(), before=guarded)
    dialog = page.locator("#key-dialog")
    wait_until(dialog.is_visible)
    page.locator("#key").fill("wrong")
    page.keyboard.press("Enter")
    wait_until(lambda: dialog.is_visible() and page.locator("#key").input_value() == "")
    page.locator("#key").fill("secret-17")
    page.keyboard.press("Enter")
    finish(page)
    assert "secret" not in page.url
    assert "secret" not in page.evaluate("() => JSON.stringify(localStorage)")
    page.reload()
    finish(page)
