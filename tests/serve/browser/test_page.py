"""Writing on the page: how a text settles, the timeline, candidates, links, ways to share it."""

import json
import re
import shlex
from xml.etree import ElementTree

import pytest
from tests.serve.browser.driving import (
    DESK,
    PHONE,
    WINDOW,
    finish,
    link,
    text_of,
    wait_until,
    words,
)

from ssdlm.cli import main, parse
from ssdlm.cli.flags import given_options

JSON = "Content-Type: application/json"


def written(page):
    return text_of(page).removeprefix("the river")


def test_words_settle_and_the_text_is_announced_once(open_page, site):
    page = open_page(**DESK)
    page.locator("label:has(input[value=window])").click()
    assert page.locator("#T").input_value() == "15"  # 2.52 times the block of six
    page.locator("#T").fill("10")
    page.locator("#length").fill("10")
    page.locator("#prompt").fill("the river")
    page.evaluate(
        """() => {
            window.told = [];
            window.seen = new Set();
            const watch = (id, does) => new MutationObserver(does)
                .observe(document.getElementById(id), { childList: true, subtree: true });
            watch("spoken", () => told.push(document.getElementById("spoken").textContent));
            watch("main-text", () => seen.add(document.getElementById("main-text").innerText));
        }"""
    )
    page.locator("#prompt").press("Enter")
    finish(page)
    text = site.write("the river", length=10, seed=0, **WINDOW)
    assert written(page) == text
    assert page.evaluate("() => seen.size") > 3
    assert page.evaluate("() => told") == ["the river" + text]
    assert "10 tokens in 22 steps" in page.locator("#speed").inner_text()
    loud = page.locator("[aria-live=polite], [role=status], [role=alert]")
    ids = [one.get_attribute("id") for one in loud.all()]
    assert ids == ["error", "status", "talk-status", "spoken", "said"]
    assert page.locator("output:not([aria-live=off])").count() == 0  # those are live, too


def test_the_timeline_goes_back_and_forth_and_tells_candidates(open_page):
    page = open_page(link(), **DESK)
    finish(page)
    end = text_of(page)
    step = page.locator("#step")
    step.focus()
    page.keyboard.press("Home")
    caption = page.locator("#caption")
    assert caption.inner_text() == "step 1 of 20: 0 of 6 tokens decided"
    assert text_of(page) != end and not page.locator("#tools").is_visible()
    assert page.locator("#main-text .position.n9").count() > 3
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert caption.inner_text().startswith("step 5 of 20")
    box, place = page.locator("#candidates"), page.locator("#main-text .position").nth(2)
    place.hover()
    wait_until(box.is_visible)
    assert re.match(r"position 3: \d+ % noise", box.inner_text())
    shares = [
        float(share.strip("<% ")) for share in box.locator("li span:last-child").all_inner_texts()
    ]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)
    page.mouse.move(2, 2)
    wait_until(box.is_hidden)
    # The same by keyboard: one stop for Tab, arrows between positions.
    page.locator("#main-text .position[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert "position 2:" in box.inner_text()
    assert page.locator("#main-text .position[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    wait_until(box.is_hidden)
    place = page.locator("#map").bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + 40)
    assert 8 < int(re.findall(r"step (\d+) of", caption.inner_text())[0]) < 13
    page.locator("#play").click()
    wait_until(lambda: page.locator("#play").inner_text() == "Play")
    assert text_of(page) == end and page.locator("#tools").is_visible()
    words(page).last.hover()
    wait_until(box.is_visible)
    assert "decided at step" in box.inner_text()


@pytest.mark.parametrize("kind", [DESK, PHONE])
def test_what_one_types_takes_the_place_of_the_example(open_page, kind):
    page = open_page(**kind)
    if kind is PHONE:
        page.locator("#prompt").tap()
    page.keyboard.type("A day")
    assert page.locator("#prompt").input_value() == "A day"


def test_samples_stand_side_by_side_and_history_brings_texts_back(open_page, site):
    page = open_page(link(samples=3, path="left", T=6), **DESK)
    finish(page)
    options = {"length": 10, "grid": "sliding", "width": 1, "T": 6, "top_p": 0.9}
    texts = ["the river" + site.write("the river", seed=seed, **options) for seed in range(3)]
    assert page.locator("#choices .choice").all_inner_texts() == texts
    assert page.locator("#speed").inner_text().startswith("30 tokens in 30 steps")
    page.locator("#choices .choice").nth(1).click()
    assert text_of(page) == texts[1]
    page.locator("#samples").fill("1")
    page.locator("#another").click()
    wait_until(lambda: page.locator("#earlier li").count() == 2)
    assert page.locator("#seed").input_value() == "1"
    page.locator("#history summary").click()
    page.locator("#earlier button").last.click()
    assert text_of(page) == texts[0] and page.locator("#seed").input_value() == "0"
    page.locator("#undo").click()
    assert text_of(page) == texts[1]


def test_a_text_is_stopped_and_what_is_decided_stays(open_page):
    page = open_page(link(length=200, path="left", T=200), **DESK)
    wait_until(lambda: page.locator("#main-text .position").count() > 2)
    assert page.locator("#go").is_hidden()
    page.locator("#stop").click()
    assert page.locator("#status").inner_text() == "stopped"
    text = text_of(page)
    assert text.startswith("the river") and len(text) < 200
    page.wait_for_timeout(200)
    assert text_of(page) == text and page.locator("#tools").is_visible()


def test_the_speed_is_told_beside_autoregressive_and_on_the_cards(open_page):
    page = open_page(link(path="left", T=6), **DESK)
    cards = page.locator("#paths label")
    finish(page)
    assert ["best" in card for card in cards.all_inner_texts()] == [True, False, False]
    for card, steps in zip(
        cards.all_inner_texts(), ("1 step", "3.2 steps", "5 steps"), strict=True
    ):
        assert re.search(rf"{re.escape(steps)} a token, (about )?[\d.]+ s", card), card
    page.locator("#autoregressive").click()
    speed = page.locator("#speed")
    wait_until(
        lambda: re.search(r"[\d.]+ tokens/s; autoregressive [\d.]+ tokens/s", speed.inner_text())
    )
    assert page.locator("#autoregressive").is_hidden()


@pytest.mark.parametrize("path", ["left", pytest.param("all", marks=pytest.mark.nightly)])
def test_a_link_reproduces_everything(open_page, site, path):
    page = open_page(**DESK)
    page.locator(f"label:has(input[value={path}])").click()
    for name, value in {"T": "12", "length": "10", "top_p": "0.8", "temperature": "0.5"}.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#seed").fill("6")
    page.locator("#prompt").fill('a "river" & more')
    page.locator("#another").click()
    finish(page)
    before = text_of(page)
    grid = {"left": {"grid": "sliding", "width": 1.0}, "all": {"grid": "warped"}}[path]
    options = {"T": 12, "length": 10, "top_p": 0.8, "temperature": 0.5, "seed": 7} | grid
    assert before == 'a "river" & more' + site.write('a "river" & more', **options)
    page.reload()
    finish(page)
    assert text_of(page) == before
    assert page.locator("#seed").input_value() == "7"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompt", [pytest.param("the river", marks=pytest.mark.nightly), "-a 'b'"])
def test_the_text_can_be_written_elsewhere(open_page, site, capsys, prompt):
    """A model and guides from folders are opened from there, whatever the server calls them."""
    page = open_page(
        link(prompt=prompt, seed=5, must_not=["e", "-x"], **{"guide.mood": "sad:0.5"}),
        permissions=["clipboard-read", "clipboard-write"],
    )
    finish(page)
    text = text_of(page)

    def copied(way):
        page.locator(f"[data-copy={way}]").click()
        page.wait_for_selector("#said")
        return page.evaluate("() => navigator.clipboard.readText()")

    assert copied("text") == text
    assert copied("link") == page.url
    called = shlex.split(copied("command"))
    assert called[:2] == ["ssdlm", "generate"]
    asked = given_options(parse(called[1:]))
    expected = {"length": 10, "seed": 5, "must_not": ["e", "-x"]}
    assert asked == WINDOW | expected | {"control": [f"{site.folder}/mood=sad:5"]}
    assert main(called[1:]) == 0
    assert capsys.readouterr().out == f"{text}\n"
    exec(copied("python"), {})
    assert capsys.readouterr().out == f"{text}\n"
    curl = shlex.split(copied("curl"))
    assert curl[:5] == ["curl", "-s", f"{site.address}v1/completions", "-H", JSON]
    answer = site.ask("v1/completions", **json.loads(curl[curl.index("-d") + 1]))
    assert prompt + answer["choices"][0]["text"] == text


def test_the_settling_is_saved_as_a_picture_that_moves(open_page):
    page = open_page(link(prompt="<river> & more"))
    finish(page)
    with page.expect_download() as download:
        page.locator("#picture").click()
    root = ElementTree.parse(download.value.path()).getroot()
    frames = root.findall("svg:g", {"svg": "http://www.w3.org/2000/svg"})
    assert len(frames) == 20
    last = "".join(frames[-1].itertext())
    assert "".join(last.split()) == "".join(text_of(page).split())
    assert "".join(frames[0].itertext()) != last


def test_any_option_of_a_link_is_used_and_kept_or_named(open_page):
    page = open_page("?" + link(regex="[a-c ]{4,30}", never_end="false").removeprefix("#"))
    finish(page)
    assert re.fullmatch("[a-c ]{4,30}", written(page))
    assert page.locator("#regex").input_value() == "[a-c ]{4,30}"
    assert "never_end=false" in page.locator("#linked").inner_text()
    assert "?" not in page.url and "never_end=" in page.url.partition("#")[2]
    page.locator("#regex").fill("")
    page.evaluate(f"() => location.hash = {json.dumps(link(nonsense=1))}")
    wait_until(page.locator("#error").is_visible)
    assert "nonsense" in page.locator("#error").inner_text()
    odd = {"path": "zigzag", "top_p": "high", "length": 10_000, "T": 5, "guide.x": "y:1"}
    page.evaluate(f"() => location.hash = {json.dumps(link(**odd))}")
    wait_until(lambda: "zigzag" in page.locator("#linked").inner_text())
    said = page.locator("#linked").inner_text()
    assert "path=zigzag" in said and "top_p=high" in said and "guide x" in said
    assert re.search(r"length=10000 is out of range; \d+ is used", said)


def test_light_and_dark_are_remembered(open_page):
    def ground(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    page = open_page(color_scheme="dark")
    dark = ground(page)
    assert page.locator("#theme").inner_text() == "Theme: auto"
    page.locator("#theme").click()
    light = ground(page)
    assert light != dark
    page.reload()
    assert ground(page) == light
    page.locator("#theme").click()
    assert ground(page) == dark


@pytest.mark.nightly
def test_where_little_motion_is_wanted_few_drafts_are_shown(open_page):
    page = open_page(reduced_motion="reduce", **DESK)
    page.evaluate(
        """() => {
            window.shown = 0;
            new MutationObserver(() => shown++)
                .observe(document.getElementById("caption"), { childList: true });
        }"""
    )
    page.locator("label:has(input[value=all])").click()
    page.locator("#length").fill("10")
    page.locator("#go").click()
    finish(page)
    assert page.evaluate("() => shown") < int(page.locator("#step").get_attribute("max")) / 2


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_on_a_phone_nothing_is_cut_off_and_everything_can_be_hit(open_page, scheme):
    page = open_page(link(**{"guide.mood": "glad:1"}), color_scheme=scheme, **PHONE)
    finish(page)
    for summary in page.locator(".group > summary").all():
        if summary.is_visible() and summary.locator("..").get_attribute("open") is None:
            summary.tap()
    cut, small = page.evaluate(
        """() => {
            const seen = [...document.querySelectorAll(
                "button, summary, select, textarea, input, header a, #legend, .choice, .word",
            )].filter((one) => one.checkVisibility());
            const box = (one) => (one.closest("label") ?? one).getBoundingClientRect();
            const name = (one) => one.id || one.outerHTML.slice(0, 80);
            const isCut = (one) => box(one).left < 0 || box(one).right > 390.5;
            const isSmall = (one) => !one.matches("#legend, .word") && box(one).height < 39.9;
            return [seen.filter(isCut).map(name), seen.filter(isSmall).map(name)];
        }"""
    )
    assert (cut, small) == ([], [])
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.evaluate("() => scrollTo(0, 0)")
    steering = page.locator("#steering").bounding_box()
    assert steering["y"] + steering["height"] <= 844.5  # it stands beside the text it changes
    page.locator("#step").evaluate(
        "(one) => { one.value = 5; one.dispatchEvent(new Event('input')) }"
    )
    page.locator("#main-text .position").nth(3).tap()
    place = page.locator("#candidates").bounding_box()
    assert place["x"] >= 0 and place["x"] + place["width"] <= 390


def test_nothing_is_fetched_from_elsewhere_and_all_of_it_is_small(open_page, site):
    asked = []
    page = open_page(before=lambda page: page.on("response", lambda one: asked.append(one)))
    page.wait_for_selector("#guides .guide")
    assert len(asked) > 20
    assert all(one.url.startswith((site.address, "blob:")) for one in asked)
    own = [one for one in asked if "/page/" in one.url or one.url == site.address]
    assert 50_000 < sum(len(one.body()) for one in own) < 200_000
