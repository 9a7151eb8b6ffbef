"""The inspector: agents, a killed turn as a picture and in words, actions, and hostile text."""

from __future__ import annotations

import os
import re
import signal
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Tabs
from browser.seen import answer
from browser.served import Server
from browser.test_looks import CONTRAST, CONTROLS, NAMELESS


def asked(server: Server, name: str, text: str) -> str:
    """Ask for something, and do not wait for the answer. Returns the id of its turn."""
    path = f"/agents/page-agent/{quote(name, safe='')}/submissions"
    answered = server.http.post(path, json={"messages": text})
    assert answered.status_code == 202, answered.text
    id: str = answered.json()["id"]
    return id


def looked(server: Server, what: str, **query: Any) -> Any:
    return server.http.get(f"/_outlast/inspect/{what}", params=query).json()


def settled(server: Server, name: str, text: str) -> str:
    id = asked(server, name, text)
    server.until(lambda: looked(server, "turn", id=id)["turn"]["endedAt"], "its end")
    return id


def held(server: Server, name: str, chunks: int = 8) -> str:
    """A turn that waits in the middle."""
    id = asked(server, name, "say 20 words held after 10 words")
    server.until(lambda: looked(server, "turn", id=id)["chunks"] > chunks, "some words")
    return id


def at(name: str, turn: str | None = None, tab: str | None = None) -> str:
    address = quote(f"PageAgent/{quote(name, safe='')}", safe="")
    more = f"&turn={turn}" if turn else f"&tab={tab}" if tab else ""
    return f"/inspect#agent={address}{more}"


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr", has_text=text)


def test_agents_are_listed_and_the_list_is_live(tabs: Tabs, server: Server, name: str) -> None:
    id = held(server, name)
    settled(server, "somebody-else", "Hello!")
    chat = tabs.open(name=name)  # a socket
    page = tabs.open(at="/inspect")
    mine = page.get_by_role("region", name="Agents").locator("tr", has_text=name)
    for told in ("answering", "PageAgent"):
        expect(mine).to_contain_text(told)
    expect(mine.locator("td").nth(3)).to_have_text("1")
    chat.close()
    expect(mine.locator("td").nth(3)).to_have_text("0")
    page.get_by_label("Filter agents").fill("ELSE")
    expect(page.locator("#agents-list li")).to_have_count(1)
    page.get_by_label("Filter agents").fill("")
    mine.get_by_role("link").click()
    expect(page.locator(".facts")).to_contain_text("1 (1 open)")
    expect(row(page, "say 20 words")).to_contain_text("running")
    server.release(name)
    expect(row(page, "say 20 words")).to_contain_text("completed")
    page.get_by_role("link", name="say 20 words held after 10 words").click()
    expect(page).to_have_url(re.compile(rf"agent=PageAgent%2F{name}&turn={id}$"))
    page.reload()  # the address says where one is
    expect(page.locator(".moments")).to_contain_text("Completed after")
    page.get_by_role("link", name="Chat").click()
    expect(answer(page)).to_contain_text("w20")
    page.get_by_role("link", name="Inspector").click()
    expect(page.locator("#title")).to_have_text(f"PageAgent/{name}")


def test_a_killed_turn_shows_the_crash_and_the_decision(
    tabs: Tabs, server: Server, name: str
) -> None:
    tabs.is_killed = True
    page = tabs.open(at="/inspect")
    (worker,) = server.children()
    id = asked(server, name, "say 250 words every 12ms")
    page.evaluate("hash => { location.hash = hash }", at(name, id).partition("#")[2])
    server.until(lambda: looked(server, "turn", id=id)["chunks"] > 30, "some words")
    os.kill(worker, signal.SIGKILL)
    expect(page.locator(".sign.crash")).to_have_text(re.compile("crashed$"))
    expect(page.locator(".sign.decision")).to_contain_text("row 17: continue")
    expect(page.locator(".sign.settled")).to_have_count(1)
    expect(page.locator(".span.died")).to_contain_text("Attempt 1")
    expect(page.locator(".span.ok")).to_contain_text("Attempt 2")
    expect(page.locator(".span.nobody")).to_have_count(1)
    words = page.get_by_role("list", name="What happened").locator("li")
    kinds = words.evaluate_all("all => all.map(each => each.dataset.kind)")
    begins, ends = ["accepted", "claimed", "step", "said"], ["said", "settled"]
    assert kinds == [*begins, "interrupted", "decided", "continued", *ends]
    decided = page.locator("[data-kind=decided]")
    for told in ("row 17", "asked to continue where it stopped", "Why: "):
        expect(decided).to_contain_text(told)
    expect(page.get_by_role("img", name="1 step, 0 calls, 1 interruption.")).to_be_visible()
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    places = page.evaluate(
        """() => {
            const x = name => document.querySelector(name).getBoundingClientRect();
            const commits = [...document.querySelectorAll(".picture .commit")]
                .map(n => n.getBoundingClientRect().x);
            const crash = x(".sign.crash line").x, on = x(".span.ok rect").x;
            return { crash, on, decided: x(".sign.decision line").x,
                between: commits.filter(at => at > crash && at < on).length,
                before: commits.filter(at => at <= crash).length, count: commits.length };
        }"""
    )
    assert places["crash"] < places["decided"] == pytest.approx(places["on"], abs=2)
    assert places["between"] == 0, "while nobody worked on it, nothing was committed"
    assert 4 < places["before"] < places["count"], "each stands with its attempt"
    page.locator(".span.died").hover()
    expect(page.locator(".moments li.is-meant")).to_have_attribute("data-kind", "claimed")


def test_everything_that_is_stored_has_a_tab(tabs: Tabs, server: Server, name: str) -> None:
    settled(server, name, "call server tool")
    page = tabs.open(at=at(name))
    expect(row(page, "call server tool")).to_contain_text("completed")
    tab = page.get_by_role("tab", selected=True)
    expect(tab).to_have_text(re.compile("Inbox and turns"))
    tab.focus()
    wanted = {
        "Messages": "Weather in Paris is 21C.",
        "Submissions": "call server tool",
        "Incidents": "No turn is being recovered",
        "Fibers": "No fibers",
        "Schedules": "No schedules",
        "Ledger": '{"city":"Paris"}',
        "Stored bytes": "streams",
    }
    for label, told in wanted.items():
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", selected=True)).to_contain_text(label)
        expect(page.get_by_role("tab", selected=True)).to_be_focused()
        expect(page.get_by_role("tabpanel")).to_contain_text(told)


def test_raw_chunks_and_the_requests_to_the_model(tabs: Tabs, server: Server, name: str) -> None:
    id = settled(server, name, "call server tool")
    page = tabs.open(at=at(name, id))
    expect(page.locator(".span.tool")).to_contain_text("getWeather")
    page.locator("summary", has_text="Raw chunks").click()
    chunks = page.get_by_label("Raw chunks")
    expect(chunks).to_contain_text('0  attempt 1  {"type":"start"')
    expect(chunks).to_contain_text('"type":"tool-output-available"')
    page.locator("summary", has_text="Model requests").click()
    expect(page.locator(".request")).to_have_count(2)
    page.locator(".request summary").first.click()
    expect(page.get_by_label("Request 1")).to_contain_text("call server tool")
    with (
        page.expect_response(re.compile("/inspect/agents")),
        page.expect_response(re.compile("/inspect/turn")),
    ):
        pass  # the page looks again
    expect(page.get_by_label("Request 1")).to_be_visible()


def test_what_can_be_done_is_asked_first_and_told_after(
    tabs: Tabs, server: Server, name: str
) -> None:
    id = held(server, name)
    page = tabs.open(at=at(name, id))
    page.get_by_role("button", name="Cancel").click()
    sure = page.get_by_role("dialog", name="Cancel this turn?")
    sure.get_by_role("button", name="Do nothing").click()
    assert looked(server, "turn", id=id)["turn"]["endedAt"] is None
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(sure.get_by_role("button", name="Cancel it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_have_text("The turn was cancelled.")
    expect(page.locator(".question .chip").first).to_have_text("aborted")
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("button", name="Retry it").click()
    expect(page.locator("#results")).to_contain_text("The retry was accepted.")
    server.until(lambda: len(looked(server, "turns", agent=f"PageAgent/{name}")) == 2, "the retry")
    server.until(lambda: server.http.post(f"/agents/page-agent/{name}/chat/stop"), "its end")
    page.goto(f"{server.url}{at(name, tab='messages')}")
    page.reload()
    page.get_by_role("button", name="Fork the conversation at message 1").click()
    page.get_by_role("textbox", name="Name").fill(f"{name}-fork")
    page.get_by_role("button", name="Fork", exact=True).last.click()
    expect(page.locator("#results")).to_contain_text(f"{name}-fork has 1 message of")
    page.get_by_role("link", name="Open it").click()
    expect(page.locator("#title")).to_have_text(f"PageAgent/{name}-fork")
    expect(page.locator(".facts")).to_contain_text(re.compile("Messages1"))
    refused = looked(server, "agent", agent="PageAgent/nobody")
    page.goto(f"{server.url}{at('nobody')}")
    expect(page.locator("#view")).to_contain_text(refused["error"])
    tabs.complaints = [each for each in tabs.complaints if "404" not in each]


def test_what_is_stored_is_text_and_nothing_else(tabs: Tabs, server: Server, name: str) -> None:
    id = settled(server, name, 'hostile <script>window.hacked=2</script> " onload=window.hacked=3')
    page = tabs.open(at=at(name, id))
    page.locator("summary", has_text="Raw chunks").click()
    page.locator("summary", has_text="Model requests").click()
    expect(page.get_by_label("Raw chunks")).to_contain_text("<script>")
    expect(page.locator(".asked")).to_contain_text("<script>window.hacked=2</script>")
    bad = '<img src=x onerror="window.hacked=1">'
    last = looked(server, "messages", agent=f"PageAgent/{name}")[0]["id"]
    body = {"agent": f"PageAgent/{name}", "message": last, "name": bad}
    assert server.http.post("/_outlast/inspect/fork", json=body).status_code == 200
    page.goto(f"{server.url}{at(bad, tab='messages')}")
    expect(page.locator("#title")).to_have_text(f"PageAgent/{bad}")
    expect(page.get_by_role("tabpanel")).to_contain_text('<img src=x onerror="window.hacked = 2">')
    expect(page.locator("#sidebar")).to_contain_text(bad)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#view :is(img, script, iframe), #sidebar nav img").count() == 0


def test_it_can_be_read_and_reached_by_everybody(tabs: Tabs, server: Server, name: str) -> None:
    id = settled(server, name, "call server tool")
    page = tabs.open(at=at(name))
    for place in (at(name), "/inspect", at(name, id)):
        page.goto(f"{server.url}{place}")
        expect(page.locator("#view :is(table, .picture)").first).to_be_visible()
        for scheme in ("light", "dark"):
            page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
            found = page.evaluate(CONTRAST)
            assert found["bad"] == []
            assert found["count"] > 25
        assert page.evaluate(NAMELESS) == []
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.locator(".picture")).to_be_visible()
    page.evaluate(f"document.activeElement.blur(); window.wanted = new Set(({CONTROLS})())")
    missing: list[str] = []
    for _ in range(page.evaluate("wanted.size") + 10):
        page.keyboard.press("Tab")
        missing = page.evaluate(
            "() => { wanted.delete(document.activeElement); return [...wanted].map(n => n.outerHTML); }"
        )
        if not missing:
            break
    assert missing == []


def test_a_phone_shows_it_too(tabs: Tabs, server: Server, name: str) -> None:
    id = settled(server, name, "call server tool")
    settings: dict[str, Any] = {"viewport": {"width": 360, "height": 700}, "is_mobile": True}
    page = tabs.open(at=at(name, id), has_touch=True, **settings)
    for place in (at(name, id), "/inspect"):
        page.goto(f"{server.url}{place}")
        expect(page.locator("#view :is(.picture, table)").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        wide = page.evaluate(
            """() => [...document.querySelectorAll("main *")].filter(node => node.checkVisibility()
                && !node.closest(".scrolls, .table, .tabs, pre, .crumbs, .off-screen")
                && node.getBoundingClientRect().right > 361).map(node => node.outerHTML.slice(0, 200))"""
        )
        assert wide == []
    page.locator("#menu").tap()
    page.locator("#sidebar").get_by_role("link", name=name).tap()
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.get_by_role("tablist")).to_be_visible()


def test_the_link_with_the_token_lets_a_browser_in_and_the_address_forgets_it(
    tabs: Tabs, server: Server, name: str
) -> None:
    settled(server, name, "Hello!")
    tabs.is_killed = True  # the browser notes that it is refused
    page = tabs.open(at="/inspect", profile="a stranger", waits=False, has_token=False)
    expect(page.locator("#view")).to_contain_text("A token is required")
    expect(page.locator("#agents-list")).not_to_contain_text(name)
    chat = tabs.open(profile="a stranger", has_token=False)
    expect(chat.get_by_role("link", name="Inspector")).to_be_hidden()
    expect(chat.get_by_role("button", name="Kill the server")).to_be_hidden()
    page.goto(server.link.replace("/?", "/inspect?"))
    expect(page.locator("#agents-list")).to_contain_text(name)
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""
    chat.reload()
    expect(chat.get_by_role("link", name="Inspector")).to_be_visible()
    expect(chat.get_by_role("button", name="Kill the server")).to_be_visible()
