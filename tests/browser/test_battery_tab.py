"""The tab of a battery in the inspector: table, row, links, and what is new while one looks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.served import TESTS, Server, running
from browser.test_looks import CONTRAST, NAMELESS

APP = TESTS.parent / "examples" / "vector_notes" / "app.py"
HOSTILE = '<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example of a battery, as `outlast dev` serves it."""
    folder = tmp_path_factory.mktemp("served")
    command = ["dev", str(APP), "--store", f"sqlite:///{folder}/store.db", "--no-reload"]
    with running(folder, *command) as started:
        yield started


def keep(server: Server, name: str, text: str) -> None:
    """Have the agent remember something, and wait until it has."""
    path = f"/agents/assistant/{name}"
    answered = server.http.post(f"{path}/submissions", json={"messages": f"remember {text}"})
    assert answered.status_code == 202, answered.text
    kept = lambda: text in [note["text"] for note in server.http.get(f"{path}/notes").json()]  # noqa: E731
    server.until(kept, "the note")


def at(name: str, more: str = "") -> str:
    return f"/inspect#agent={quote(f'Assistant/{name}', safe='')}&tab=battery%3Anotes{more}"


def rows(page: Page) -> Any:
    return page.get_by_role("region", name="Notes").locator("tbody tr")


def test_the_tab_is_a_table_and_what_is_new_comes_by_itself(
    tabs: Tabs, server: Server, name: str
) -> None:
    keep(server, name, "Owls fly at night.")
    page = tabs.open(at=at(name).partition("&tab")[0])
    page.get_by_role("tab", name="Notes").click()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Notes")
    expect(rows(page)).to_have_count(1)
    for told in ("Owls fly at night.", "its turn", "256 B"):
        expect(rows(page).first).to_contain_text(told)
    keep(server, name, "Mice do not.")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text("Mice do not.")
    page.reload()  # the address says where one is
    expect(rows(page)).to_have_count(2)
    expect(page.get_by_role("tab", selected=True)).to_be_in_viewport()


def test_a_row_leads_to_its_details_and_to_its_turn(tabs: Tabs, server: Server, name: str) -> None:
    keep(server, name, "Owls fly at night. " * 40)
    page = tabs.open(at=at(name))
    rows(page).first.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"tab=battery%3Anotes&view=Notes&row=note_\w+$"))
    expect(page.get_by_label("Text", exact=True)).to_have_text("Owls fly at night. " * 40)
    expect(page.get_by_label("Vector")).to_contain_text("256 bytes: ")
    page.get_by_role("link", name="All of Notes").click()
    expect(rows(page)).to_have_count(1)
    rows(page).first.get_by_role("link", name="its turn").click()
    expect(page.locator(".moments")).to_contain_text("remember_note")
    page.go_back()
    expect(rows(page)).to_have_count(1)


def test_an_agent_without_notes_says_so_and_a_wrong_row_is_told(
    tabs: Tabs, server: Server, name: str
) -> None:
    server.http.post(f"/agents/assistant/{name}/submissions", json={"messages": "Hello"})
    page = tabs.open(at=at(name))
    expect(page.get_by_role("tabpanel")).to_contain_text("It has kept no notes.")
    tabs.is_killed = True  # the browser notes that there is no such row
    page.goto(f"{server.url}{at(name, '&view=Notes&row=none')}")
    expect(page.locator("#view")).to_contain_text("has no row 'none' in 'Notes'")


def test_what_is_kept_is_text_and_can_be_read_by_everybody(
    tabs: Tabs, server: Server, name: str
) -> None:
    keep(server, name, HOSTILE)
    page = tabs.open(at=at(name))
    expect(rows(page).first).to_contain_text(HOSTILE)
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = {json.dumps(scheme)}")
        assert page.evaluate(CONTRAST)["bad"] == []
    assert page.evaluate(NAMELESS) == []
    rows(page).first.get_by_role("link").first.click()
    expect(page.get_by_label("Text", exact=True)).to_have_text(HOSTILE)
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = {json.dumps(scheme)}")
        assert page.evaluate(CONTRAST)["bad"] == []
    assert page.evaluate("window.hacked") is None
    assert page.locator("#view :is(img, script, iframe)").count() == 0
