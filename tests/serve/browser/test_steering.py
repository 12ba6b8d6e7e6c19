"""Steering live: the text follows the slider with the same seed, and what is kept stays."""

import re

import pytest
from tests.serve.browser.driving import DESK, finish, finished, link, text_of, wait_until, words

LEFT = {"grid": "sliding", "width": 1, "T": 6, "top_p": 0.9, "length": 10, "seed": 0}


def written(site, **more):
    return "the river" + site.write("the river", **LEFT, **more)


def test_a_finished_text_follows_the_slider_and_undo_returns_it(open_page, site):
    page = open_page(link(path="left", T=6), **DESK)
    finish(page)
    plain = text_of(page)
    slider = page.get_by_label("steer mood")
    slider.focus()
    page.keyboard.press("End")
    finish(page, "done")
    glad = written(site, control="mood=glad:11")  # the end of the slider: 1.1 times the usual
    wait_until(lambda: text_of(page) == glad)
    assert glad != plain
    page.keyboard.press("Home")
    sad = written(site, control="mood=sad:11")
    wait_until(lambda: text_of(page) == sad)
    assert "guide.mood=sad%3A1.1" in page.url
    assert slider.get_attribute("aria-valuetext") == "towards sad, weight 11"
    readings = page.locator(".reading").all_inner_texts()
    assert re.fullmatch(r"reads as (sad|glad): (< )?\d+ %", readings[0].strip())
    page.locator("#undo").click()  # both places of the slider were one change
    assert text_of(page) == plain and slider.input_value() == "0"


def test_a_slider_that_moves_on_cancels_what_was_being_written(open_page, site):
    page = open_page(link(path="left", T=6, length=10), **DESK)
    finish(page)
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    slider = page.get_by_label("steer mood")
    slider.scroll_into_view_if_needed()
    place = slider.bounding_box()
    # The first is never answered; the second overtakes it.
    page.route("**/v1/generate", lambda route: None, times=1)
    with page.expect_request("**/v1/generate"):
        slider.fill("0.5")
    assert slider.bounding_box() == place  # nothing above it came or went
    assert not page.locator("#tools").is_visible()
    slider.fill("1")
    expected = written(site, control="mood=glad:10")
    wait_until(lambda: text_of(page) == expected)
    assert failed  # the browser gave it up
    assert not page.locator("#error").is_visible()


def test_kept_words_stay_while_the_rest_follows(open_page, site):
    page = open_page(finished(), **DESK)
    wait_until(words(page).first.is_visible)
    words(page).nth(2).click()
    with page.expect_request("**/v1/rewrite") as sent:
        page.get_by_label("steer mood").fill("1")
    finish(page, "steered")
    body = sent.value.post_data_json
    assert body["control"] == ["mood=glad:10"] and body["spans"] == [[0, 7], [14, 50]]
    assert text_of(page)[8 - 7 + 7 :].strip()
    assert page.locator(".word.kept").all_inner_texts() == ["river"]


def test_the_unsteered_text_stands_beside_it_and_gentle_asks_for_particles(open_page, site):
    page = open_page(link(path="left", T=6, compare=1, **{"guide.mood": "glad:1"}), **DESK)
    finish(page)
    assert text_of(page, "plain") == written(site)
    assert text_of(page) == written(site, control="mood=glad:10")
    assert "unsteered" in page.locator(".reading").first.inner_text()
    with page.expect_request("**/v1/generate") as sent:
        page.locator("#gentle").check()
    body = sent.value.post_data_json
    assert (body["particles"], body["control"]) == (8, ["mood=glad:8"])
    expected = written(site, control="mood=glad:8", particles=8)
    wait_until(lambda: text_of(page) == expected)
    assert text_of(page, "plain") == written(site)


@pytest.mark.nightly
def test_a_guide_of_three_labels_is_steered_towards_the_chosen_one(open_page, site):
    page = open_page(link(path="left", T=6), **DESK)
    finish(page)
    page.get_by_label("kind: what to steer towards").select_option("neutral")
    page.get_by_label("steer kind").fill("1")
    expected = written(site, control="kind=neutral:10")
    wait_until(lambda: text_of(page) == expected)
    assert "reads as neutral" in page.locator(".reading").last.inner_text()
