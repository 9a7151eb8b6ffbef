"""What is said while no server hears it is sent later, once, also by another tab."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from browser.conftest import Tabs
from browser.seen import answer, answers, card, say, until_idle, words
from browser.served import Server
from browser.test_looks import CONTRAST, NAMELESS

NOT_SENT = "Not sent yet. It will be sent when the server is back."
REQUEST = "cf_agent_use_chat_request"


@pytest.fixture(autouse=True)
def _killed(tabs: Tabs) -> None:
    tabs.is_killed = True


def until_lost(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")


def until_stored(page: Page, count: int) -> None:
    """Until the browser has stored so many things that have to be sent."""
    page.wait_for_function(
        """async count => {
            const { records } = await import("/_outlast/ui/outbox.js");
            return (await records.all())?.length === count;
        }""",
        arg=count,
    )


def said(server: Server, name: str) -> list[str]:
    """What users have said, as the server has stored it."""
    messages = server.messages(name)
    return [each["parts"][-1]["text"] for each in messages if each["role"] == "user"]


def requests(page: Page) -> list[str]:
    """The ids of the requests that a page sends from now on."""
    sent: list[str] = []

    def note(text: str | bytes) -> None:
        frame = json.loads(text)
        if frame["type"] == REQUEST:
            sent.append(frame["id"])

    page.on("websocket", lambda socket: socket.on("framesent", note))
    return sent


def intercept(tabs: Tabs, change: Callable[[WebSocketRoute, WebSocketRoute, Any], Any]) -> Page:
    """A page whose frames to the server go through `change(page, server, frame)`, which sends them."""
    page = tabs.open(at="/_outlast/ui/icon.svg", waits=False)

    def route(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        socket.on_message(lambda text: change(socket, server, json.loads(text)))

    page.route_web_socket("**/agents/**", route)
    page.goto(f"{tabs._server.url}/?agent=page-agent#{tabs._name}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    return page


def test_a_message_says_that_it_is_not_sent_yet(tabs: Tabs, server: Server) -> None:
    page = tabs.open()
    with server.down():
        until_lost(page)
        say(page, "Are you there?")
        message = page.locator(".message.user")
        expect(message).to_contain_text("Are you there?")
        expect(message).to_contain_text(NOT_SENT)
        expect(page.locator("#tail")).to_be_empty()
        expect(page.locator("#stop")).to_be_hidden()  # there is nothing to stop
    expect(answer(page)).to_have_text("You said: Are you there?")
    until_idle(page)
    expect(message).not_to_contain_text(NOT_SENT)
    expect(page.locator(".message")).to_have_count(2)


def test_messages_of_a_closed_tab_are_sent_once_and_in_order_by_the_next(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open()
    with server.down():
        until_lost(page)
        for text in ("one", "two", "three"):
            say(page, text)
        until_stored(page, 3)
        page.close()
    later, other = tabs.open(waits=False), tabs.open(waits=False)
    for each in (later, other):
        expect(answers(each)).to_have_count(3)
        until_idle(each)
        expect(each.locator(".message")).to_have_count(6)
    assert said(server, name) == ["one", "two", "three"]
    until_stored(later, 0)


def test_only_one_of_two_tabs_sends_it(tabs: Tabs, server: Server) -> None:
    page, other = tabs.open(), tabs.open()
    sent = requests(other)
    later = tabs.open(at="/_outlast/ui/icon.svg", waits=False)
    sent_later = requests(later)
    with server.down():
        for each in (page, other):
            until_lost(each)
        say(page, "Once")
        until_stored(page, 1)
        page.close()
    later.goto(other.url)
    for each in (other, later):
        expect(answer(each)).to_have_text("You said: Once")
        until_idle(each)
    assert len([*sent, *sent_later]) == 1


def test_a_message_waits_for_its_conversation_while_another_is_on_the_screen(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open()
    with server.down():
        until_lost(page)
        say(page, "For the first")
        page.get_by_role("button", name="New conversation").click()
        say(page, "For the second")
        expect(page.locator(".message")).to_have_count(1)
        second = page.evaluate("location.hash.slice(1)")
    for conversation, text in ((name, "For the first"), (second, "For the second")):
        server.until(lambda n=conversation: len(server.messages(n)) == 2, "both answers")
        assert said(server, conversation) == [text]
    expect(answer(page)).to_have_text("You said: For the second")
    page.locator(".conversation", has_text="For the first").click()
    expect(answer(page)).to_have_text("You said: For the first")
    expect(page.locator(".message")).to_have_count(2)


def test_a_tab_of_another_conversation_sends_what_a_closed_one_has_left(
    tabs: Tabs, server: Server, name: str
) -> None:
    page, other = tabs.open(), tabs.open(name="somewhere-else")
    with server.down():
        until_lost(page)
        until_lost(other)
        say(page, "Left behind")
        until_stored(page, 1)
        page.close()
    server.until(lambda: len(server.messages(name)) == 2, "the answer")
    assert said(server, name) == ["Left behind"]
    until_stored(other, 0)
    expect(other.locator(".message")).to_have_count(0)


def test_each_tab_sends_what_was_said_there(tabs: Tabs, server: Server, name: str) -> None:
    pages = [tabs.open(), tabs.open(), tabs.open(profile="another browser")]
    with server.down():
        for number, page in enumerate(pages):
            until_lost(page)
            say(page, f"From tab {number}")
    for page in pages:
        expect(answers(page)).to_have_count(3)
        until_idle(page)
        expect(page.locator(".message")).to_have_count(6)
    assert sorted(said(server, name)) == ["From tab 0", "From tab 1", "From tab 2"]


def test_an_edited_message_waits_too(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open()
    say(page, "Speling.")
    expect(answer(page)).to_have_text("You said: Speling.")
    until_idle(page)
    with server.down():
        until_lost(page)
        page.locator(".message.user").hover()
        page.get_by_role("button", name="Edit and send again").click()
        page.get_by_label("Your message").fill("Spelling.")
        page.get_by_role("button", name="Send again").click()
        expect(page.locator(".message")).to_have_count(1)
        expect(page.locator(".message.user")).to_contain_text(f"Spelling. {NOT_SENT}")
        until_stored(page, 1)
        page.close()
    page = tabs.open(waits=False)
    expect(answer(page)).to_have_text("You said: Spelling.")
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)
    assert said(server, name) == ["Spelling."]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_waits_can_be_read(tabs: Tabs, server: Server, scheme: Any) -> None:
    page = tabs.open(color_scheme=scheme)
    say(page, "need approval")
    expect(card(page)).to_have_attribute("data-state", "waiting")
    until_idle(page)
    with server.down():
        until_lost(page)
        card(page).get_by_role("button", name="Deny").click()
        say(page, "And this")
        expect(page.locator(".message.user").last).to_contain_text(NOT_SENT)
        assert page.evaluate(CONTRAST)["bad"] == []
        assert page.evaluate(NAMELESS) == []
    expect(answers(page)).to_have_count(2)
    until_idle(page)


def test_a_reload_before_the_answer_begins_still_waits_for_it(page: Page) -> None:
    say(page, "wait 1500ms say 5 words")
    expect(page.locator("#stop")).to_be_visible()
    page.reload()
    expect(page.locator("#stop")).to_be_visible()
    expect(answer(page)).to_have_text(words(5))
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)


@pytest.mark.parametrize("arrives", [False, True], ids=["lost", "accepted"])
def test_a_message_on_a_connection_that_dies_is_sent_again_and_counts_once(
    tabs: Tabs, server: Server, name: str, arrives: bool
) -> None:
    died: list[str] = []

    def change(page: WebSocketRoute, to: WebSocketRoute, frame: Any) -> None:
        if frame["type"] == REQUEST and not died:
            died.append(frame["id"])
            to.on_message(lambda _: None)  # nothing comes back
            if arrives:
                to.send(json.dumps(frame))
            else:
                page.close(code=1012)
        elif not died or frame["type"] != "rpc":
            to.send(json.dumps(frame))

    page = intercept(tabs, change)
    say(page, "Hello?")
    if arrives:
        server.until(lambda: len(server.messages(name)) == 2, "the answer")
        page.reload()
    expect(answer(page)).to_have_text("You said: Hello?")
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)
    assert said(server, name) == ["Hello?"]
    until_stored(page, 0)


def test_a_message_that_may_have_arrived_says_so(tabs: Tabs, server: Server, name: str) -> None:
    page = intercept(
        tabs, lambda page, to, frame: to.send(json.dumps(frame)) if frame["type"] != REQUEST else 0
    )
    say(page, "Hello?")
    message = page.locator(".message.user")
    expect(message).to_be_visible()
    with server.down():
        until_lost(page)
        expect(message).to_contain_text("Not confirmed yet. It will be sent again")
        expect(message.get_by_role("button", name="Edit")).to_have_count(0)
        page.close()
    later = tabs.open(waits=False)
    expect(answer(later)).to_have_text("You said: Hello?")
    until_idle(later)
    assert said(server, name) == ["Hello?"]


def test_a_killed_server_that_had_accepted_it_answers_once(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open()
    say(page, "wait 1500ms say 20 words")
    server.until(lambda: server.messages(name), "the message")
    with server.down():
        until_lost(page)
        expect(page.locator("#tail")).to_contain_text("it continues when the server is back")
        expect(page.locator(".message.user")).not_to_contain_text("Not ")
    expect(answer(page)).to_have_text(words(20))
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)


def test_a_refused_message_stays_with_the_reason_and_can_be_sent_again(
    tabs: Tabs, server: Server, name: str
) -> None:
    refused: list[str] = []

    def change(page: WebSocketRoute, to: WebSocketRoute, frame: Any) -> None:
        if frame["type"] == REQUEST and len(refused) < 2:
            refused.append(frame["id"])
            error = {"body": "Too many messages wait.", "done": True, "error": True}
            kind = "cf_agent_use_chat_response"
            page.send(json.dumps({"type": kind, "id": frame["id"], **error}))
        else:
            to.send(json.dumps(frame))

    page = intercept(tabs, change)
    say(page, "Take this.")
    message = page.locator(".message.user")
    expect(message.get_by_role("alert")).to_contain_text("Not sent. Too many messages wait.")
    expect(page.locator("#stop")).to_be_hidden()
    message.get_by_role("button", name="Try again").click()
    while len(refused) < 2:
        page.wait_for_timeout(10)
    page.wait_for_function(
        """async id => {
            const { records } = await import("/_outlast/ui/outbox.js");
            return (await records.all()).some(each => each.id === id && each.refusal);
        }""",
        arg=refused[1],
    )
    page.reload()  # it is not lost, and not sent by itself
    expect(message.get_by_role("alert")).to_contain_text("Not sent. Too many messages wait.")
    page.fill("#area", "And this.")
    message.get_by_role("button", name="Edit").click()
    expect(page.locator("#area")).to_have_value("Take this.\n\nAnd this.")
    expect(page.locator(".message")).to_have_count(0)
    page.press("#area", "Enter")
    expect(answer(page)).to_contain_text("And this.")
    assert said(server, name) == ["Take this.\n\nAnd this."]


def test_a_message_that_was_refused_is_answered_when_it_is_tried_again(
    tabs: Tabs, server: Server, name: str
) -> None:
    refused: list[Any] = []

    def change(page: WebSocketRoute, to: WebSocketRoute, frame: Any) -> None:
        if frame["type"] == REQUEST and not refused:
            refused.append(frame)
            error = {"body": "No.", "done": True, "error": True}
            kind = "cf_agent_use_chat_response"
            page.send(json.dumps({"type": kind, "id": frame["id"], **error}))
        else:
            to.send(json.dumps(frame))

    page = intercept(tabs, change)
    say(page, "Take this.")
    page.locator(".message.user").get_by_role("button", name="Try again").click()
    expect(answer(page)).to_have_text("You said: Take this.")
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)
    assert said(server, name) == ["Take this."]


def test_a_text_that_is_too_large_stays_in_the_message_field(page: Page) -> None:
    text = "a" * 1_100_000
    page.fill("#area", text)
    page.press("#area", "Enter")
    expect(page.get_by_role("alert")).to_contain_text("This message is too large")
    expect(page.locator(".message")).to_have_count(0)
    assert page.input_value("#area") == text
    page.fill("#area", text[:900_000])
    page.press("#area", "Enter")
    expect(answer(page)).to_contain_text("You said: aaa")
    expect(page.locator("#area")).to_have_value("")


BROKEN = {
    "forbidden": """Object.defineProperty(window, "indexedDB", {
        get() { throw new DOMException("no", "SecurityError"); }
    })""",
    "missing": """Object.defineProperty(window, "indexedDB", { value: undefined })""",
    "silent": "IDBFactory.prototype.open = () => ({})",
    "full": """IDBObjectStore.prototype.put = function () {
        this.transaction.abort();
    }""",
}


@pytest.mark.parametrize("how", BROKEN)
def test_without_storage_the_tab_remembers_it(
    tabs: Tabs, server: Server, name: str, how: str
) -> None:
    page = tabs.open(at="/_outlast/ui/icon.svg", waits=False)
    page.add_init_script(BROKEN[how])
    page.goto(f"{server.url}/?agent=page-agent#{name}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    say(page, "First")
    expect(answer(page)).to_have_text("You said: First")
    with server.down():
        until_lost(page)
        say(page, "Second")
        expect(page.locator(".message.user").last).to_contain_text(f"{NOT_SENT} Keep this tab open")
        page.get_by_role("button", name="New conversation").click()
    server.until(lambda: len(server.messages(name)) == 4, "the answer")
    assert said(server, name) == ["First", "Second"]


def test_without_locks_every_tab_may_send_it_and_it_counts_once(
    tabs: Tabs, server: Server, name: str
) -> None:
    """As on a page that is served over plain HTTP under a name."""
    without = "Object.defineProperty(navigator, 'locks', { value: undefined })"
    tabs.on_page = lambda page: page.add_init_script(without)
    page, other = tabs.open(), tabs.open()
    with server.down():
        until_lost(page)
        until_lost(other)
        say(page, "Once")
        until_stored(page, 1)
    later = tabs.open()
    for each in (page, other, later):
        expect(answer(each)).to_have_text("You said: Once")
        until_idle(each)
        expect(each.locator(".message")).to_have_count(2)
    assert said(server, name) == ["Once"]
    until_stored(later, 0)


def test_a_waiting_message_can_be_taken_back(tabs: Tabs, server: Server, name: str) -> None:
    page = tabs.open()
    with server.down():
        until_lost(page)
        say(page, "Not so fast")
        page.locator(".message.user").get_by_role("button", name="Edit").click()
        expect(page.locator("#area")).to_have_value("Not so fast")
        expect(page.locator(".message")).to_have_count(0)
        until_stored(page, 0)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    say(page, "Faster")
    expect(answer(page)).to_have_text("You said: Faster")
    assert said(server, name) == ["Faster"]


def test_a_deleted_conversation_drops_what_waits_for_it(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open()
    say(page, "Before")
    expect(answer(page)).to_have_text("You said: Before")
    until_idle(page)
    with server.down():
        until_lost(page)
        say(page, "Never mind")
        expect(page.locator(".message.user")).to_have_count(2)
        until_stored(page, 1)
        page.route("**/chat*", lambda route: route.abort())  # or it may wait for the next worker
        page.get_by_role("button", name="Delete this conversation").click()
        with page.expect_event("requestfailed", lambda request: request.method == "DELETE"):
            page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator(".message.user")).to_have_count(1)
        until_stored(page, 0)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    say(page, "After")
    expect(answer(page)).to_have_text("You said: After")
    assert "Never mind" not in said(server, name)


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
def test_an_approval_waits_for_the_server(
    tabs: Tabs, server: Server, name: str, closes: bool
) -> None:
    page = tabs.open()
    say(page, "need approval")
    expect(card(page)).to_have_attribute("data-state", "waiting")
    until_idle(page)
    with server.down():
        until_lost(page)
        card(page).get_by_role("button", name="Approve").click()
        expect(card(page).locator(".chip")).to_have_text("not sent yet")
        expect(card(page)).to_contain_text(f"You approved this. {NOT_SENT}")
        until_stored(page, 1)
        if closes:
            page.close()
    page = tabs.open(waits=False) if closes else page
    expect(answer(page)).to_have_text("Deleted /tmp/x.")
    until_idle(page)
    expect(card(page)).to_have_attribute("data-state", "done")
    stats = server.http.post(f"/agents/page-agent/{name}/rpc/getStats").json()["result"]
    assert stats["deleteFile"] == 1
    until_stored(page, 0)


def test_a_result_of_the_browser_is_sent_by_the_next_tab(
    tabs: Tabs, server: Server, name: str
) -> None:
    page = tabs.open(at="/_outlast/ui/icon.svg", waits=False)

    def route(socket: WebSocketRoute) -> None:
        to = socket.connect_to_server()
        is_result = '"type":"cf_agent_tool_result"'
        socket.on_message(lambda text: None if is_result in str(text) else to.send(text))

    page.route_web_socket("**/agents/**", route)
    page.goto(f"{server.url}/?agent=assistant#{name}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    say(page, "What time is it in my browser?")
    until_stored(page, 1)
    expect(card(page)).to_have_attribute("data-state", "running")
    page.close()
    later = tabs.open(agent="assistant")
    expect(card(later)).to_have_attribute("data-state", "done")
    until_idle(later)
    until_stored(later, 0)


def test_a_stopped_message_without_an_answer_can_be_tried_again(page: Page) -> None:
    say(page, "wait 800ms say 3 words")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#tail")).to_contain_text("There is no answer.")
    page.get_by_role("button", name="Try again").click()
    expect(answer(page)).to_have_text(words(3))
    until_idle(page)
    expect(page.locator(".message")).to_have_count(2)
