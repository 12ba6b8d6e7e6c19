"""The middle of a text: chosen, kept, typed over, written anew, chosen among, undone."""

from tests.serve.browser.driving import (
    DESK,
    PHONE,
    TEXT,
    asked_of,
    chosen_words,
    drag,
    finish,
    finished,
    text_of,
    wait_until,
    words,
)

AROUND = ("the old ", " to the mill. and so it was.")
"""What stands around `river ran down`."""


def shown(open_page, *, viewport=DESK["viewport"], **kind):
    """Open a finished text."""
    page = open_page(finished(), viewport=viewport, **kind)
    wait_until(lambda: text_of(page) == TEXT)
    return page


def cards(page):
    return page.locator("#choices .choice")


def test_chosen_words_alone_are_written_anew_and_three_alternatives_stand_side_by_side(
    open_page, site
):
    page = shown(open_page)
    assert page.locator("#rewrite").is_disabled()
    drag(page, 2, 4)
    assert chosen_words(page) == ["river", "ran", "down"]
    assert page.locator("#rewrite").inner_text() == "Rewrite 3 words"
    with page.expect_request("**/v1/rewrite") as sent:
        page.keyboard.press("Enter")
    finish(page, "rewritten")
    body = sent.value.post_data_json
    assert (body["text"], body["spans"], body["alternatives"]) == (TEXT, [[8, 22]], 3)
    texts = asked_of(site, body)
    assert text_of(page) == texts[0] != TEXT
    assert all(one.startswith(AROUND[0]) and one.endswith(AROUND[1]) for one in texts)
    assert [card.inner_text() for card in cards(page).all()] == [
        *texts,
        f"{TEXT}\nas it was",
    ]
    boxes = [card.bounding_box() for card in cards(page).all()]
    assert len({box["y"] for box in boxes if box}) == 1  # side by side
    page.keyboard.press("ArrowRight")
    assert text_of(page) == texts[1]
    cards(page).nth(2).click()
    assert text_of(page) == texts[2]
    assert (
        page.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('text')") == texts[2]
    )
    page.locator("#undo").click()
    assert text_of(page) == TEXT and not cards(page).first.is_visible()
    page.locator("#redo").click()
    assert text_of(page) == texts[2]


def test_what_is_kept_stays_and_the_rest_is_written_around_it(open_page, site):
    page = shown(open_page)
    words(page).nth(2).click()
    words(page).nth(4).click()
    words(page).nth(9).click()
    words(page).nth(9).click()  # lets it go
    assert page.locator(".word.kept").all_inner_texts() == ["river", "down"]
    drag(page, 1, 5)
    with page.expect_request("**/v1/rewrite") as sent:
        page.locator("#rewrite").click()
    finish(page, "rewritten")
    assert sent.value.post_data_json["spans"] == [[4, 7], [14, 17], [23, 25]]
    assert text_of(page) == asked_of(site, sent.value.post_data_json)[0]
    assert page.locator(".word.kept").all_inner_texts() == ["river", "down"]
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.locator("#rewrite").inner_text() == "Rewrite all but kept words"


def test_words_of_ones_own_are_kept_and_the_sentence_around_them_is_chosen(open_page, site):
    page = shown(open_page)
    words(page).nth(2).dblclick()
    page.keyboard.type("wide sea \N{WATER WAVE}")
    page.keyboard.press("Enter")
    assert text_of(page) == TEXT.replace("river", "wide sea \N{WATER WAVE}")
    assert page.locator(".word.kept").all_inner_texts() == ["wide", "sea", "\N{WATER WAVE}"]
    assert chosen_words(page)[0] == "the" and chosen_words(page)[-1] == "mill."
    with page.expect_request("**/v1/rewrite") as sent:
        page.keyboard.press("Enter")
    # In characters, of which the wave is one, and not as JavaScript counts.
    assert sent.value.post_data_json["spans"] == [[0, 7], [19, 40]]
    finish(page, "rewritten")
    assert " wide sea \N{WATER WAVE} " in text_of(page)
    page.locator("#undo").click()
    page.locator("#undo").click()
    assert text_of(page) == TEXT


def test_of_several_lengths_the_cards_show_the_one_that_was_chosen(open_page, site):
    page = shown(open_page)
    page.locator("#free").check()
    with page.expect_request("**/v1/rewrite") as sent:
        words(page).nth(5).press("Enter")
    finish(page, "rewritten")
    body = sent.value.post_data_json
    assert body["length"] == "free" and "free=1" in page.url
    rewrites = asked_of(site, body)
    assert len({len(one) for one in rewrites}) > 1 and TEXT not in rewrites
    assert [card.inner_text() for card in cards(page).all()[:3]] == rewrites
    assert text_of(page) == rewrites[0]


def test_words_settle_in_place_and_can_be_stopped(open_page):
    page = shown(open_page)
    page.locator("label:has(input[value=all])").click()
    page.locator("#T").fill("200")
    drag(page, 1, 6)
    page.keyboard.press("Enter")
    wait_until(lambda: page.locator("#main-text .position.n5, #main-text .position.n9").count() > 0)
    settling = text_of(page)
    assert settling.startswith("the ") and settling.endswith(" mill. and so it was.")
    page.locator("#stop").click()
    assert text_of(page) == TEXT


def test_a_finger_selects_words_as_it_selects_text(open_page):
    page = shown(open_page, **PHONE)
    page.evaluate(
        """() => {
            const all = document.querySelectorAll("#main-text .word");
            getSelection().setBaseAndExtent(all[2].firstChild, 2, all[4].firstChild, 1);
        }"""
    )
    wait_until(lambda: chosen_words(page) == ["river", "ran", "down"])
    assert "F2" not in page.locator("#hint").inner_text()
    page.locator("#rewrite").tap()
    finish(page, "rewritten")
    boxes = [card.bounding_box() for card in cards(page).all()]
    assert len({box["x"] for box in boxes if box}) == 1  # one below the other
