"""The client in Python, against a server: it comes back by itself, and nothing is lost or told twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from processes import process
from starlette.applications import Starlette
from starlette.routing import Mount
from tabs import said, served, serving, stored, until, words

from conformance.fixture_agent import FixtureAgent
from outlast import Agent, App, rpc
from outlast.client import CallFailed, Client, Closed, Refused, TurnFailed
from outlast.core.errors import HostStopped
from outlast.host.address import Address

TWELVE = "say 12 words every 5ms"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not wait for long before they try again."""
    monkeypatch.setattr("outlast.client.connection.FIRST_RETRY", 0.01)
    monkeypatch.setattr("outlast.client.connection.LAST_RETRY", 0.05)


class Talker(Agent):
    """Counts what is done to it, and says things that are no frames."""

    calls = 0

    @rpc
    async def count(self) -> int:
        Talker.calls += 1
        return Talker.calls

    @rpc
    async def never(self) -> None:
        Talker.calls += 1
        await asyncio.Event().wait()

    @rpc
    async def speak(self) -> None:
        self.broadcast("plain text")
        self.broadcast("[1, 2]")


@asynccontextmanager
async def connected(server: Any, name: str = "a", **options: Any) -> AsyncIterator[Client]:
    agent = options.pop("agent", "fixture-agent")
    async with Client(server.http, agent, name, **options) as client:
        yield client


def cut(client: Client) -> None:
    """Lose the connection, without a word."""
    assert client._socket is not None
    client._socket.transport.abort()


async def lost(client: Client) -> None:
    """The same, and it is noticed."""
    cut(client)
    await until(lambda: client._socket is None)


def swallow(client: Client) -> None:
    """From now on, what is sent with this connection does not arrive."""

    async def send(_: str) -> None:
        pass

    assert client._socket is not None
    client._socket.send = send  # type: ignore[method-assign, assignment]


def text_in(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def all_of(chunks: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in chunks]


# --- turns -----------------------------------------------------------------------------------------


async def test_an_answer_comes_in_chunks_and_then_as_a_message(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        chunks = await all_of(client.send(TWELVE))
        assert (chunks[0]["type"], chunks[-1]["type"]) == ("start", "finish")
        assert text_in(chunks) == words(12)
        assert said(client.messages) == [f"user: {TWELVE}", f"assistant: {words(12)}"]
        given = {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
        assert text_in(await all_of(client.send(given, body={"a": 1}))) == "You said: Hi"
        assert client.messages == await stored(server)
        await client.clear()
        assert client.messages == []
        await client.call("echo")  # and what was cleared is
        assert await stored(server) == []


async def test_a_turn_that_fails_raises_after_what_it_has_said(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        chunks = []
        with pytest.raises(TurnFailed, match="fixture model exploded"):
            async for chunk in client.send("fail after 3 words"):
                chunks.append(chunk)
        assert text_in(chunks).split() == words(3).split()
        assert text_in(await all_of(client.send("say 2 words"))) == "w1 w2"


@pytest.mark.invariant("E6", "E8", "E17")
@pytest.mark.parametrize("moments", [(0,), (1, 2, 3), (6, 7), (11, 14), range(0, 16, 2)])
async def test_an_answer_goes_on_after_a_lost_connection_without_gap_or_repeat(
    sqlite_url: str, moments: Any
) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        chunks = []
        async for chunk in client.send(TWELVE, request_id="r1"):
            chunks.append(chunk)
            if len(chunks) - 1 in moments and client._socket is not None:
                cut(client)
        async with connected(server) as other:
            assert await all_of(other.resume("r1")) == chunks
        assert text_in(chunks) == words(12)
        await until(lambda: len(client.messages) == 2)
        assert client.messages == await stored(server)
        assert (await client.call("getStats"))["model"] == 1


async def test_a_message_whose_connection_is_lost_at_once_is_answered_once(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        for n, lose in enumerate((swallow, cut)):
            lose(client)
            answer = asyncio.create_task(
                all_of(client.send(f"say {n + 2} words", request_id=f"r{n}"))
            )
            await until(lambda: client._requests)
            if client._socket is not None:
                cut(client)
            assert text_in(await answer) == words(n + 2)
        assert len(await stored(server)) == 4
        assert (await client.call("getStats"))["model"] == 2


async def test_a_request_is_followed_from_its_first_chunk_by_whoever_asks(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as one:
        async with connected(server) as other:
            followed: list[asyncio.Task[list[Any]]] = []
            chunks = []
            async for chunk in one.send(TWELVE, request_id="r1"):
                chunks.append(chunk)
                if chunk["type"] == "text-delta":  # also who asks, and who receives it all the time
                    followed += [
                        asyncio.create_task(all_of(client.resume("r1"))) for client in (one, other)
                    ]
            assert all([await task == chunks for task in followed])
            assert one.messages == other.messages == await stored(server)
            assert await all_of(other.resume("nobody's")) == []


async def test_what_waits_is_followed_when_it_begins(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as one:
        async with connected(server) as other:
            first = asyncio.create_task(all_of(one.send("say 20 words every 5ms")))
            await until(lambda: len(other.messages) == 1)
            second = asyncio.create_task(all_of(one.send("say 3 words", request_id="r2")))
            await until(lambda: len(other.messages) == 2)
            third = asyncio.create_task(all_of(other.resume("r2")))
            assert text_in(await first) == words(20)
            assert text_in(await second) == text_in(await third) == words(3)


@pytest.mark.parametrize("lose", [None, cut, swallow])
async def test_a_turn_is_stopped_also_if_the_connection_is_lost_meanwhile(
    sqlite_url: str, lose: Any
) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        chunks = []
        async for chunk in client.send("say 2000 words every 5ms", request_id="r1"):
            chunks.append(chunk)
            if len(chunks) == 5:
                if lose is not None:
                    lose(client)
                await client.cancel("r1")
                if lose is swallow:
                    cut(client)
        assert not client._answers_given
        await until(lambda: len(client.messages) == 2)
        assert 0 < len(text_in(chunks).split()) < 2000
        assert text_in(await all_of(client.send("say 2 words"))) == "w1 w2"


# --- calls that somebody answers -------------------------------------------------------------------


def open_call(client: Client) -> str | None:
    for message in client.messages:
        for part in message["parts"]:
            if part.get("state") in ("input-available", "approval-requested"):
                return str(part["toolCallId"])
    return None


@pytest.mark.parametrize("lose", [None, cut, swallow])
@pytest.mark.parametrize(
    ("prompt", "answers", "text"),
    [
        ("call client tool", ["CET"], "Your timezone is CET."),
        ("call client tool", [], ""),
        ("need approval", [True], "Deleted /tmp/x."),
        ("need approval", [False], "Okay, I will not delete it."),
        ("call two client tools", ["CET", "fr"], "Timezone CET and locale fr."),
    ],
)
async def test_calls_are_answered_and_the_agent_goes_on(
    sqlite_url: str, lose: Any, prompt: str, answers: list[Any], text: str
) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        await all_of(client.send(prompt))
        for answer in answers:
            await until(lambda: open_call(client))
            call = open_call(client)
            assert call is not None
            if lose is not None:
                lose(client)
            if isinstance(answer, bool):
                await client.add_tool_approval(call, answer)
            else:
                await client.add_tool_output(call, answer)
            if lose is swallow:
                cut(client)
            await until(lambda call=call: open_call(client) != call)
        if not answers:
            call = open_call(client)
            assert call is not None
            await client.add_tool_output(call, error="it is unknown")
            await until(lambda: open_call(client) is None)
            return
        await until(lambda: said(client.messages)[-1] == f"assistant: {text}")
        assert len(client.messages) == 2
        assert not client._answers_given
        stats = await client.call("getStats")
        assert stats.get("deleteFile", 0) == (answers == [True])
        assert stats["model"] == 2


async def test_tools_that_the_client_brings_are_called(sqlite_url: str) -> None:
    tool = {"name": "pickColor", "description": "A colour", "parameters": {"type": "object"}}
    async with served(url=sqlite_url) as server, connected(server) as client:
        await all_of(client.send("call registered tool", client_tools=[tool]))
        await until(lambda: open_call(client))
        await client.add_tool_output(str(open_call(client)), "red")
        await until(lambda: said(client.messages)[-1] == "assistant: You picked red.")


# --- calls and state -------------------------------------------------------------------------------


async def test_methods_are_called_and_stream(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        assert await client.call("add", 1, 2) == 3
        assert await client.call("echo", {"a": [None]}) == {"a": [None]}
        assert await client.call("countTo", 3) == {"total": 3}
        assert await all_of(client.stream_call("countTo", 3)) == [1, 2, 3]
        for method, text in (("boom", "so it is"), ("nothing", "does not exist")):
            with pytest.raises(CallFailed, match=text):
                await client.call(method, "so it is")
        with pytest.raises(CallFailed, match=r"^The call failed\. \(error_\w+\)$"):
            await client.call("crash", "postgresql://admin:hunter2@db")
        items = []
        with pytest.raises(CallFailed, match="stream exploded"):
            async for item in client.stream_call("countAndFail", 2):
                items.append(item)
        assert items == [1, 2]
        async with aclosing(client.stream_call("countTo", 100)) as stream:  # type: ignore[type-var]
            assert await anext(stream) == 1
        assert not client._calls
        assert await asyncio.gather(*(client.call("echo", n) for n in range(50))) == [*range(50)]


async def test_a_call_is_made_once_or_not_at_all(sqlite_url: str) -> None:
    """When the connection is lost under it, nobody knows; one that was not sent waits."""
    async with served(Talker, url=sqlite_url) as server:
        async with connected(server, agent="talker") as client:
            before = Talker.calls
            under_way = asyncio.create_task(client.call("never"))
            await until(lambda: Talker.calls == before + 1)
            await lost(client)
            with pytest.raises(CallFailed, match="the connection was lost"):
                await under_way
            await until(lambda: client._socket is not None)
            await lost(client)
            assert await client.call("count") == before + 2
            assert not client._calls


async def test_what_is_no_frame_does_no_harm(sqlite_url: str) -> None:
    async with served(Talker, url=sqlite_url) as server:
        async with connected(server, agent="talker") as client:
            socket = client._socket
            await client.call("speak")
            await client.call("count")
            assert client._socket is socket


async def test_state_goes_both_ways_and_across_lost_connections(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as one:
        async with connected(server) as other:
            seen: list[Any] = []

            async def watch() -> None:
                async for state in other.states():
                    seen.append(state)

            watching = asyncio.create_task(watch())
            assert one.state == other.state == {"counter": 0}
            await one.set_state({"counter": 1})
            assert one.state == {"counter": 1}
            await until(lambda: other.state == {"counter": 1})
            await other.call("setServerState", {"counter": 2})
            await until(lambda: one.state == other.state == {"counter": 2})
            await lost(one)
            await one.set_state({"counter": 3})
            await until(lambda: other.state == {"counter": 3})
            await one.call("echo")
            assert one.state == {"counter": 3}
        await watching  # the client was closed
        assert seen == [{"counter": n} for n in range(4)]
        cut(one)
        async with connected(server) as other:
            await other.set_state(None)
        await until(lambda: one.state is None)


async def test_a_hint_that_was_missed_does_not_stay(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        await client.call("setRecovering", True)
        await until(lambda: client.is_recovering)
        await lost(client)
        async with httpx.AsyncClient() as http:
            at = server.at("a", "rpc", "setRecovering")
            assert (await http.post(at, json={"args": [False]})).status_code == 200
        await client.call("echo")
        await until(lambda: not client.is_recovering)


# --- who may not -----------------------------------------------------------------------------------


async def test_who_is_refused_does_not_come_back(sqlite_url: str) -> None:
    asked = 0
    refuses = True

    def auth(connection: Any) -> Any:
        nonlocal asked
        asked += 1
        right = connection.headers.get("authorization") == "Bearer x"
        return {"user": "ann"} if right and not refuses else None

    headers = {"Authorization": "Bearer x"}
    async with served(url=sqlite_url, auth=auth) as server:
        with pytest.raises(Refused, match="unauthorized"):
            async with connected(server, headers=headers):
                pass
        assert asked == 1
        refuses = False
        async with connected(server, headers=headers) as client:
            answer = asyncio.create_task(all_of(client.send("say 2000 words every 5ms")))
            call = asyncio.create_task(all_of(client.stream_call("countTo", 2)))
            states = asyncio.create_task(all_of(client.states()))
            await call
            refuses = True
            cut(client)
            for waiting in (answer, states, client.call("echo"), client.cancel("x")):
                with pytest.raises(Refused):
                    await waiting
            assert asked == 3
            assert client._running is not None
            assert client._running.done()


@pytest.mark.parametrize("agent", ["nobody", "FixtureAgent", "x/y/z"])
async def test_an_agent_that_is_not_there_is_said_at_once(sqlite_url: str, agent: str) -> None:
    async with served(url=sqlite_url) as server:
        with pytest.raises(Refused):
            async with connected(server, agent=agent):
                pass


async def test_a_url_that_is_none_is_said_at_once() -> None:
    with pytest.raises(Exception, match="isn't a valid URI"):
        async with Client("localhost:8000", "fixture-agent"):
            pass


async def test_an_auth_that_breaks_for_a_while_is_no_refusal(sqlite_url: str) -> None:
    asked = 0

    def auth(_: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise RuntimeError("the users are not there at the moment")
        return {"user": "ann"}

    async with served(url=sqlite_url, auth=auth) as server, connected(server) as client:
        assert await client.call("add", 1, 2) == 3
        assert asked == 4


# --- servers and clients that go -------------------------------------------------------------------


async def test_a_server_may_be_away_for_a_while(tmp_path: Path) -> None:
    """Also before the first connection. What is asked meanwhile is answered when it is back."""
    async with process(tmp_path) as server:
        async with connected(server) as client:
            assert text_in(await all_of(client.send("say 3 words"))) == words(3)
            await server.end(15)
            other = Client(server.http, "fixture-agent", "a")
            late = asyncio.create_task(other.__aenter__())
            call = asyncio.create_task(client.call("add", 1, 2))
            answer = asyncio.create_task(all_of(client.send("say 4 words")))
            await until(lambda: client._socket is None)
            assert not any(task.done() for task in (late, call, answer))
            await server.start()
            assert await call == 3
            assert text_in(await answer) == words(4)
            await late
            await until(lambda: len(other.messages) == 4)
            assert other.messages == client.messages
            await other.__aexit__()


async def left_by(before: set[asyncio.Task[Any]]) -> None:
    """Wait until there are no more tasks than that."""
    await until(lambda: not asyncio.all_tasks() - before)


async def test_closing_in_the_middle_leaves_nothing_behind(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        async with connected(server) as other:
            before = asyncio.all_tasks()
            async with connected(server) as client:
                chunks = client.send("say 30 words every 5ms", request_id="r1")
                assert (await anext(chunks))["type"] == "start"
                call = asyncio.create_task(all_of(client.stream_call("countTo", 3000)))
                states = asyncio.create_task(all_of(client.states()))
                await until(lambda: client._state_changes and client._calls)
            with pytest.raises(Closed):
                await all_of(chunks)
            with pytest.raises((Closed, CallFailed)):
                await call
            assert await states == [{"counter": 0}]
            for late in (client.call("echo"), client.cancel("x"), all_of(client.send("Hi"))):
                with pytest.raises(Closed):
                    await late
            await left_by(before)
            assert text_in(await all_of(other.resume("r1"))) == words(30)  # the turn goes on


async def test_a_client_that_never_got_through_can_be_given_up() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            async with Client("http://127.0.0.1:9", "fixture-agent"):
                pass
    await left_by(before)


async def test_a_message_that_was_given_up_is_not_sent_later(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, connected(server) as client:
        await lost(client)
        sending = asyncio.create_task(all_of(client.send("Hi")))
        while not client._requests:  # a few rounds of the loop; a handshake takes many
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait({sending})
        assert not client._requests
        async with aclosing(client.send("say 300 words every 5ms")) as chunks:  # type: ignore[type-var]
            await anext(chunks)
        assert not client._requests
        await lost(client)
        await client.call("echo")
        assert said(await stored(server)) == ["user: say 300 words every 5ms"]


async def test_an_application_in_another_one_lives_as_long_as_that(sqlite_url: str) -> None:
    """As in FastAPI, whose lifespan and mounts are Starlette's: once with its own things around ours."""
    app = App(agents=[FixtureAgent], store=sqlite_url, shutdown_timeout=0.2)
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(outer: Starlette) -> AsyncIterator[None]:
        told.append("before")
        async with app.lifespan(outer):
            yield
        told.append("after")

    outer = Starlette(routes=[Mount("/api/v1", app=app)], lifespan=lifespan)
    async with serving(outer) as server:
        assert told == ["before"]
        async with Client(f"{server.http}/api/v1/", "fixture-agent", "al ice") as client:
            assert text_in(await all_of(client.send("say 3 words"))) == words(3)
            assert await client.call("add", 1, 2) == 3
        with pytest.raises(Refused):
            async with Client(server.http, "fixture-agent", "al ice"):
                pass
    assert told == ["before", "after"]
    with pytest.raises(HostStopped):
        async with app.host.using(Address.of("FixtureAgent", "al%20ice")):
            pass
