"""What goes wrong is said in the words of a person, and can be tried again."""

import pytest
from tests.serve.browser.driving import DESK, finish, finished, link, text_of, wait_until


def refusing(page, path, **answer):
    page.route(path, lambda route: route.fulfill(**answer) if answer else route.abort())


@pytest.mark.parametrize("path", ["generate", "rewrite"])
def test_a_server_that_is_gone_or_busy_is_told_and_may_be_asked_again(open_page, path):
    page = open_page(finished() if path == "rewrite" else link(), **DESK)
    if path == "rewrite":
        wait_until(page.locator(".word").first.is_visible)
    else:
        finish(page)
    where = f"**/v1/{path}"
    button = page.locator("#rewrite" if path == "rewrite" else "#go")
    if path == "rewrite":
        page.locator(".word").nth(2).focus()
        page.keyboard.press("Shift+ArrowRight")
    text = text_of(page)
    refusing(page, where)
    button.click()
    error = page.locator("#error")
    wait_until(lambda: "does not answer. Is it still running?" in error.inner_text())
    assert text_of(page) == text  # nothing is lost
    page.unroute(where)
    refusal = {"error": {"message": "256 texts wait already"}}
    refusing(page, where, status=429, headers={"Retry-After": "7"}, json=refusal)
    page.locator("#retry").click()
    wait_until(lambda: "Try again in 7 seconds." in error.inner_text())
    assert page.locator("#go").is_visible()
    page.unroute(where)
    page.locator("#retry").click()
    finish(page, "rewritten", "done")
    assert not error.is_visible()


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
