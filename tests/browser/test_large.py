"""Long conversations and large values: the page has what it needs, and fetches the rest."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.seen import answer, card, say, until_idle
from browser.served import Server

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOP = "document.querySelector('#m-{}').getBoundingClientRect().top"


def fill(server: Server, name: str, count: int, size: int = 60, step: int = 500) -> None:
    for start in range(0, count, step):
        arguments = {"args": [start, min(count, start + step), size]}
        found = server.http.post(f"/agents/page-agent/{name}/rpc/fill", json=arguments)
        assert found.status_code == 200


def shown(page: Page) -> list[str]:
    ids: list[str] = page.locator(".message").evaluate_all("all => all.map(each => each.id)")
    return [each.removeprefix("m-") for each in ids]


def load_earlier(page: Page) -> None:
    """Without scrolling to the button, which loads by itself."""
    before = page.locator(".message").count()
    page.get_by_role("button", name="Load earlier messages").dispatch_event("click")
    page.wait_for_function("n => document.querySelectorAll('.message').length > n", arg=before)


@pytest.fixture
def received(tabs: Tabs) -> Iterator[list[int]]:
    """The sizes of the frames that pages get from now on."""
    sizes: list[int] = []
    before = tabs.on_page
    tabs.on_page = lambda page: page.on(
        "websocket", lambda socket: socket.on("framereceived", lambda text: sizes.append(len(text)))
    )
    yield sizes
    tabs.on_page = before


def test_ten_thousand_messages_are_opened_with_a_few(
    tabs: Tabs, server: Server, name: str, received: list[int]
) -> None:
    fill(server, name, 10_000)
    page = tabs.open()
    expect(page.locator("#m-m9999")).to_be_in_viewport()
    assert shown(page) == [f"m{n}" for n in range(9940, 10_000)]
    assert sum(received) < 200_000
    assert not [url for url in tabs.requests if "get-messages" in url]
    at_first = len(received)
    say(page, "And now?")
    expect(answer(page)).to_have_text("You said: And now?")
    until_idle(page)
    assert sum(received[at_first:]) < 10_000, "the end of a turn says what has changed"


def test_earlier_messages_are_loaded_up_to_the_first_and_the_place_stays(
    tabs: Tabs, server: Server, name: str
) -> None:
    fill(server, name, 1150)
    page = tabs.open()
    expect(page.locator("#m-m1149")).to_be_in_viewport()
    first = shown(page)[0]
    page.evaluate("scroller.scrollTop = 600")
    for _ in range(3):
        top = page.evaluate(TOP.format(first))
        load_earlier(page)
        assert abs(page.evaluate(TOP.format(first)) - top) < 2
    say(page, "Meanwhile")
    expect(answer(page)).to_have_text("You said: Meanwhile")
    until_idle(page)
    page.evaluate("scroller.scrollTop -= 600")
    while page.get_by_role("button", name="Load earlier messages").is_visible():
        load_earlier(page)
    ids = shown(page)
    assert ids[:1150] == [f"m{n}" for n in range(1150)]
    assert len(ids) == len(set(ids)) == 1152


def test_scrolling_up_loads_earlier_messages(tabs: Tabs, server: Server, name: str) -> None:
    fill(server, name, 300)
    page = tabs.open()
    expect(page.locator("#m-m299")).to_be_in_viewport()
    page.locator("#scroller").hover()
    page.wait_for_function(
        """() => {
            scroller.scrollTop -= 400;
            return document.querySelector("#m-m0") !== null;
        }"""
    )
    assert shown(page) == [f"m{n}" for n in range(300)]
    expect(page.get_by_role("button", name="Load earlier messages")).to_be_hidden()


def test_a_lost_connection_keeps_what_was_loaded(tabs: Tabs, server: Server, name: str) -> None:
    tabs.is_killed = True
    fill(server, name, 1100)
    page = tabs.open()
    expect(page.locator("#m-m1099")).to_be_in_viewport()
    page.evaluate("scroller.scrollTop -= 600")
    for _ in range(11):
        load_earlier(page)
    assert len(shown(page)) == 1100
    with server.down():
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    other = tabs.open(profile="another window")
    say(other, "From elsewhere")
    until_idle(other)
    expect(answer(page)).to_have_text("You said: From elsewhere")
    ids = shown(page)
    assert ids[:1100] == [f"m{n}" for n in range(1100)]
    assert len(ids) == len(set(ids)) == 1102
    page.reload()
    expect(answer(page)).to_have_text("You said: From elsewhere")
    assert len(shown(page)) == 60


def test_earlier_messages_that_cannot_be_loaded_can_be_tried_again(
    tabs: Tabs, server: Server, name: str
) -> None:
    tabs.is_killed = True  # a request fails
    fill(server, name, 1030)
    page = tabs.open()
    page.route("**/get-messages?*", lambda route: route.abort())
    page.evaluate("scroller.scrollTop -= 600")
    while "m30" not in shown(page):
        load_earlier(page)
    page.get_by_role("button", name="Load earlier messages").dispatch_event("click")
    again = page.get_by_role("button", name="Earlier messages could not be loaded. Try again.")
    expect(again).to_be_visible()
    page.unroute("**/get-messages?*")
    again.click()
    expect(page.locator("#m-m0")).to_be_attached()


def test_a_message_far_above_is_found(tabs: Tabs, server: Server, name: str) -> None:
    fill(server, name, 1500)
    page = tabs.open()
    expect(page.locator("#title")).to_contain_text("number 0")  # not how the last ones begin
    page.fill("#search", "number 13 y")
    page.locator(".conversation", has=page.locator(".excerpt")).first.click()
    expect(page.locator("#m-m13")).to_be_in_viewport()


def test_a_large_output_is_shown_on_request(tabs: Tabs, server: Server) -> None:
    page = tabs.open()
    say(page, "fetch 9000000")
    expect(answer(page)).to_have_text("Fetched.")
    until_idle(page)
    for _ in range(2):
        card(page).locator(".tool-head").click()
        output = card(page).get_by_label("Output")
        expect(output).to_contain_text("ffff")
        expect(card(page)).to_contain_text("9.0 MB, not loaded")
        expect(card(page)).not_to_contain_text("outlast-reference")
        page.reload()
        expect(answer(page)).to_have_text("Fetched.")
    card(page).locator(".tool-head").click()
    with page.expect_download() as downloading:
        card(page).get_by_role("link", name="Download").click()
    path = downloading.value.path()
    assert os.path.getsize(path) > 9_000_000
    assert Path(path).read_text().endswith(' the end"}')
    card(page).get_by_role("button", name="Show").click()
    expect(output).to_contain_text("the first 200,000 of 9,0")
    expect(card(page).get_by_role("button", name="Show")).to_have_count(0)


def test_an_output_that_looks_like_a_reference_is_just_an_output(page: Page) -> None:
    urls = page.evaluate(
        """async () => {
            const { contentUrl } = await import("/_outlast/ui/references.js");
            const given = ["https://evil.example/chat/content/a/b", "//evil.example/chat/content/a/b",
                "/agents/x/y/chat/content/a/b", "/elsewhere", "", null, 3,
                "/agents/x/y/chat/content/a/b?token=1", "/agents/x/y/chat/content/../b/c/d"];
            return given.map(url => contentUrl("http://here/agents/me/n", "?t=1", url));
        }"""
    )
    ours = "http://here/agents/me/n/chat/content/a/b?t=1"
    assert urls == [None, None, ours, None, None, None, None, None, None]


def test_large_files_are_pictures_and_downloads(page: Page, server: Server) -> None:
    picture = PNG + b"\0" * 400_000  # what follows the end of a picture is not looked at
    page.set_input_files(
        "#picker",
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": picture},
            {"name": "data.bin", "mimeType": "application/octet-stream", "buffer": b"x" * 250_000},
        ],
    )
    say(page, "See?")
    until_idle(page)
    page.reload()
    image = page.locator(".message.user img")
    expect(image).to_have_attribute("src", re.compile(r"^http.*/chat/content/.*\?agent="))
    page.wait_for_function("document.querySelector('.message.user img').naturalWidth === 1")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="data.bin").click()
    assert Path(downloading.value.path()).read_bytes() == b"x" * 250_000
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit and send again").click()
    page.get_by_label("Your message").fill("And now?")
    page.get_by_role("button", name="Send again").click()
    expect(answer(page)).to_contain_text("And now?")
    until_idle(page)
    page.wait_for_function("document.querySelector('.message.user img').naturalWidth === 1")


def test_fifty_megabytes_can_be_opened_and_used(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open()
    say(page, "fetch 9000000")
    expect(answer(page)).to_have_text("Fetched.")
    until_idle(page)
    page.close()
    fill(server, name, 44, 950_000, step=4)
    page = tabs.open()
    expect(page.locator("#m-m43")).to_be_visible()
    say(page, "Still there?")
    expect(answer(page)).to_have_text("You said: Still there?")
    until_idle(page)
    page.evaluate("scroller.scrollTop -= 600")
    for _ in range(3):
        load_earlier(page)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
