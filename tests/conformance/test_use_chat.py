"""`useChat` of the AI SDK over plain HTTP, unmodified, against a served agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.browser import Page, answer, calls, spoken, text_of, words
from conformance.served import Server

Opener = Callable[..., Page]


@pytest.fixture
def sdk(page: Opener) -> Opener:
    """Opens a page with `useChat`."""

    def opened(label: str = "A", **settings: Any) -> Page:
        return page(label, hook="useChat", **settings)

    return opened


def assert_always_a_beginning(page: Page, whole: str) -> None:
    for screen in page.screens:
        shown = answer(screen["messages"])
        assert whole.startswith(shown), f"{page.label} has shown {shown!r}"


def assert_shows_what_is_stored(page: Page, server: Server, name: str) -> list[dict[str, Any]]:
    server.until(lambda: not server.is_answering(name), "the turn to be over")
    stored = server.messages(name)
    assert spoken(page.messages) == spoken(stored)
    assert [each["id"] for each in page.messages] == [each["id"] for each in stored]
    return stored


def test_an_answer_streams_over_http_and_is_stored(sdk: Opener, server: Server, name: str) -> None:
    a = sdk()
    for count in (20, 3):
        a.send(f"say {count} words every 10ms", id=f"u{count}")
        a.until_text(words(count))
    assert_always_a_beginning(a, words(20))
    assert len({answer(screen["messages"]) for screen in a.screens}) > 5
    assert {screen["status"] for screen in a.screens} == {"ready", "submitted", "streaming"}
    stored = assert_shows_what_is_stored(a, server, name)
    assert [message["role"] for message in stored] == ["user", "assistant"] * 2
    assert [stored[0]["id"], stored[2]["id"]] == ["u20", "u3"]
    b = sdk("B")
    assert spoken(b.messages) == spoken(stored)
    b.until(lambda: b.logged("fetch"), "whether there is anything to resume")
    assert b.is_idle


def test_another_answer_replaces_the_first_over_http(
    sdk: Opener, server: Server, name: str
) -> None:
    a = sdk()
    a.send("say 5 words")
    a.until_text(words(5))
    before = assert_shows_what_is_stored(a, server, name)
    a.do("regenerate")
    a.until(
        lambda: a.messages[-1]["id"] not in (before[0]["id"], before[1]["id"]), "the other answer"
    )
    a.until_text(words(5))
    after = assert_shows_what_is_stored(a, server, name)
    assert after[0]["id"] == before[0]["id"]
    assert after[1]["id"] != before[1]["id"]


def test_an_error_is_shown_over_http(sdk: Opener) -> None:
    a = sdk()
    a.send("fail after 3 words")
    a.until(lambda: a.now["status"] == "error", "the error")
    assert "fixture model exploded" in a.now["error"]
    a.send("say 2 words")
    a.until_text(words(2))
    assert a.now["status"] == "ready"


@pytest.mark.parametrize("to", [None, "chat/stream"], ids=["default address", "own address"])
def test_a_reload_in_the_middle_is_resumed_over_http(
    sdk: Opener, server: Server, name: str, to: str | None
) -> None:
    a = sdk()
    a.send("say 60 words, held after 20 words", id="u1")
    a.until_words(20)
    a.kill()
    b = sdk("B", reconnectTo=to)
    b.until_words(20)
    assert b.now["status"] == "streaming"
    server.release(name)
    b.until_text(words(60))
    assert_always_a_beginning(b, words(60))
    assert max(len(screen["messages"]) for screen in b.screens) == 2
    assert len(assert_shows_what_is_stored(b, server, name)) == 2


def test_a_stop_after_a_reload_ends_the_turn_on_the_server(
    sdk: Opener, server: Server, name: str
) -> None:
    a = sdk()
    a.send("say 2000 words every 10ms")
    a.until_words(5)
    a.kill()
    b = sdk("B")
    b.until_words(8)
    assert b.do("stopOnServer") == {"stopped": True}
    b.until(lambda: b.is_idle, "the end")
    server.until(lambda: not server.is_answering(name), "the turn to end")
    said = text_of(server.messages(name)[1])
    assert 8 <= len(said.split()) < 2000
    assert said.startswith(b.text)
    b.send("say 2 words")
    b.until_text(words(2))
    assert [each["role"] for each in server.messages(name)] == ["user", "assistant"] * 2


def test_a_tool_of_the_server_runs_once_over_http(sdk: Opener, server: Server, name: str) -> None:
    a = sdk(answers={"getWeather": "never asked"})
    a.send("call server tool")
    a.until_text("Weather in Paris is 21C.")
    stored = assert_shows_what_is_stored(a, server, name)
    for messages in (a.messages, stored):
        (call,) = calls(messages)
        assert call["state"] == "output-available"
        assert call["output"] == {"city": "Paris", "tempC": 21}
    assert len([each for each in a.logged("fetch") if each["method"] == "POST"]) == 1


def test_a_tool_of_the_client_is_answered_over_http_and_the_turn_goes_on(
    sdk: Opener, server: Server, name: str
) -> None:
    a = sdk(answers={"getUserTimezone": "Europe/Paris"})
    whole = f"Your timezone is Europe/Paris. {words(10)}"
    a.send("call client tool then say 10 words every 5ms")
    a.until_text(whole)
    assert_always_a_beginning(a, whole)
    stored = assert_shows_what_is_stored(a, server, name)
    assert len(stored) == 2
    for messages in (a.messages, stored):
        (call,) = calls(messages)
        assert (call["state"], call["output"]) == ("output-available", "Europe/Paris")


@pytest.mark.parametrize("approved", [True, False], ids=["approved", "denied"])
@pytest.mark.parametrize("reloads", [False, True], ids=["", "after a reload"])
def test_a_tool_waits_for_approval_over_http(
    sdk: Opener, server: Server, name: str, approved: bool, reloads: bool
) -> None:
    a = sdk()
    a.send("need approval")
    a.until(lambda: a.is_idle and calls(a.messages), "the question")
    if reloads:
        a.kill()
        a = sdk("B")
    (call,) = calls(a.messages)
    assert call["state"] == "approval-requested"
    a.do("approve", id=call["approval"]["id"], approved=approved)
    a.until_text("Deleted /tmp/x." if approved else "Okay, I will not delete it.")
    stored = assert_shows_what_is_stored(a, server, name)
    state = "output-available" if approved else "output-denied"
    for messages in (a.messages, stored):
        assert [call["state"] for call in calls(messages)] == [state]


def test_what_goes_on_after_a_tool_is_resumed_after_a_reload(
    sdk: Opener, server: Server, name: str
) -> None:
    whole = f"Your timezone is UTC. {words(60)}"
    a = sdk(answers={"getUserTimezone": "UTC"})
    a.send("call client tool then say 60 words, held after 20 words")
    a.until_words(20)
    a.kill()
    b = sdk("B", answers={"getUserTimezone": "not asked again"})
    b.until_words(20)
    server.release(name)
    b.until_text(whole)
    assert_always_a_beginning(b, whole)
    stored = assert_shows_what_is_stored(b, server, name)
    assert len(stored) == 2
    for messages in (b.messages, stored):
        (call,) = calls(messages)
        assert (call["state"], call["output"]) == ("output-available", "UTC")
    assert b.logged("toolCall") == []
