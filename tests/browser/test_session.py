"""The session on the page: where a summary stands for messages, that one is being written, and the search."""

from __future__ import annotations

import re
from urllib.parse import quote

from playwright.sync_api import Page, expect

from browser.conftest import Tabs
from browser.seen import answer, say, until_idle
from browser.served import Server
from browser.test_looks import CONTRAST, NAMELESS

MARK = "The model sees a summary of the messages above"
HOSTILE = '**They** spoke of owls. <img src=x onerror="window.hacked=1">'


def call(server: Server, name: str, method: str, *arguments: object) -> object:
    path = f"/agents/session-agent/{name}/rpc/{method}"
    response = server.http.post(path, json={"args": list(arguments)})
    assert response.status_code == 200, response.text
    return response.json()["result"]


def talk(page: Page, *texts: str) -> None:
    for text in texts:
        say(page, text)
        expect(answer(page)).to_have_text(f"You said: {text}")
        until_idle(page)


def compact(server: Server, name: str, summary: str) -> object:
    call(server, name, "start_compaction")
    return call(server, name, "summarise", summary)


def order(page: Page) -> list[str]:
    """The texts in the list of messages, and the mark."""
    shown: list[str] = page.locator("#messages > *").evaluate_all(
        "all => all.map(each => each.matches('details') ? '—' : each.querySelector('.parts').innerText)"
    )
    return shown


def test_a_summary_is_marked_where_it_ends_and_unfolds(
    tabs: Tabs, server: Server, name: str
) -> None:
    page, other = tabs.open(agent="session-agent"), tabs.open(agent="session-agent", profile="b")
    talk(page, "Owls are silent.", "Herons are patient.", "Mice are quick.")
    expect(page.locator(".summarised")).to_have_count(0)
    assert compact(server, name, HOSTILE) is True
    for each in (page, other):  # at once, in every tab
        expect(each.locator(".summarised summary")).to_have_text(MARK)
    seen = order(page)
    assert seen.count("—") == 1
    assert seen[seen.index("—") + 1] == "Mice are quick.", (
        "the newest messages are shown as they are"
    )
    assert seen[0] == "Owls are silent.", "the originals stay"
    text = page.get_by_role("region", name="Summary")
    expect(text).to_be_hidden()
    page.locator(".summarised summary").press("Enter")
    expect(text).to_have_text('They spoke of owls. <img src=x onerror="window.hacked=1">')
    assert page.evaluate("window.hacked") is None
    assert page.locator("#messages img").count() == 0
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        assert page.evaluate(CONTRAST)["bad"] == []
    assert page.evaluate(NAMELESS) == []
    talk(page, "Elks are tall.")
    expect(text).to_be_visible()
    page.reload()
    expect(page.locator(".summarised summary")).to_have_text(MARK)
    assert compact(server, name, "They spoke of animals.") is True
    expect(page.locator(".summarised")).to_have_count(1)
    page.locator(".summarised summary").click()
    expect(text).to_have_text("They spoke of animals.")
    assert order(page)[order(page).index("—") + 1] == "Elks are tall."


def test_a_cleared_conversation_has_no_summary(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open(agent="session-agent")
    talk(page, "Owls are silent.", "Mice are quick.")
    compact(server, name, "Animals.")
    expect(page.locator(".summarised")).to_have_count(1)
    page.get_by_role("button", name="Delete this conversation").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#messages > *")).to_have_count(0)


def test_an_edit_before_the_summary_takes_its_mark_away_and_the_branch_has_it_still(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open(agent="session-agent")
    talk(page, "Owls are silent.", "Mice are quick.")
    compact(server, name, "Animals.")
    expect(page.locator(".summarised")).to_have_count(1)
    first = page.locator(".message.user").first
    first.hover()
    first.get_by_role("button", name="Edit and send again").click()
    page.get_by_role("textbox", name="Your message").fill("Owls are loud.")
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(answer(page)).to_have_text("You said: Owls are loud.")
    until_idle(page)
    expect(page.locator(".summarised")).to_have_count(0)
    page.get_by_role("button", name="Previous answer").click()
    expect(page.locator(".summarised")).to_have_count(1)


def test_that_a_summary_is_being_written_is_shown(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open(agent="session-agent")
    talk(page, "Owls are silent.", "Mice are quick.")
    call(server, name, "start_compaction")
    expect(page.locator("#tail")).to_have_text("Summarising…")
    assert call(server, name, "summarise", "Animals.") is True
    until_idle(page)
    talk(page, "Elks are tall.")
    call(server, name, "start_compaction")
    expect(page.locator("#tail")).to_have_text("Summarising…")
    assert call(server, name, "summarise", "") is False
    expect(page.get_by_role("alert")).to_have_text("The conversation could not be summarised.")
    until_idle(page)


# --- the search ----------------------------------------------------------------------------------


def hits(page: Page) -> list[str]:
    found = page.locator(".conversation .excerpt")
    expect(found.first).to_be_visible()
    return found.all_inner_texts()


def test_messages_are_found_by_their_words_and_marked(tabs: Tabs, name: str) -> None:
    page = tabs.open(agent="session-agent")
    talk(page, "🦉🦉 Owls were hunting mice.", "Herons are patient.")
    page.keyboard.press("Control+k")
    page.keyboard.type("hunt owl")
    marks = page.locator(".conversation .excerpt").first.locator("mark")
    expect(marks).to_have_text(["Owls", "hunting"])
    assert sorted(hits(page)) == sorted(
        ["🦉🦉 Owls were hunting mice.", "You said: 🦉🦉 Owls were hunting mice."]
    )
    page.fill("#search", '"were patient"')
    expect(page.locator("#conversations")).to_have_text('No results for “"were patient"”.')
    page.fill("#search", "patien")
    expect(page.locator(".conversation mark").first).to_have_text("patient")
    page.fill("#search", "<b>mice</b>")
    expect(page.locator("#conversations b")).to_have_count(0)


def test_a_summarised_message_far_above_is_found_and_scrolled_to(
    tabs: Tabs, server: Server, name: str
) -> None:
    for start in range(0, 1200, 400):
        call(server, name, "fill", start, start + 400, 20)
    compact(server, name, "Numbers.")
    page = tabs.open(agent="session-agent")
    expect(page.locator("#title")).to_contain_text("number 0")
    page.fill("#search", '"number 77"')
    expect(page.locator(".conversation mark").first).to_have_text("number 77")
    page.locator(".conversation", has=page.locator("mark")).first.click()
    expect(page.locator("#m-m77")).to_be_in_viewport()
    expect(page.locator("#m-m77")).to_be_focused()


def test_a_message_of_another_branch_is_found_and_it_is_said_why_it_is_not_shown(
    tabs: Tabs, name: str
) -> None:
    page = tabs.open(agent="session-agent")
    talk(page, "Okapis are shy.")
    first = page.locator(".message.user").first
    first.hover()
    first.get_by_role("button", name="Edit and send again").click()
    page.get_by_role("textbox", name="Your message").fill("Mice are quick.")
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(answer(page)).to_have_text("You said: Mice are quick.")
    until_idle(page)
    page.fill("#search", "okapis")
    page.locator(".conversation", has=page.locator(".excerpt")).first.click()
    expect(page.get_by_role("alert")).to_contain_text("not part of the shown branch")


def test_an_agent_without_a_session_is_not_asked_for_one(tabs: Tabs, name: str) -> None:
    page = tabs.open(agent="bare-agent")
    say(page, "Who are you?")
    expect(answer(page)).to_have_text("Bare indeed.")
    until_idle(page)
    with page.expect_response(re.compile("/_outlast/search")):  # the server is asked
        page.fill("#search", "indeed")
    expect(page.locator(".conversation mark").first).to_have_text("indeed")
    asked = [url for url in tabs.requests if re.search(r"bare-agent/[^/]+/(session|search)", url)]
    assert asked == []


# --- the inspector -------------------------------------------------------------------------------


def inspected(name: str, tab: str, more: str = "") -> str:
    return f"/inspect#agent={quote(f'SessionAgent/{name}', safe='')}&tab={quote(tab)}{more}"


def told(server: Server, name: str) -> None:
    """A conversation whose beginning is summarised."""
    for text in ("🦉 Owls were hunting.", "Herons are patient.", "Mice are quick."):
        path = f"/agents/session-agent/{name}/submissions"
        assert server.http.post(path, json={"messages": text}).status_code == 202
        answered = lambda: f"You said: {text}" in str(server.messages(name, "session-agent"))  # noqa: E731, B023
        server.until(answered, "the answer")
    assert compact(server, name, HOSTILE) is True


def test_the_inspector_shows_which_messages_the_model_sees_as_a_summary(
    tabs: Tabs, server: Server, name: str
) -> None:
    told(server, name)
    page = tabs.open(at=inspected(name, "messages"))
    rows = page.get_by_role("region", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(6)
    covered = rows.evaluate_all("all => all.map(each => each.matches('.is-summarised'))")
    assert covered == [False, False, True, True, True, True]
    link = page.get_by_role("link", name="summary 1")
    expect(link).to_have_count(1)
    link.click()
    expect(page.get_by_role("tab", selected=True)).to_have_text("Session")
    expect(page.get_by_label("Summary", exact=True)).to_have_text(HOSTILE)
    page.get_by_role("link", name="All of Summaries").click()
    for title in (
        "Frozen prompt",
        "Context blocks",
        "Summaries",
        "Tokens of answers",
        "Search index",
    ):
        expect(page.get_by_role("heading", name=re.compile(f"^{title}"))).to_be_visible()
    expect(page.get_by_role("region", name="Summaries")).to_contain_text("They")
    expect(page.get_by_role("region", name="Search index")).to_contain_text("english.1")
    expect(page.get_by_role("region", name="Tokens of answers").locator("tbody tr")).to_have_count(
        3
    )
    assert page.evaluate("window.hacked") is None
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        assert page.evaluate(CONTRAST)["bad"] == []


def test_the_inspector_searches_the_messages_of_an_agent(
    tabs: Tabs, server: Server, name: str
) -> None:
    told(server, name)
    page = tabs.open(at=inspected(name, "messages"))
    box = page.get_by_role("searchbox", name="Search the messages")
    box.fill("owl hunt")
    found = page.get_by_role("region", name="Found messages").locator("tbody tr")
    expect(found).to_have_count(2)
    expect(found.first.locator("mark")).to_have_text(["Owls", "hunting"])
    expect(box).to_be_focused()
    assert page.evaluate(NAMELESS) == []
    for scheme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
        assert page.evaluate(CONTRAST)["bad"] == []
    page.reload()  # the words are in the address
    expect(box).to_have_value("owl hunt")
    expect(found).to_have_count(2)
    box.fill("eagles")
    expect(page.get_by_role("tabpanel")).to_contain_text("No message matches “eagles”.")
    page.get_by_role("tab", name="Messages").click()
    expect(box).to_have_value("")
    expect(page.get_by_role("region", name="Messages").locator("tbody tr")).to_have_count(6)
    box.fill("patient")
    expect(found).to_have_count(2)
    found.get_by_role("link", name="its turn").first.click()
    expect(page.locator(".asked")).to_have_text("Herons are patient.")


def test_the_search_of_the_inspector_refuses_what_is_too_long(server: Server, name: str) -> None:
    told(server, name)
    given = {"agent": f"SessionAgent/{name}", "q": "x" * 1001}
    refused = server.http.get("/_outlast/inspect/search", params=given)
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "q must have at most 1,000 characters, got 1,001"},
    )
    assert server.http.get("/_outlast/inspect/search", params={"q": "x"}).status_code == 400
