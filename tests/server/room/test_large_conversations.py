"""A conversation of any length stays open: what is sent is bounded, what is stored is whole."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest
from tabs import ACK, MESSAGES, RESPONSE, RESUMING, UPDATED, Served, served, user
from websockets.exceptions import ConnectionClosed

from outlast import Think, tool
from outlast.chat.message.content import REFERENCE
from outlast.server.limits import Limits
from outlast.server.room.transcript_sync import REMEMBERED
from outlast.testing import ScriptedModel, Step

MIB = 1024 * 1024
SIZE = 9 * MIB


def answer(messages: list[Any]) -> Step:
    said = str(messages[-1].parts[-1].content)
    if "fetch" in said and "xxx" not in said:
        return Step.calls("fetch")
    return Step.text("fine")


class Big(Think):
    model = ScriptedModel.answering(answer)

    @tool(effect="read")
    async def fetch(self) -> str:
        return "x" * SIZE


PATH: dict[str, Any] = {"path": "/agents/big/b"}
LATER: dict[str, Any] = {**PATH, "query": "_delta=1"}


async def fill(server: Served, count: int, size: int) -> None:
    big = server.app.host.get(Big, "b")
    for start in range(0, count, 500):
        await big.add_messages(
            [
                {"id": f"m{n}", "role": "user" if n % 2 == 0 else "assistant",
                 "parts": [{"type": "text", "text": f"{n} " + "y" * size}]}
                for n in range(start, min(count, start + 500))
            ]
        )  # fmt: skip


async def stored(server: Served, **query: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        found = await http.get(server.at("b", "get-messages", agent="big"), params=query)
        assert found.status_code == 200
        return found


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


async def test_twelve_messages_of_950_kb_can_be_opened_again_and_again(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server:
        await fill(server, 12, 950_000)
        for time in range(3):
            async with server.tab(**PATH) as tab:
                told = await tab.wait(MESSAGES, connect=True)
                assert {"m9", "m10", "m11"} < set(ids(told["messages"]))
                assert "m7" not in ids(told["messages"])
                assert told["earlier"] is True
                await tab.answered(f"r{time}", "Hello")
                assert tab.closed is None


async def test_an_output_of_9_mb_is_sent_as_a_url_and_fetched_whole(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server, server.tab(**PATH) as tab:
        await tab.answered("r1", "fetch")
        live = [each for each in tab.chunks("r1") if each["type"] == "tool-output-available"]
        told = tab.all(MESSAGES)[-1]["messages"][-1]["parts"]
        async with server.tab(**PATH) as later:
            joined = (await later.wait(MESSAGES, connect=True))["messages"][-1]["parts"]
        parts = [part for part in (*told, *joined) if part["type"] == "tool-fetch"]
        outputs = [each["output"] for each in (*live, *parts)]
        assert len(outputs) == 3
        assert {each["type"] for each in outputs} == {REFERENCE}
        assert {each["size"] for each in outputs} == {SIZE + 2}
        assert {each["preview"] for each in outputs} == {'"' + "x" * 1999}
        async with httpx.AsyncClient(timeout=60) as http:
            for url in {each["url"] for each in outputs}:
                found = await http.get(server.http + url)
                assert found.json() == "x" * SIZE
            assert (await http.get(server.http + url + "-no")).status_code == 404
        big = server.app.host.get(Big, "b")
        whole = (await big.get_messages())[-1].raw["parts"]
        assert [part["output"] for part in whole if part["type"] == "tool-fetch"] == ["x" * SIZE]


async def test_a_replay_larger_than_the_buffer_reaches_its_client(sqlite_url: str) -> None:
    class Chatty(Think):
        model = ScriptedModel(
            Step.text(chunks=["z" * 50_000] * 60, delay=0.005) + Step.stalls(3600)
        )

    limits = Limits(buffer=100_000)
    path: dict[str, Any] = {"path": "/agents/chatty/c"}
    async with served(Chatty, url=sqlite_url, limits=limits) as server:
        chatty = server.app.host.get(Chatty, "c")
        asked = await chatty.submit_messages("go")
        said = ""
        async for _, chunk in chatty.resume_stream(asked.id):
            said += chunk.get("delta", "")
            if len(said) == 3_000_000:
                break
        async with server.tab(**path) as late:
            await late.wait(RESUMING, id=asked.id)
            await late.send(ACK, id=asked.id)
            await late.wait(RESPONSE, id=asked.id, replayComplete=True)
            assert late.text(asked.id, replay=True) == "z" * 3_000_000
        await chatty.cancel_chat(asked.id)


async def test_older_messages_are_fetched_up_to_the_first_one(store_url: str) -> None:
    async with served(Big, url=store_url, limits=Limits(transcript_messages=40)) as server:
        await fill(server, 100, 10)
        found = await stored(server)
        seen = ids(found.json())
        assert (seen[0], seen[-1], len(seen)) == ("m60", "m99", 40)
        while found.headers["x-outlast-earlier"] == "true":
            found = await stored(server, before=seen[0], limit="25")
            assert 0 < len(found.json()) <= 25
            seen = [*ids(found.json()), *seen]
        assert seen == [f"m{n}" for n in range(100)]
        assert (await stored(server, before="m0")).json() == []
        async with httpx.AsyncClient() as http:
            url = server.at("b", "get-messages", agent="big")
            assert (await http.get(url, params={"before": "no"})).status_code == 404
            for odd in ("x", "-1", "0", "9" * 30):
                assert (await stored(server, before="m5", limit=odd)).status_code == 200


async def test_messages_beyond_the_memory_of_the_agent_are_fetched(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.chat.transcript.transcript.WINDOW_BYTES", 20_000)
    async with served(Big, url=sqlite_url) as server:
        await fill(server, 100, 1000)
        found = await stored(server)
        assert found.headers["x-outlast-earlier"] == "true"
        first = found.json()[0]["id"]
        older = await stored(server, before=first)
        assert ids(older.json())[-1] == f"m{int(first[1:]) - 1}"
        assert ids(older.json())[0] == "m0"


# --- what changed --------------------------------------------------------------------------------


async def test_a_client_that_takes_changes_is_sent_what_changed(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server:
        await fill(server, 50, 5_000)
        async with (
            server.tab(**LATER) as one,
            server.tab(**LATER) as two,
            server.tab(**PATH) as old,
        ):
            for tab in (one, two, old):
                await tab.wait(MESSAGES, connect=True)
            await one.answered("r1", "Hello")
            for tab in (one, two):
                await tab.done("r1")
                said, answered = tab.all(MESSAGES)[1:]
                assert (said["after"], ids(said["messages"])) == ("m49", ["u-r1"])
                assert answered["after"] == "u-r1"
                assert [each["role"] for each in answered["messages"]] == ["assistant"]
            await old.done("r1")
            whole = old.all(MESSAGES)[1]
            assert ids(whole["messages"])[-1] == "u-r1"
            assert "after" not in whole


async def test_a_large_transcript_is_not_sent_again_to_those_who_followed(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server:
        await fill(server, 50, 5_000)
        async with server.tab(**PATH) as owner, server.tab(**PATH) as other:
            for tab in (owner, other):
                await tab.wait(MESSAGES, connect=True)
            await owner.answered("r1", "Hello")
            await other.done("r1")
            assert [len(each["messages"]) for each in owner.all(MESSAGES)] == [50]
            assert [len(each["messages"]) for each in other.all(MESSAGES)] == [50, 51]
            for tab in (owner, other):
                (updated,) = tab.all(UPDATED)
                assert updated["message"]["parts"][-1]["text"] == "fine"
            stored_now = (await stored(server)).json()
            assert updated["message"] == stored_now[-1]


async def test_whoever_is_not_in_step_gets_the_whole_transcript(sqlite_url: str) -> None:
    """A message that is changed while nobody tells of it is noticed with the next transcript."""
    async with served(Big, url=sqlite_url) as server, server.tab(**LATER) as tab:
        await fill(server, 4, 100_000)
        await tab.until(lambda: tab.all(MESSAGES))
        big = server.app.host.get(Big, "b")
        await big.update_message(
            {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": "new"}]}
        )
        await tab.answered("r1", "Hello")
        known: list[dict[str, Any]] = []
        for frame in tab.all(MESSAGES):
            if "after" in frame:
                at = ids(known).index(frame["after"]) + 1
                known = [*known[:at], *frame["messages"]]
            else:
                known = frame["messages"]
        assert known == (await stored(server)).json()
        await big.clear_messages()
        await tab.wait("cf_agent_chat_clear")
        await tab.answered("r2", "Again")
        assert tab.all(MESSAGES)[-1]["messages"][-1]["role"] == "assistant"


# --- files ---------------------------------------------------------------------------------------


async def test_a_large_file_is_sent_as_a_url_and_taken_back_as_the_file(sqlite_url: str) -> None:
    image = b"\x89PNG" + b"p" * 400_000
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    script = "data:text/html;base64," + base64.b64encode(b"<script>" + b"s" * 400_000).decode()
    parts = [
        {"type": "file", "mediaType": "image/png", "url": url},
        {"type": "file", "mediaType": "text/html", "url": script},
        {"type": "text", "text": "look"},
    ]
    limits = Limits(message=4 * MIB)
    async with served(Big, url=sqlite_url, limits=limits) as server, server.tab(**PATH) as tab:
        message = {"id": "u1", "role": "user", "parts": parts}
        await tab.ask("r1", message)
        await tab.done("r1")
        (shown, _) = (await stored(server)).json()
        assert all(len(part["url"]) < 200 for part in shown["parts"][:2])
        async with httpx.AsyncClient(timeout=60) as http:
            picture = await http.get(server.http + shown["parts"][0]["url"])
            page = await http.get(server.http + shown["parts"][1]["url"])
        assert (picture.content, picture.headers["content-type"]) == (image, "image/png")
        assert page.headers["content-disposition"] == "attachment"
        assert page.headers["content-type"] == "application/octet-stream"
        assert page.headers["x-content-type-options"] == "nosniff"
        # The client sends back what it was sent: that is not another text, and the model sees the file.
        edited = {**shown, "parts": [*shown["parts"][:2], {"type": "text", "text": "look again"}]}
        await tab.ask("r2", shown, trigger="regenerate-message")
        await tab.done("r2")
        await tab.ask("r3", edited)
        await tab.done("r3")
        big = server.app.host.get(Big, "b")
        kept = (await big.get_messages())[0].raw
        assert [part["url"] for part in kept["parts"][:2]] == [url, script]
        assert kept["parts"][2]["text"] == "look again"


# --- what clients send ---------------------------------------------------------------------------


def history(size: int) -> list[dict[str, Any]]:
    long = {"id": "a0", "role": "assistant", "parts": [{"type": "text", "text": "h" * size}]}
    return [user("u0", 'a "quoted" {"role":"user"} \\ past'), long]


async def test_a_request_that_repeats_20_mb_of_history_is_accepted(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server, server.tab(**PATH) as tab:
        text = 'New: ,{"id":"x","role":"user","parts":[]}]} \\" é 😀'
        new = [user("u1", text), user("u2", "and this")]
        await tab.ask("r1", *history(20 * MIB), *new, custom={"a": 1}, clientTools=[])
        await tab.done("r1")
        big = server.app.host.get(Big, "b")
        said = [message.raw for message in await big.get_messages()][:2]
        assert said == new


async def test_over_http_too(sqlite_url: str) -> None:
    async with served(Big, url=sqlite_url) as server, httpx.AsyncClient(timeout=60) as http:
        body = {"custom": 1, "id": "chat", "messages": [*history(20 * MIB), user("u1", "Hi")]}
        found = await http.post(server.at("b", "chat", agent="big"), json=body)
        assert found.status_code == 200
        assert '"delta":"fine"' in found.text
        assert ids((await stored(server)).json())[0] == "u1"
        huge = await http.post(
            server.at("b", "chat", agent="big"), json={"messages": [user("u2", "x" * 5 * MIB)]}
        )
        assert huge.status_code == 413
        assert "too large" in huge.json()["error"]


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB])
async def test_a_message_that_is_too_large_is_answered_with_an_error(
    sqlite_url: str, size: int
) -> None:
    limits = Limits(frame=10 * MIB)
    async with served(Big, url=sqlite_url, limits=limits) as server, server.tab(**PATH) as tab:
        await tab.ask("r1", user("u1", "x" * size))
        refused = await tab.done("r1")
        assert refused["error"] is True
        assert "too large" in refused["body"]
        assert (await stored(server)).json() == []
        await tab.answered("r2", "Hello")


async def test_a_frame_beyond_everything_is_answered_before_it_closes(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.server.socket.batching.DISCARDING", 0.5)
    async with served(Big, url=sqlite_url, limits=Limits(frame=MIB)) as server:
        tab = server.tab(**PATH)
        async with tab:
            init = {"method": "POST", "body": "x" * 3 * MIB}
            text = json.dumps({"id": "r1", "init": init, "type": "cf_agent_use_chat_request"})
            with suppress(ConnectionClosed):
                await tab.raw(text)
            code, _ = await tab.until_closed()
            (refused,) = tab.all(RESPONSE, id="r1")
            assert (code, refused["error"], refused["done"]) == (1009, True, True)


async def test_a_result_of_a_client_that_is_too_large_ends_its_call(sqlite_url: str) -> None:
    from conformance.fixture_agent import TIMEZONE

    limits = Limits(body=100_000)
    async with served(url=sqlite_url, limits=limits) as server, server.tab() as tab:
        await tab.say("r1", "call client tool", clientTools=[TIMEZONE])
        await tab.done("r1")
        (call,) = [each for each in tab.chunks("r1") if each["type"] == "tool-input-available"]
        await tab.send(
            "cf_agent_tool_result",
            toolCallId=call["toolCallId"],
            toolName="",
            output="x" * 200_000,
            autoContinue=True,
        )
        updated = await tab.wait(UPDATED)
        part = updated["message"]["parts"][-1]
        assert part["state"] == "output-error"
        assert "too large" in part["errorText"]


async def test_a_client_of_a_very_long_conversation_is_sent_what_changed(sqlite_url: str) -> None:
    """Longer than what is remembered of a conversation: each message pushes out the oldest one."""
    async with served(Big, url=sqlite_url) as server:
        await fill(server, REMEMBERED + 10, 40)
        async with server.tab(**LATER) as tab, server.tab(**PATH) as old:
            for each in (tab, old):
                await each.wait(MESSAGES, connect=True)
            for time in range(2):
                await tab.answered(f"r{time}", "Hello")
                await old.done(f"r{time}")
            sent = tab.all(MESSAGES)[1:]
            assert [len(each["messages"]) for each in sent] == [1, 1, 1, 1]
            assert len(old.all(UPDATED)) == 2


async def test_a_client_that_takes_changes_is_told_that_its_first_message_was_accepted(
    sqlite_url: str,
) -> None:
    class Slow(Think):
        model = ScriptedModel(Step.stalls(3600))

    path: dict[str, Any] = {"path": "/agents/slow/s", "query": "_delta=1"}
    async with served(Slow, url=sqlite_url) as server, server.tab(**path) as tab:
        await tab.ask("r1", user("u1", "Hello"))
        told = await tab.wait(MESSAGES)
        assert ids(told["messages"]) == ["u1"]
        await server.app.host.get(Slow, "s").cancel_chat("r1")
