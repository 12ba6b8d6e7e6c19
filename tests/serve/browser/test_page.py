"""The page in a real browser: what one sees, what one can do, and that nothing breaks."""

import json
import re
import shlex
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from tests.serve.running import wait_for

from ssdlm.cli import main, parse
from ssdlm.cli.flags import given_options

WINDOW = {"grid": "staggered", "width": 8.0, "T": 20, "top_p": 0.9}
JSON = "Content-Type: application/json"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def link(**settings):
    usual = {"prompt": "the river", "path": "window", "length": 10, "T": 20}
    return "#" + urlencode(usual | settings, doseq=True)


def open_window(open_page, **kind):
    """Open the page as somebody new, and choose the moving window."""
    page = open_page(**kind)
    page.locator("label:has(input[value=window])").click()
    return page


def text_of(page, which="main"):
    """The text as it stands on the page, without its prompt."""
    return "".join(page.locator(f"#{which}-text .position").all_text_contents())


def wait_until(is_so):
    """Wait for something on a page; its policy forbids what Playwright would wait with."""
    wait_for(is_so, 90)


def finish(page):
    """Wait until a text is written."""
    status, error = page.locator("#status"), page.locator("#error")
    wait_until(lambda: "passes" in status.inner_text() or error.is_visible())
    assert not error.is_visible(), error.inner_text()


def test_words_are_typed_and_others_change_until_they_settle(open_page, site):
    page = open_window(open_page)
    assert page.locator("#T").input_value() == "63"
    page.locator("#T").fill("20")
    page.locator("#length").fill("10")
    page.locator("#prompt").fill("the river")
    page.locator("#prompt").press("Enter")
    seen = set()
    while "passes" not in page.locator("#status").inner_text():
        seen.add(text_of(page))
        page.wait_for_timeout(20)
    finish(page)
    assert len(seen) > 3
    assert page.locator("#main-text .position.n0").count() == 10
    assert text_of(page) == site.write("the river", length=10, seed=0, **WINDOW)
    assert page.locator("#status").inner_text().startswith("10 tokens in 42 passes")
    assert page.locator("#cost").inner_text().startswith("42 passes, 4.2 per token, about")


def test_blocks_are_announced_and_steps_are_not(open_page):
    page = open_window(open_page)
    page.evaluate(
        """() => {
            window.told = [];
            const region = document.getElementById("spoken");
            new MutationObserver(() => told.push(region.textContent))
                .observe(region, { childList: true });
        }"""
    )
    page.locator("#length").fill("20")
    page.locator("#T").fill("8")
    page.locator("#go").click()
    finish(page)
    told = page.evaluate("() => told")
    assert len(told) == 4  # blocks of six
    assert "".join(told) == text_of(page)
    loud = page.locator("[aria-live=polite], [role=status], [role=alert]")
    assert [one.get_attribute("id") for one in loud.all()] == ["status", "error", "spoken", "said"]
    assert page.locator("output:not([aria-live=off])").count() == 0  # those are live, too


def test_the_timeline_goes_back_and_forth(open_page):
    page = open_page(link())
    finish(page)
    end = text_of(page)
    step = page.locator("#step")
    step.focus()
    page.keyboard.press("Home")
    assert page.locator("#caption").inner_text().startswith("step 1 of 40: 2 passes, 0 of 6")
    first = text_of(page)
    assert first != end
    assert page.locator("#main-text .position.n9").count() > 3
    page.keyboard.press("ArrowRight")
    assert page.locator("#caption").inner_text().startswith("step 2 of 40")
    box = page.locator("#map").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
    page.mouse.up()
    half = int(re.findall(r"step (\d+) of", page.locator("#caption").inner_text())[0])
    assert 18 < half < 23
    page.keyboard.press("End")
    assert text_of(page) == end
    page.locator("#play").click()  # from the beginning, to the end
    assert not page.locator("#caption").inner_text().startswith("step 40")
    wait_until(lambda: page.locator("#play").inner_text() == "play")
    assert text_of(page) == end


def test_a_position_tells_its_candidates_at_that_step(open_page):
    page = open_page(link())
    finish(page)
    box, place = page.locator("#candidates"), page.locator("#main-text .position").nth(2)
    place.hover()
    wait_until(box.is_visible)
    assert "position 3: decided at step" in box.inner_text()
    late = box.inner_text()
    assert 1 <= box.locator("li").count() <= 5
    page.evaluate("() => document.getElementById('step').focus()")
    for _ in range(34):
        page.keyboard.press("ArrowLeft")
    place.hover()
    assert "position 3: noise level 0." in box.inner_text()
    assert box.locator("li").count() == 5
    shares = [
        float(share.strip("<% ")) for share in box.locator("li span:last-child").all_inner_texts()
    ]
    assert shares == sorted(shares, reverse=True)
    assert box.inner_text() != late
    page.mouse.move(2, 2)
    wait_until(box.is_hidden)
    # The same by keyboard: one stop for Tab, arrows between positions.
    page.locator("#main-text .position[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    assert "position 2:" in box.inner_text()
    assert page.locator("#main-text .position[aria-selected=true]").count() == 1
    assert page.locator("#main-text .position[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    wait_until(box.is_hidden)


def test_two_guides_steer_and_the_text_beside_it_is_not_steered(open_page, site):
    page = open_window(open_page)
    page.locator("#length").fill("10")
    page.locator("#T").fill("20")
    page.locator("#prompt").fill("the river")
    page.get_by_label("mood guide").focus()
    page.keyboard.press("End")
    page.get_by_label("kind guide").fill("1")
    page.get_by_label("kind: label to seek").select_option("neutral")
    page.locator("#compare").check()
    assert "mood" in page.locator(".guide").first.inner_text()
    with page.expect_request("**/v1/generate") as sent:
        page.locator("#go").click()
    assert sent.value.post_data_json["control"] == ["mood=glad:20", "kind=neutral:10"]
    finish(page)
    options = WINDOW | {"length": 10, "seed": 0}
    plain = site.write("the river", **options)
    steered = site.write("the river", control=["mood=glad:20", "kind=neutral:10"], **options)
    assert text_of(page, "plain") == plain
    assert text_of(page) == steered != plain
    said = page.locator(".meter b").all_inner_texts()
    assert len(said) == 2
    assert all(re.fullmatch(r"\w+ (< )?\d+ %, not steered (< )?\d+ %", words) for words in said)
    for line in page.locator(".meter polyline").all():  # of both texts, a point a step
        assert len((line.get_attribute("points") or "").split()) == 40


def test_words_and_a_gap(open_page, site):
    page = open_window(open_page)
    page.locator("#prompt").fill("the river")
    page.locator("#length").fill("10")
    page.locator("#T").fill("20")
    page.locator("#words summary").click()
    page.locator("#must").fill("hat")
    page.locator("#must").press("Enter")
    page.locator("#must_not").fill("e")
    page.locator("#must_not").press("Enter")
    page.locator("#must_not").fill("o")
    page.locator("#must_not").press("Enter")
    page.get_by_label("remove o").click()
    page.locator("#gap summary").click()
    page.locator("#suffix").fill(" was up.")
    page.locator("#go").click()
    finish(page)
    asked = {"must": ["hat"], "must_not": ["e"], "suffix": " was up."}
    assert text_of(page) == site.write("the river", length=10, seed=0, **WINDOW, **asked)
    assert "hat" in text_of(page).removesuffix(" was up.")
    given = "".join(page.locator("#main-text .position.given").all_text_contents())
    assert given == " was up."


def test_a_run_is_stopped(open_page):
    page = open_page(link(length=200, T=200))
    wait_until(lambda: page.locator("#main-text .position").count() > 0)
    assert page.locator("#go").is_hidden()
    page.locator("#stop").click()
    assert page.locator("#status").inner_text() == "stopped"
    count = page.locator("#step").get_attribute("max")
    page.wait_for_timeout(300)
    assert page.locator("#step").get_attribute("max") == count
    page.locator("#length").fill("5")
    page.locator("#T").fill("5")
    page.locator("#go").click()
    finish(page)
    assert len(text_of(page)) == 5


@pytest.mark.parametrize("path", ["left", "window", "all"])
def test_a_link_reproduces_everything(open_page, site, path):
    page = open_page()
    page.locator(f"label:has(input[value={path}])").click()
    page.locator("#T").fill("12")
    page.locator("#length").fill("10")
    page.locator("#top_p").fill("0.8")
    page.locator("#seed").fill("6")
    page.locator("#prompt").fill('a "river" & more')
    page.locator("#another").click()
    finish(page)
    before = text_of(page)
    grid = {"left": "sliding", "window": "staggered", "all": "warped"}[path]
    width = {"width": {"left": 1.0, "window": 8.0}[path]} if path != "all" else {}
    options = {"grid": grid, "T": 12, "length": 10, "top_p": 0.8, "seed": 7} | width
    assert before == site.write('a "river" & more', **options)
    page.reload()
    page.wait_for_selector(".guide")
    finish(page)
    assert text_of(page) == before
    assert page.locator("#seed").input_value() == "7"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompt", ["the river", "-a 'b'"])
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

    assert copied("link") == page.url
    words = shlex.split(copied("command"))
    assert words[:2] == ["ssdlm", "generate"]
    asked = given_options(parse(words[1:]))
    expected = {"length": 10, "seed": 5, "must_not": ["e", "-x"]}
    assert asked == WINDOW | expected | {"control": [f"{site.folder}/mood=sad:5"]}
    assert main(words[1:]) == 0
    assert capsys.readouterr().out == f"{prompt}{text}\n"
    exec(copied("python"), {})
    assert capsys.readouterr().out == f"{prompt}{text}\n"
    curl = shlex.split(copied("curl"))
    assert curl[:5] == ["curl", "-s", f"{site.address}v1/generate", "-H", JSON]
    assert site.write(**json.loads(curl[curl.index("-d") + 1])) == text


def test_the_denoising_is_saved_as_a_picture_that_moves(open_page):
    page = open_page(link(prompt="<river> & more"))
    finish(page)
    with page.expect_download() as download:
        page.locator("#picture").click()
    root = ElementTree.parse(download.value.path()).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    frames = root.findall("svg:g", space)
    assert len(frames) == 40
    assert "".join(frames[-1].itertext()).replace(" ", "") == (
        "<river> & more" + text_of(page)
    ).replace(" ", "").replace("\n", "")
    assert "".join(frames[0].itertext()) != "".join(frames[-1].itertext())


def test_at_the_width_of_a_phone_nothing_is_cut_off_and_a_tap_tells(open_page):
    page = open_page(link(), **PHONE)
    finish(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.locator("#main-text .position").nth(3).tap()
    box = page.locator("#candidates")
    wait_until(box.is_visible)
    place = box.bounding_box()
    assert place is not None
    assert place["x"] >= 0
    assert place["x"] + place["width"] <= 390


def test_light_and_dark(open_page):
    def ground(page):
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    page = open_page(color_scheme="dark")
    dark = ground(page)
    assert page.locator("#theme").inner_text() == "theme: auto"
    page.locator("#theme").click()
    light = ground(page)
    assert light != dark
    page.reload()
    assert ground(page) == light
    page.locator("#theme").click()
    assert ground(page) == dark
    assert ground(open_page(color_scheme="light")) == light


def test_where_little_motion_is_wanted_few_drafts_are_shown(open_page):
    page = open_window(open_page, reduced_motion="reduce")
    page.evaluate(
        """() => {
            window.shown = 0;
            const caption = document.getElementById("caption");
            new MutationObserver(() => shown++).observe(caption, { childList: true });
        }"""
    )
    page.locator("#length").fill("10")
    page.locator("#go").click()
    finish(page)
    steps = int(page.locator("#step").get_attribute("max") or 0)
    assert page.evaluate("() => shown") < steps / 4


def test_the_key_is_asked_for_and_kept_out_of_the_link(open_page):
    def guarded(page):
        def answer(route):
            if route.request.headers.get("authorization") == "Bearer secret-17":
                route.continue_()
            else:
                refusal = {"error": {"message": "this server needs a key"}}
                route.fulfill(status=401, json=refusal)

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
    page.wait_for_selector(".guide")
    finish(page)


def test_errors_are_words(open_page):
    page = open_page()
    page.locator("#words summary").click()
    page.locator("#must").fill("a word that is longer than the text")
    page.locator("#must").press("Enter")
    page.locator("#length").fill("5")
    page.locator("#go").click()
    error = page.locator("#error")
    wait_until(error.is_visible)
    assert "a word that is longer than the text" in error.inner_text()
    assert page.locator("#go").is_visible()
    refusal = {"error": {"message": "256 texts wait already"}}
    page.route(
        "**/v1/generate",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, json=refusal),
    )
    page.locator("#go").click()
    wait_until(lambda: "try again in 7 s" in error.inner_text())
    page.unroute("**/v1/generate")
    page.route("**/v1/generate", lambda route: route.abort())
    page.locator("#go").click()
    wait_until(lambda: "does not answer" in error.inner_text())


def test_a_busy_server_says_where_one_stands(open_page):
    page = open_page()
    told = 'event: queued\ndata: {"event": "queued", "position": 3}\n\n'
    body = told + 'event: error\ndata: {"event": "error", "message": "shutting down"}\n\n'
    page.evaluate(
        """() => {
            window.told = [];
            const status = document.getElementById("status");
            new MutationObserver(() => told.push(status.textContent))
                .observe(status, { childList: true });
        }"""
    )
    page.route(
        "**/v1/generate",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )
    page.locator("#go").click()
    wait_until(lambda: page.locator("#error").is_visible())
    assert page.locator("#error").inner_text() == "shutting down"
    assert "waiting: 3 before you" in page.evaluate("() => told")


def test_nothing_is_fetched_from_elsewhere(open_page, site):
    asked = []
    page = open_page(before=lambda page: page.on("request", lambda one: asked.append(one.url)))
    page.wait_for_selector(".guide")
    page.locator("#T").fill("5")
    page.locator("#go").click()
    finish(page)
    assert len(asked) > 10
    assert all(url.startswith((site.address, "blob:")) for url in asked)


def test_the_page_opens_on_the_path_that_writes_best_and_cards_say_what_paths_cost(open_page, site):
    page = open_page()
    assert page.locator("input[value=left]").is_checked()
    cards = page.locator("#paths label").all_inner_texts()
    assert ["best" in card for card in cards] == [True, False, False]
    assert ["worse" in card or "worst" in card for card in cards] == [False, True, True]
    assert [re.findall(r"([\d.]+) pass", card) for card in cards] == [["1"], ["2.6"], ["4"]]
    page.locator("#prompt").fill("the river")
    page.locator("#length").fill("10")
    with page.expect_request("**/v1/generate") as sent:
        page.locator("#go").click()
    asked = sent.value.post_data_json
    assert (asked["grid"], asked["width"], asked["T"]) == ("sliding", 1, 25)
    finish(page)


def test_any_option_of_a_link_is_used_and_kept_or_named(open_page, site):
    page = open_page(link(regex="[a-c ]{4,30}", never_end="false"))
    finish(page)
    assert re.fullmatch("[a-c ]{4,30}", text_of(page))
    assert "regex=[a-c ]{4,30}" in page.locator("#linked").inner_text()
    assert "regex=" in page.url
    page = open_page(link(nonsense=1))
    wait_until(page.locator("#error").is_visible)
    assert "nonsense" in page.locator("#error").inner_text()
    page = open_page(link(path="zigzag", top_p="high", length=10_000, T=5, **{"guide.x": "y:1"}))
    said = page.locator("#linked").inner_text()
    assert "path=zigzag" in said and "top_p=high" in said and "guide x" in said
    assert re.search(r"length=10000 is out of range; \d+ is used", said)


def test_a_link_may_have_its_settings_after_a_question_mark(open_page):
    page = open_page("?" + link(regex="[a-c ]{4,30}", never_end="false", seed=3).removeprefix("#"))
    finish(page)
    assert re.fullmatch("[a-c ]{4,30}", text_of(page))
    assert "?" not in page.url and "seed=3" in page.url.partition("#")[2]
    page = open_page("?prompt=ignored" + link(seed=4))
    finish(page)
    assert page.locator("#prompt").input_value() == "the river"
    assert page.locator("#seed").input_value() == "4"


def test_the_token_that_ends_a_text_is_not_counted(open_page):
    page = open_page(link(path="left", regex="ab?", never_end="false"))
    finish(page)
    count = len(text_of(page))
    assert page.locator("#status").inner_text().startswith(f"{count} tokens in")
    assert page.locator("#caption").inner_text().endswith(f"{count} of {count} decided")


def test_the_text_itself_is_copied(open_page):
    page = open_page(link(), permissions=["clipboard-read", "clipboard-write"])
    finish(page)
    page.get_by_role("button", name="copy text").click()
    page.wait_for_selector("#said")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == "the river" + text_of(page)


def test_on_a_phone_the_legend_is_shown_and_no_triangle_is_cut_off(open_page):
    page = open_page(link(), **PHONE)
    finish(page)
    legend = page.locator("#legend")
    assert legend.is_visible()
    box = legend.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    markers = page.evaluate(
        """() => [...document.querySelectorAll("summary")]
            .filter((one) => one.checkVisibility())
            .map((one) => getComputedStyle(one).listStylePosition)"""
    )
    assert len(markers) >= 3 and set(markers) == {"inside"}


def test_a_causal_language_model_has_no_controls_that_it_refuses(open_page, causal_site):
    page = open_page(where=causal_site)
    for hidden in ("label:has(input[value=window])", "#T", "#must", "#gap"):
        assert not page.locator(hidden).is_visible(), hidden
    assert "An adapter lets it do more" in page.locator("#single").inner_text()
    page.locator("#words summary").click()
    assert page.locator("#must_not").is_visible()
    page.locator("#length").fill("10")
    page.locator("#prompt").fill("the river")
    page.locator("#prompt").press("Enter")
    finish(page)
    options = {"length": 10, "seed": 0, "grid": "sliding", "width": 1.0, "top_p": 0.9}
    assert text_of(page) == causal_site.write("the river", **options)
    other = open_page(link(must="dog", suffix=" ran"), where=causal_site)
    finish(other)
    assert "path=window is not known here" in other.locator("#linked").inner_text()
    assert "must=dog is not known here" in other.locator("#linked").inner_text()
