"""Chat requests that cannot be read, or not be accepted: each is answered, and the agent is told."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
from tabs import LONG, RESPONSE, quiet_log, served, user

from outlast import Agent, Think
from outlast.chat.types.events import ChatRequestFailed
from outlast.core import json as strict
from outlast.core.errors import StoreUnavailable
from outlast.server.limits import Limits
from outlast.testing import ScriptedModel
from support import listen

REQUEST = "cf_agent_use_chat_request"
GOOD = json.dumps({"messages": [user("u", "Hi")], "trigger": "submit-message"})
WITHOUT_ID = {"role": "user", "parts": [{"type": "text", "text": "Hi"}]}


def posted(body: Any) -> dict[str, Any]:
    return {"method": "POST", "body": body if isinstance(body, str) else json.dumps(body)}


class Told(Think):
    """Keeps what `on_chat_error` is told."""

    model = ScriptedModel("Hello.", by="request", repeat=True)
    heard: list[Any] = []
    shows: str | None = None

    def on_chat_error(self, error: Exception, context: Any) -> Any:
        where = (context.request_id, context.stage, context.messages_persisted)
        self.heard.append((*where, type(error).__name__))
        return self.shows


def told(shows: str | None = None) -> type[Told]:
    return type("Told", (Told,), {"heard": [], "shows": shows})


UNREADABLE: dict[str, tuple[Any, str]] = {
    "no init": (None, "init must be"),
    "an empty init": ({}, "init must be"),
    "another method": ({"method": "GET", "body": GOOD}, "init must be"),
    "no body": ({"method": "POST"}, "init.body must be"),
    "a body that is no text": ({"method": "POST", "body": {}}, "init.body must be"),
    "half a body": (posted("{"), "The body is not JSON"),
    "a list": (posted("[]"), "The body must be a JSON object"),
    "a body that is too deep": (posted('{"a":' * 300 + "1" + "}" * 300), "nested too deeply"),
    "no messages": (posted({"trigger": "submit-message"}), "messages is missing."),
    "messages that are no list": (posted({"messages": {}}), "messages must be a list."),
    "a message without an id": (posted({"messages": [WITHOUT_ID]}), "The last message must be"),
    "a message that is none": (posted({"messages": [user("u", "Hi"), 5]}), "The last message must"),
}


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_request_that_cannot_be_read_is_answered_with_an_error(
    sqlite_url: str, what: str
) -> None:
    init, words = UNREADABLE[what]
    Chatty = told()
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/told/a") as tab,
        quiet_log(),
    ):
        failed = listen(server.app.host, ChatRequestFailed)
        await tab.send(REQUEST, id="r1", init=init)
        done = await tab.done("r1")
        assert (done["done"], done["error"], done["outcome"]) == (True, True, "error")
        assert words in done["body"]
        await tab.answered("r2", "Hi")
        assert len(tab.all(RESPONSE, id="r1")) == 1
    assert Chatty.heard == [("r1", "parse", False, "Unreadable")]
    (event,) = failed
    assert (event.request_id, event.stage, event.messages_persisted) == ("r1", "parse", False)


async def test_a_request_in_a_frame_that_is_not_json_is_answered(sqlite_url: str) -> None:
    frame = json.dumps({"id": "r1", "init": posted(GOOD), "type": REQUEST})
    deep = f'{{"type":"{REQUEST}","id":"r2","init":{"[" * 300}{"]" * 300}}}'
    Chatty = told("Say that again.")
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/told/a") as tab,
        quiet_log(),
    ):
        await tab.raw(frame[:-1])
        assert (await tab.done("r1"))["body"] == "Say that again."
        await tab.raw(deep)
        assert (await tab.done("r2"))["error"] is True
    assert Chatty.heard == [(id, "parse", False, "Unreadable") for id in ("r1", "r2")]


async def test_an_id_that_is_too_long_is_answered_and_kept_nowhere(sqlite_url: str) -> None:
    Chatty = told()
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/told/a") as tab,
        quiet_log(),
    ):
        await tab.send(REQUEST, id="x" * 201, init=posted(GOOD))
        assert "1 to 200 characters" in (await tab.done("x" * 201))["body"]
        await tab.send(REQUEST, id=5, init=posted(GOOD))
        await tab.answered("r2", "Hi")
    assert Chatty.heard == [(None, "parse", False, "Unreadable")] * 2


async def test_a_second_frame_that_makes_no_sense_does_not_end_a_turn_that_runs(
    sqlite_url: str,
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        await tab.ask("r1", user("u1", "say 20 words every 10ms"))
        await tab.wait(RESPONSE, id="r1")
        await tab.send(REQUEST, id="r1", init={})
        assert "error" not in await tab.done("r1")


async def test_what_cannot_be_stored_is_a_failure_to_persist(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Chatty = told()
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/told/a") as tab,
        httpx.AsyncClient(timeout=LONG) as http,
    ):
        await tab.answered("r0", "Hi")
        failed = listen(server.app.host, ChatRequestFailed)

        async def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("postgresql://admin:hunter2@db is away")

        from outlast.chat.inbox.inbox import Inbox

        monkeypatch.setattr(Inbox, "accept", away)
        await tab.send(REQUEST, id="r1", init=posted(GOOD))
        done = await tab.done("r1")
        assert done["error"] is True
        assert done["body"].startswith("The server cannot store anything right now.")
        Chatty.shows = "Come back later."
        await tab.send(REQUEST, id="r2", init=posted(GOOD))
        assert (await tab.done("r2"))["body"] == "Come back later."
        answer = await http.post(
            server.at("a", "chat", agent="told"), content=GOOD, headers={"idempotency-key": "r3"}
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "hunter2" not in answer.text + json.dumps(tab.frames)
    ids = ["r1", "r2", "r3"]
    assert Chatty.heard == [(id, "persist", False, "StoreUnavailable") for id in ids]
    assert [(e.request_id, e.stage, e.messages_persisted) for e in failed] == [
        (id, "persist", False) for id in ids
    ]


async def test_too_many_and_too_large_requests_are_told_too(sqlite_url: str) -> None:
    Chatty = told()
    limits = Limits(pending=0, body=3000, message=500)
    async with (
        served(Chatty, url=sqlite_url, limits=limits) as server,
        server.tab(path="/agents/told/a") as tab,
        quiet_log(),
    ):
        await tab.send(REQUEST, id="r1", init=posted(GOOD))
        assert "Too many messages" in (await tab.done("r1"))["body"]
        for id, size in (("r2", 1000), ("r3", 9000)):
            await tab.send(REQUEST, id=id, init=posted({"messages": [user("u", "x" * size)]}))
            assert "too large" in (await tab.done(id))["body"]
    told_of = [each[:2] for each in Chatty.heard]
    assert told_of == [("r1", "persist"), ("r2", "parse"), ("r3", "parse")]


class Plain(Agent):
    """Without a chat."""


async def test_an_agent_that_is_none_for_chats_answers_that_too(sqlite_url: str) -> None:
    async with served(Plain, url=sqlite_url) as server, server.tab(path="/agents/plain/a") as tab:
        for id, init in (("r1", posted(GOOD)), ("r2", {})):
            await tab.send(REQUEST, id=id, init=init)
            done = await tab.done(id)
            assert (done["error"], done["body"]) == (True, "The message was not accepted.")


# --- HTTP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "messages is missing."),
        ("", "messages is missing."),
        ('{"messages": {}}', "messages must be a list."),
        (json.dumps({"messages": [WITHOUT_ID]}), "The last message must be"),
        (b"\xff", "not JSON"),
    ],
)
async def test_a_post_that_cannot_be_read_is_a_400_with_a_text(
    sqlite_url: str, content: Any, words: str
) -> None:
    Chatty = told()
    async with served(Chatty, url=sqlite_url) as server, httpx.AsyncClient(timeout=LONG) as http:
        where, headers = server.at("a", "chat", agent="told"), {"idempotency-key": "k1"}
        answer = await http.post(where, content=content, headers=headers)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
        Chatty.shows = "Say that again."
        answer = await http.post(where, content=content, headers=headers)
        assert (answer.status_code, answer.json()) == (400, {"error": "Say that again."})
    assert [each[:3] for each in Chatty.heard] == [("k1", "parse", False)] * 2


# --- half surrogate pairs --------------------------------------------------------------------------

CUT = "cut \ud83d"


@pytest.mark.invariant("A1")
async def test_a_text_cut_in_the_middle_of_an_emoji_is_not_lost(sqlite_url: str) -> None:
    """JavaScript sends half a pair as an escape, once or twice inside a string."""
    Chatty = told()
    inner = json.dumps({"messages": [user("u1", CUT)], "note": CUT})
    outer = json.dumps({"type": REQUEST, "id": "r1", "init": posted(inner), "extra": CUT})
    assert "\\\\ud83d" in outer
    assert '"cut \\ud83d"' in outer
    async with (
        served(Chatty, url=sqlite_url) as server,
        server.tab(path="/agents/told/a") as tab,
        httpx.AsyncClient(timeout=LONG) as http,
        quiet_log(),
    ):
        await tab.raw(outer)
        assert "error" not in await tab.done("r1")
        body = json.dumps({"messages": [user("u2", CUT)]})
        answer = await http.post(server.at("a", "chat", agent="told"), content=body)
        assert answer.status_code == 200
        a = server.app.host.get(Chatty, "a")
        assert (await a.save_messages(CUT)).status == "completed"
        found = [message.text for message in await a.get_messages() if message.role == "user"]
    assert found == ["cut \ufffd"] * 3
    assert Chatty.heard == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d"', "\ufffd"),
        (r'"\uD83D\uDE00 \ude00 \ud83d\ud83d\ude00"', "😀 \ufffd \ufffd😀"),
        (r'"\\ud83d \\\ud83d"', "\\ud83d \\\ufffd"),
        ('["a \ud83d", "\ud83d\ude00"]', ["a \ufffd", "😀"]),
        (r'{"\ud83d": 1}', {"\ufffd": 1}),
    ],
)
def test_half_a_surrogate_pair_is_replaced_before_decoding(text: str, value: Any) -> None:
    assert strict.decode(text) == value


@pytest.mark.parametrize("text", [r'"\ud8"', "{", "[" * 300, r'"\ud83d', "\ud83d"])
def test_what_is_not_json_is_still_refused(text: str) -> None:
    with pytest.raises(ValueError, match="column"):
        strict.decode(text)
