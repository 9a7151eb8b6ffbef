"""`useAgent` and `useAgentChat`, unmodified, against a served agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.browser import Page, PageFailed, answer, calls, spoken, text_of, words
from conformance.served import Server

Opener = Callable[..., Page]


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


def assert_always_a_beginning(page: Page, whole: str) -> None:
    """Whatever was shown of an answer was its beginning: no word twice, none out of place."""
    for screen in page.screens:
        shown = answer(screen["messages"] or [])
        assert whole.startswith(shown), f"{page.label} has shown {shown!r}"


def assert_agree(server: Server, name: str, *pages: Page) -> list[dict[str, Any]]:
    """All pages show what is stored, once the last transcript has reached them."""
    stored = server.messages(name)
    for page in pages:
        page.until(
            lambda page=page: (
                (ids(page.messages), spoken(page.messages)) == (ids(stored), spoken(stored))
            ),
            f"what is stored: {spoken(stored)}",
        )
    return stored


# --- turns ---------------------------------------------------------------------------------------


def test_an_answer_streams_word_by_word_and_is_stored(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("think, then say 20 words every 10ms", id="u1")
    a.until_text(words(20))
    assert_always_a_beginning(a, words(20))
    assert len({answer(screen["messages"]) for screen in a.screens}) > 5
    statuses = [screen["status"] for screen in a.screens]
    assert [s for n, s in enumerate(statuses) if n == 0 or s != statuses[n - 1]] == [
        *("ready", "submitted", "streaming", "ready")
    ]
    stored = assert_agree(server, name, a)
    assert stored[0]["id"] == "u1"
    kinds = [part["type"] for part in stored[1]["parts"] if part["type"] != "step-start"]
    assert kinds == ["reasoning", "text"]
    assert {part.get("state", "done") for part in a.messages[1]["parts"]} == {"done"}
    a.until(lambda: a.logged("turnEnd"), "the end of the turn")
    assert [(end["outcome"], end["messageIds"]) for end in a.logged("turnEnd")] == [
        ("completed", ["u1"])
    ]


def test_a_page_that_loads_has_the_conversation_on_its_first_screen(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("say 4 words")
    a.until_text(words(4))
    a.kill()
    b = page("B")
    assert spoken(b.screens[0]["messages"]) == ["user: say 4 words", f"assistant: {words(4)}"]
    for screen in b.screens:
        assert len(screen["messages"]) == 2
    assert b.is_idle
    assert_agree(server, name, b)


def test_a_reload_in_the_middle_shows_every_word_once(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("say 60 words, held after 20 words", id="u1")
    a.until_words(20)
    a.kill()
    b = page("B")
    b.until(lambda: b.now["status"] == "streaming", "the stream to be resumed")
    b.until_words(20)
    server.release(name)
    b.until_text(words(60))
    assert_always_a_beginning(b, words(60))
    assert max(len(screen["messages"]) for screen in b.screens) == 2
    stored = assert_agree(server, name, b)
    assert spoken(stored) == ["user: say 60 words, held after 20 words", f"assistant: {words(60)}"]
    assert b.call("getStats") == {"model": 1}


def test_a_lost_connection_is_resumed_by_itself(page: Opener, server: Server, name: str) -> None:
    a = page()
    a.send("say 60 words, held after 20 words")
    a.until_words(20)
    for time in (1, 2):
        a.do("drop")
        a.until(lambda time=time: len(a.sent("cf_agent_stream_resume_ack")) == time, "a resume")
    server.release(name)
    a.until_text(words(60))
    assert_always_a_beginning(a, words(60))
    assert len(a.logged("closed")) == 2
    assert_agree(server, name, a)


def test_stop_keeps_what_was_said_and_ends_it_everywhere(
    page: Opener, server: Server, name: str
) -> None:
    a, b = page("A"), page("B")
    a.send("say 2000 words every 10ms", id="u1")
    for each in (a, b):
        each.until_words(5)
    a.do("stop")
    for each in (a, b):
        each.until(lambda each=each: each.is_idle, "the end")
        each.until(lambda each=each: each.logged("turnEnd"), "the end of the turn")
        assert [end["outcome"] for end in each.logged("turnEnd")] == ["aborted"]
    assert not server.is_answering(name)
    stored = assert_agree(server, name, a, b)
    assert 5 <= len(text_of(stored[1]).split()) < 2000
    assert words(2000).startswith(text_of(stored[1]).rstrip())
    a.send("say 2 words")
    a.until_text(words(2))


def test_stop_after_a_reload_stops_the_turn_on_the_server(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("say 2000 words every 10ms")
    a.until_words(5)
    a.kill()
    b = page("B")
    b.until(lambda: b.now["status"] == "streaming", "the stream to be resumed")
    b.until_words(8)
    b.do("stop")
    b.until(lambda: b.is_idle, "the end")
    server.until(lambda: not server.is_answering(name), "the turn to end")
    stored = assert_agree(server, name, b)
    assert 8 <= len(text_of(stored[1]).split()) < 2000
    assert_always_a_beginning(b, words(2000))


def test_regenerate_replaces_the_answer_on_every_page(
    page: Opener, server: Server, name: str
) -> None:
    a, b = page("A"), page("B")
    a.send("say 5 words")
    for each in (a, b):
        each.until_text(words(5))
    before = assert_agree(server, name, a, b)
    a.do("regenerate")
    a.until(lambda: a.messages[-1]["id"] not in ids(before), "the other answer")
    a.until_text(words(5))
    after = assert_agree(server, name, a, b)
    assert spoken(after) == spoken(before)
    assert after[0]["id"] == before[0]["id"]
    assert after[1]["id"] != before[1]["id"]


def test_an_error_is_shown_also_to_whoever_comes_later(page: Opener) -> None:
    a, b = page("A"), page("B")
    a.send("fail after 3 words every 10ms", id="u1")
    a.until(lambda: a.now["status"] == "error", "the error")
    assert "fixture model exploded" in a.now["error"]
    b.until(lambda: b.logged("turnEnd") and b.is_idle, "the end")
    assert [end["outcome"] for end in b.logged("turnEnd")] == ["error"]
    late = page("C")
    late.until(lambda: late.now["status"] == "error", "the error")
    assert "fixture model exploded" in late.now["error"]
    a.send("say 2 words")
    a.until_text(words(2))
    assert a.now["status"] == "ready"
    assert a.now["error"] is None


# --- several pages -------------------------------------------------------------------------------


def test_two_pages_are_in_step(page: Opener, server: Server, name: str) -> None:
    a, b = page("A"), page("B")
    a.send("say 30 words, held after 10 words", id="u1")
    b.until(lambda: ids(b.messages)[:1] == ["u1"], "the message of the other page")
    b.until_words(10)
    assert b.now["serverStreaming"]
    server.release(name)
    for each in (a, b):
        each.until_text(words(30))
        assert_always_a_beginning(each, words(30))
    b.send("say 6 words every 10ms", id="u2")
    for each in (a, b):
        each.until(lambda each=each: "u2" in ids(each.messages), "the second message")
        each.until_text(words(6))
    stored = assert_agree(server, name, a, b)
    assert [message["role"] for message in stored] == ["user", "assistant"] * 2


def test_clear_empties_every_page(page: Opener, server: Server, name: str) -> None:
    a, b = page("A"), page("B")
    a.send("say 3 words")
    for each in (a, b):
        each.until_text(words(3))
    a.do("clear")
    for each in (a, b):
        each.until(lambda each=each: each.messages == [], "an empty conversation")
    server.until(lambda: server.messages(name) == [], "nothing to be stored")
    b.send("say 2 words")
    for each in (a, b):
        each.until_text(words(2))
    assert len(assert_agree(server, name, a, b)) == 2


@pytest.mark.parametrize("moment", ["at once", "in the middle", "at the end"])
def test_a_message_that_was_shown_never_vanishes_when_two_are_sent_in_a_row(
    page: Opener, server: Server, name: str, moment: str
) -> None:
    first, second = "say 12 words, held after 6 words", "say 5 words every 5ms"
    follows = [{"text": second, "id": "u2"}] if moment == "at the end" else []
    a, b = page("A", sendOnTurnEnd=follows), page("B")
    a.send(first, id="u1")
    if moment == "in the middle":
        a.until_words(6)
    if moment != "at the end":
        a.send(second, id="u2")
        b.until(lambda: "u2" in ids(b.messages), "the second message")
    b.until_words(6)
    server.release(name)
    for each in (a, b):
        each.until(lambda each=each: len(each.messages) == 4 and each.is_idle, "both answers")
    server.until(lambda: not server.is_answering(name), "the turns to be over")
    # A page that has sent both at once shows the answers after them, until it is loaded again.
    others = [b, page("C")] if moment == "at once" else [a, b]
    stored = assert_agree(server, name, *others)
    assert [stored[0]["id"], stored[2]["id"]] == ["u1", "u2"]
    assert spoken(stored) == [
        f"user: {first}",
        f"assistant: {words(12)}",
        f"user: {second}",
        f"assistant: {words(5)}",
    ]
    for each in (a, b):
        for user in ("u1", "u2"):
            shown = [user in ids(screen["messages"] or []) for screen in each.screens]
            assert all(shown[shown.index(True) :]), f"{each.label} has taken {user} away"


def test_messages_of_two_pages_at_once_are_answered_one_after_another(
    page: Opener, server: Server, name: str
) -> None:
    a, b = page("A"), page("B")
    a.send("say 15 words, held after 5 words", id="u1")
    b.until_words(5)
    b.send("say 4 words", id="u2")
    a.until(lambda: "u2" in ids(a.messages), "the message of the other page")
    server.release(name)
    for each in (a, b):
        each.until_text(words(4))
    stored = assert_agree(server, name, a, b)
    assert [text_of(message) for message in stored[1::2]] == [words(15), words(4)]


# --- tools ---------------------------------------------------------------------------------------


def test_a_tool_of_the_server_runs_there_once(page: Opener, server: Server, name: str) -> None:
    a = page(answers={"getWeather": "never asked"})
    a.send("call server tool")
    a.until_text("Weather in Paris is 21C.")
    assert a.logged("toolCall") == []
    stored = assert_agree(server, name, a)
    for messages in (a.messages, stored):
        (call,) = calls(messages)
        assert call["type"] == "tool-getWeather"
        assert call["state"] == "output-available"
        assert call["output"] == {"city": "Paris", "tempC": 21}
    assert a.call("getStats") == {"model": 2, "getWeather": 1}


def test_a_tool_of_the_client_is_answered_by_it_and_the_turn_goes_on(
    page: Opener, server: Server, name: str
) -> None:
    a, b = page("A", answers={"getUserTimezone": "Europe/Paris"}), page("B")
    a.send("call client tool then say 20 words every 10ms")
    whole = f"Your timezone is Europe/Paris. {words(20)}"
    for each in (a, b):
        each.until_text(whole)
        assert_always_a_beginning(each, whole)
    assert [call["toolName"] for call in a.logged("toolCall")] == ["getUserTimezone"]
    stored = assert_agree(server, name, a, b)
    for messages in (a.messages, b.messages, stored):
        (call,) = calls(messages)
        assert (call["state"], call["output"]) == ("output-available", "Europe/Paris")
    assert a.call("getStats") == {"model": 2}


def test_an_open_call_survives_a_reload_and_is_answered_by_hand(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("call client tool")
    a.until(lambda: a.logged("toolCall") and a.is_idle, "the call")
    a.kill()
    b = page("B")
    (call,) = calls(b.messages)
    assert call["state"] == "input-available"
    b.do("toolOutput", toolCallId=call["toolCallId"], toolName="getUserTimezone", output="UTC")
    b.until_text("Your timezone is UTC.")
    assert len(assert_agree(server, name, b)) == 2


@pytest.mark.parametrize("approved", [True, False], ids=["approved", "denied"])
def test_a_tool_waits_for_approval(page: Opener, server: Server, name: str, approved: bool) -> None:
    a, b = page("A"), page("B")
    a.send("need approval")
    for each in (a, b):
        each.until(lambda each=each: _asks(each.messages) and each.is_idle, "the question")
    (call,) = calls(b.messages)
    assert calls(server.messages(name))[0]["state"] == "approval-requested"
    assert "deleteFile" not in a.call("getStats")
    b.do("approve", id=call["approval"]["id"], approved=approved)
    text = "Deleted /tmp/x." if approved else "Okay, I will not delete it."
    state = "output-available" if approved else "output-denied"
    for each in (a, b):
        each.until_text(text)
    for messages in (a.messages, b.messages, assert_agree(server, name, a, b)):
        assert [call["state"] for call in calls(messages)] == [state]
    assert a.call("getStats").get("deleteFile", 0) == int(approved)


@pytest.mark.parametrize("approved", [True, False], ids=["approved", "denied"])
def test_a_tool_of_the_page_waits_for_approval(
    page: Opener, server: Server, name: str, approved: bool
) -> None:
    a = page("A", answers={"readClipboard": "a poem"})
    a.send("call careful client tool")
    a.until(lambda: _asks(a.messages) and a.is_idle, "the question")
    assert not a.logged("toolCall")
    (call,) = calls(a.messages)
    a.do("approve", id=call["approval"]["id"], approved=approved)
    a.until_text("You copied a poem." if approved else "You copied nothing.")
    assert len(a.logged("toolCall")) == int(approved)
    for messages in (a.messages, assert_agree(server, name, a)):
        state = "output-available" if approved else "output-denied"
        assert [call["state"] for call in calls(messages)] == [state]


def test_data_parts_reach_the_page_and_transient_ones_are_not_stored(
    page: Opener, server: Server, name: str
) -> None:
    a = page()
    a.send("emit data, say 3 words")
    a.until_text(words(3))
    heard = [(each["type"], each["data"]) for each in a.logged("data")]
    assert heard == [("data-progress", {"at": 1}), ("data-note", {"n": 1}), ("data-note", {"n": 2})]
    for messages in (assert_agree(server, name, a), a.messages, page("B").messages):
        parts = [part for part in messages[-1]["parts"] if part["type"].startswith("data-")]
        assert parts == [{"type": "data-note", "id": "n", "data": {"n": 2}}]


def _asks(messages: list[dict[str, Any]]) -> bool:
    return any(call["state"] == "approval-requested" for call in calls(messages))


# --- state and calls -----------------------------------------------------------------------------


def test_the_state_is_the_same_on_every_page(page: Opener) -> None:
    a, b = (page(label, hook="useAgent") for label in "AB")
    assert a.now["state"] == b.now["state"] == {"counter": 0}
    a.do("setState", state={"counter": 1, "by": "A"})
    for each in (a, b):
        each.until(lambda each=each: each.now["state"] == {"counter": 1, "by": "A"}, "the state")
    assert a.call("setServerState", {"counter": 2}) is True
    for each in (a, b):
        each.until(lambda each=each: each.now["state"] == {"counter": 2}, "the server's state")
    sources = [(each["source"], each["state"]["counter"]) for each in a.logged("state")]
    assert sources == [("server", 0), ("client", 1), ("server", 2)]
    late = page("C", hook="useAgent")
    assert late.now["state"] == {"counter": 2}


def test_methods_are_called_by_name_and_through_the_stub(page: Opener) -> None:
    a = page(hook="useAgent")
    assert a.call("add", 20, 22) == 42
    assert a.do("stub", method="add", args=[1, 2]) == 3
    value = {"list": [1, None, "é"], "deep": {"er": True}}
    assert a.do("stub", method="echo", args=[value]) == value
    for method, args, text in (
        ("boom", ["kaput"], "kaput"),
        ("notCallable", [], "not callable"),
        ("missing", [], "does not exist"),
    ):
        with pytest.raises(PageFailed, match=text):
            a.call(method, *args)


def test_a_method_that_streams_tells_each_value_and_how_it_ended(page: Opener) -> None:
    a = page(hook="useAgent")
    counted = a.do("callStreaming", method="countTo", args=[4])
    assert counted["chunks"] == [1, 2, 3, 4]
    assert counted["done"] == counted["result"] == {"total": 4}
    failed = a.do("callStreaming", method="countAndFail", args=[2])
    assert failed["chunks"] == [1, 2]
    assert failed["error"] == failed["rejected"] == "stream exploded"
