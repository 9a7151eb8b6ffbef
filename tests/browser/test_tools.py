"""Calls of tools: cards, approvals, tools that the page runs, and what the server's death leaves of them."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.seen import answer, answers, card, say, until_idle
from browser.served import Server

DURATION = re.compile(r"^\d+ ms$|^\d+\.\d s$")


def test_a_card_shows_input_output_and_how_long_it_took(page: Page) -> None:
    say(page, "call server tool")
    expect(card(page)).to_have_attribute("data-state", "done")
    expect(card(page).locator(".title")).to_have_text("Get Weather")
    expect(card(page).locator(".time")).to_have_text(DURATION)
    head = card(page).locator(".tool-head")
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    expect(card(page).get_by_label("Input")).to_contain_text('"city": "Paris"')
    expect(card(page).get_by_label("Output")).to_contain_text('"tempC": 21')
    expect(answer(page)).to_have_text("Weather in Paris is 21C.")
    until_idle(page)
    page.reload()  # what the server has measured may come a moment after what this page has seen
    expect(card(page).locator(".time")).to_have_text(DURATION)


def test_an_approved_call_runs(tabs: Tabs, server: Server, name: str) -> None:
    page, other = tabs.open(), tabs.open(profile="another window")
    say(page, "need approval")
    for each in (page, other):
        expect(card(each)).to_have_attribute("data-state", "waiting")
        expect(card(each).locator(".chip")).to_have_text("needs your approval")
    page.reload()  # the question waits
    card(page).get_by_role("button", name="Approve").click()
    for each in (page, other):
        expect(card(each)).to_have_attribute("data-state", "done")
        expect(answer(each)).to_have_text("Deleted /tmp/x.")
        expect(each.locator(".message")).to_have_count(2)  # it goes on in the same message
        until_idle(each)
    assert server.http.post(f"/agents/page-agent/{name}/rpc/getStats").json()["result"] == {
        "model": 2,
        "deleteFile": 1,
    }


def test_a_denied_call_does_not_run(page: Page, server: Server, name: str) -> None:
    say(page, "need approval")
    card(page).get_by_role("button", name="Deny").click()
    expect(card(page)).to_have_attribute("data-state", "denied")
    expect(answer(page)).to_have_text("Okay, I will not delete it.")
    until_idle(page)
    stats = server.http.post(f"/agents/page-agent/{name}/rpc/getStats").json()["result"]
    assert "deleteFile" not in stats


def test_a_tool_of_the_browser_runs_in_the_browser(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open(agent="assistant", timezone_id="Pacific/Auckland", locale="mi-NZ")
    say(page, "What time is it in my browser?")
    expect(card(page)).to_have_attribute("data-state", "done")
    said = answers(page).last.locator(".markdown").last
    expect(said).to_contain_text("Pacific/Auckland")
    expect(said).to_contain_text("mi-NZ")
    until_idle(page)
    (call,) = [
        part
        for part in server.messages(name, "assistant")[-1]["parts"]
        if part["type"] == "tool-browser_time"
    ]
    assert (call["state"], call["output"]["timeZone"]) == ("output-available", "Pacific/Auckland")


def test_a_call_whose_server_died_is_unknown_and_says_so(tabs: Tabs, server: Server) -> None:
    tabs.is_killed = True
    page = tabs.open()
    say(page, "slow tool")
    expect(card(page)).to_have_attribute("data-state", "running")
    server.until(lambda: "running stamp" in page.inner_text("#line"), "the tool to run")
    page.get_by_role("button", name="Kill the server").click()
    expect(card(page)).to_have_attribute("data-state", "unknown")
    expect(card(page)).to_contain_text("It may or may not have taken effect")
    expect(answer(page)).to_have_text("Done.")
    until_idle(page)
    page.reload()
    expect(card(page)).to_have_attribute("data-state", "unknown")


def test_the_demo_counts_its_postcards(tabs: Tabs, server: Server) -> None:
    page = tabs.open(agent="assistant")
    for count in (1, 2):
        say(page, "Send a postcard.")
        expect(answers(page).nth(count - 1).locator(".tool")).to_have_attribute(
            "data-state", "done"
        )
        expect(answers(page).nth(count - 1)).to_contain_text(f"That makes {count} in")
        until_idle(page)
    sent = (server.folder / ".outlast" / "postcards.txt").read_text().splitlines()
    assert len(sent) == 2
