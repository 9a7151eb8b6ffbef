"""Identity, state and calls, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tabs import LONG, MESSAGES, STATE, quiet_log, served

from outlast import Agent, Final, rpc

SECRET = "postgresql://admin:hunter2@db"


class Plain(Agent):
    """Without a state, and without a chat."""


class Strict(Agent):
    """Takes only some states; notes who comes and goes."""

    initial_state = {"n": 0}
    log: list[str] = []

    def validate_state_change(self, state: Any, source: Any) -> None:
        if state["n"] < 0:
            raise ValueError("the secret reason")

    async def on_connect(self, connection: Any) -> None:
        connection.state["who"] = connection.query.get("who")
        Strict.log.append(f"came {connection.state['who']}")

    async def on_message(self, connection: Any, text: str) -> None:
        Strict.log.append(f"{connection.state['who']} said {text}")
        connection.send(f'{{"type":"heard","text":"{len(text)}"}}')

    async def on_close(self, connection: Any) -> None:
        Strict.log.append(f"went {connection.state['who']}")
        if connection.state["who"] == "rude":
            raise RuntimeError("on_close raised")

    @rpc
    async def sleep(self, name: str, seconds: float) -> str:
        Strict.log.append(f"{name} began")
        try:
            await asyncio.sleep(seconds)
        finally:
            Strict.log.append(f"{name} ended")
        return name

    @rpc
    async def items(self, count: int) -> AsyncIterator[Any]:
        for n in range(count):
            yield n

    @rpc
    async def early(self) -> AsyncIterator[Any]:
        yield Final("only this")
        yield "never"

    @rpc
    async def unjson(self) -> Any:
        return {1, 2}

    @rpc
    async def shout(self, text: str, without: list[str]) -> None:
        self.broadcast(text, without=without)

    async def private(self) -> str:
        return "no"


LIMITS = {"frame": 64 << 20, "body": 4 << 20, "message": 1 << 20, "messages": 100}
PLAIN = {"path": "/agents/plain/p"}


def strict(who: str = "x") -> dict[str, Any]:
    return {"path": "/agents/strict/s", "query": f"who={who}"}


async def test_a_connection_is_told_who_where_and_what_in_this_order(store_url: str) -> None:
    async with served(url=store_url) as server, server.tab("kid%20one") as tab:
        await tab.wait("cf_agent_mcp_servers")
        await tab.call("echo")
        assert tab.frames[:3] == [
            {
                "type": "cf_agent_identity",
                "name": "kid%20one",
                "agent": "fixture-agent",
                "stateFollows": True,
                "limits": LIMITS,
            },
            {"type": STATE, "state": {"counter": 0}},
            {
                "type": "cf_agent_mcp_servers",
                "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []},
            },
        ]


async def test_no_state_is_promised_where_there_is_none(sqlite_url: str) -> None:
    async with served(Plain, url=sqlite_url) as server, server.tab(**PLAIN) as tab:
        await tab.wait("cf_agent_mcp_servers")
        identity = {"type": "cf_agent_identity", "name": "p", "agent": "plain", "limits": LIMITS}
        assert tab.frames[0] == identity
        assert not tab.all(STATE)


async def test_the_connect_frames_come_before_the_answer_to_a_frame_that_was_sent_at_once(
    sqlite_url: str,
) -> None:
    async with served(url=sqlite_url) as server:
        async with server.tab() as first:
            await first.answered("r1", "Hello")
        async with server.tab() as tab:
            await tab.say("r2", "say 3 words")
            await tab.done("r2")
            kinds = [each["type"] for each in tab.frames]
            assert kinds[:4] == [
                "cf_agent_identity",
                STATE,
                "cf_agent_mcp_servers",
                MESSAGES,
            ]
            assert tab.frames[3]["connect"] is True
            assert [each["role"] for each in tab.frames[3]["messages"]] == ["user", "assistant"]


async def test_a_state_goes_to_the_others_and_from_the_server_to_all(store_url: str) -> None:
    async with served(url=store_url) as server:
        async with server.tab(pk="one") as one, server.tab(pk="two") as two:
            await one.wait(STATE)
            await two.wait(STATE)
            await one.send(STATE, state={"counter": 7, "deep": [None, {"ö": "✓"}]})
            await two.wait(STATE, state={"counter": 7, "deep": [None, {"ö": "✓"}]})
            await one.call("echo")
            assert len(one.all(STATE)) == 1
            await two.call("setServerState", {"counter": 8})
            await one.wait(STATE, state={"counter": 8})
            await two.wait(STATE, state={"counter": 8})
        async with server.tab() as third:
            await third.wait(STATE, state={"counter": 8})


async def test_null_is_a_state(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as one:
        await one.call("setServerState", None)
        async with server.tab() as two:
            await two.wait("cf_agent_identity", stateFollows=True)
            await two.wait(STATE, state=None)
            assert "state" in two.all(STATE)[0]


async def test_a_read_only_connection_changes_nothing(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server:
        async with server.tab(query="readonly=1") as reader, server.tab() as other:
            await reader.send(STATE, state={"counter": 9})
            await reader.wait("cf_agent_state_error", error="Connection is readonly")
            assert await reader.call("add", 1, 2) == 3
            await other.call("echo")
            assert len(other.all(STATE)) == 1
            assert not other.all("cf_agent_state_error")


async def test_a_state_that_is_refused_says_so_and_not_why(sqlite_url: str) -> None:
    async with served(Strict, url=sqlite_url) as server:
        async with server.tab(**strict()) as one, server.tab(**strict()) as two:
            async with quiet_log():
                await one.send(STATE, state={"n": -1})
                await one.wait("cf_agent_state_error", error="State update rejected")
                await one.send(STATE, state="no dict")
                await one.until(lambda: len(one.all("cf_agent_state_error")) == 2)
            await one.send(STATE, state={"n": 1})
            await two.wait(STATE, state={"n": 1})
            assert "secret" not in one.shape()
            assert not two.all("cf_agent_state_error")


async def test_calls_return_fail_and_stream(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, server.tab() as other:
        assert await tab.call("add", 2, 3) == 5
        assert await tab.call("echo", {"ö": [1, None]}) == {"ö": [1, None]}
        assert await tab.call("echo") is None
        with pytest.raises(RuntimeError, match="^my own words$"):
            await tab.call("boom", "my own words")
        with pytest.raises(RuntimeError, match=r"^The call failed\. \(error_\w+\)$"):
            await tab.call("crash", SECRET)
        assert SECRET not in json.dumps(tab.frames)
        (record,) = [each for each in caplog.records if each.exc_info]
        assert SECRET in str(record.exc_info), "the log has it"
        assert await tab.call("countTo", 3, id="c") == {"total": 3}
        found = [(each["done"], each["result"]) for each in tab.all("rpc", id="c")]
        assert found == [(False, 1), (False, 2), (False, 3), (True, {"total": 3})]
        with pytest.raises(RuntimeError, match="^stream exploded$"):
            await tab.call("countAndFail", 2, id="f")
        assert [each.get("result") for each in tab.all("rpc", id="f")] == [1, 2, None]
        assert "done" not in tab.all("rpc", id="f")[-1]
        assert not other.all("rpc")


async def test_only_what_is_marked_can_be_called(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        for name in ("notCallable", "get_messages", "set_state", "_start", "__init__"):
            with pytest.raises(RuntimeError, match=f"^Method {name} is not callable$"):
                await tab.call(name)
        for name in ("nothing", "", "add.x", "storage", "Method", "é\u2028"):
            with pytest.raises(RuntimeError, match="(does not exist|is not callable)$"):
                await tab.call(name)


async def test_arguments_must_fit(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        with pytest.raises(RuntimeError):
            await tab.call("add", 1)
        with pytest.raises(RuntimeError):
            await tab.call("add", 1, 2, 3)
        for arguments in ({}, None, "x", 1, True):
            await tab.send("rpc", id="ignored", method="echo", args=arguments)
        await tab.send("rpc", id="ignored", method="echo")
        await tab.call("echo")
        assert not tab.all("rpc", id="ignored")


async def test_streams_end_with_final_or_without(sqlite_url: str) -> None:
    async with served(Strict, url=sqlite_url) as server, server.tab(**strict()) as tab:
        assert await tab.call("items", 2, id="i") is None
        assert [each["done"] for each in tab.all("rpc", id="i")] == [False, False, True]
        assert await tab.call("early", id="e") == "only this"
        assert len(tab.all("rpc", id="e")) == 1
        with pytest.raises(RuntimeError):
            await tab.call("unjson")


async def test_calls_run_side_by_side_and_end_with_their_connection(sqlite_url: str) -> None:
    Strict.log.clear()
    async with served(Strict, url=sqlite_url) as server:
        async with server.tab(**strict("a")) as tab:
            slow = asyncio.create_task(tab.call("sleep", "slow", 60))
            await asyncio.sleep(0)
            assert await tab.call("sleep", "quick", 0) == "quick"
            many = [tab.call("sleep", f"m{n}", 0.01, id=f"m{n}") for n in range(50)]
            assert await asyncio.gather(*many) == [f"m{n}" for n in range(50)]
            assert "slow ended" not in Strict.log
            slow.cancel()
        async with server.tab(**strict("b")) as tab:

            def is_over() -> bool:
                return "slow ended" in Strict.log and "went a" in Strict.log

            async with asyncio.timeout(LONG):
                while not is_over():
                    await asyncio.sleep(0.005)
            assert not tab.all("rpc")


async def test_too_many_calls_at_once_are_refused(sqlite_url: str) -> None:
    async with served(Strict, url=sqlite_url) as server, server.tab(**strict()) as tab:
        for n in range(257):
            await tab.send("rpc", id=f"c{n}", method="sleep", args=["s", 30])
        refused = await tab.wait("rpc", success=False)
        assert (refused["id"], refused["error"]) == ("c256", "Too many calls at once")


async def test_an_application_hears_who_comes_says_something_and_goes(sqlite_url: str) -> None:
    Strict.log.clear()
    async with served(Strict, url=sqlite_url) as server, quiet_log():
        async with server.tab(**strict("ann")) as tab:
            await tab.raw("not JSON")
            await tab.raw('{"type":"mine"}')
            await tab.until(lambda: len(tab.all("heard")) == 2)
        async with server.tab(**strict("bob")) as tab:
            async with asyncio.timeout(LONG):
                while "went ann" not in Strict.log:
                    await asyncio.sleep(0.005)
    heard = [each for each in Strict.log if "ann" in each]
    assert heard == ["came ann", "ann said not JSON", 'ann said {"type":"mine"}', "went ann"]


async def test_an_on_close_that_raises_hurts_nobody(sqlite_url: str) -> None:
    Strict.log.clear()
    async with served(Strict, url=sqlite_url) as server:
        async with quiet_log("Strict/s: on_close"):
            async with server.tab(**strict("rude")):
                pass
            async with server.tab(**strict("kind")) as tab:
                async with asyncio.timeout(LONG):
                    while "went rude" not in Strict.log:
                        await asyncio.sleep(0.005)
                assert await tab.call("sleep", "z", 0) == "z"


async def test_a_broadcast_reaches_all_but_those_it_is_not_for(sqlite_url: str) -> None:
    async with served(Strict, url=sqlite_url) as server:
        async with server.tab(pk="one", **strict()) as one, server.tab(pk="two", **strict()) as two:
            await one.call("shout", '{"type":"mine","n":1}', ["one"])
            await two.wait("mine", n=1)
            await one.call("shout", '{"type":"mine","n":2}', [])
            await one.wait("mine", n=2)
            assert not one.all("mine", n=1)


async def test_an_agent_that_was_evicted_is_woken_by_a_frame(sqlite_url: str) -> None:
    async with served(url=sqlite_url, idle_timeout=0.05) as server:
        async with server.tab(pk="one") as one, server.tab(pk="two") as two:
            await one.answered("r1", "Hello")
            host = server.app.host
            for n in range(3):
                async with asyncio.timeout(LONG):
                    while host.statistics().active:
                        await asyncio.sleep(0.01)
                await one.send(STATE, state={"counter": n})
                await two.wait(STATE, state={"counter": n})
            async with asyncio.timeout(LONG):
                while host.statistics().active:
                    await asyncio.sleep(0.01)
            await two.say("r2", "say 5 words")
            await one.done("r2")
            await two.done("r2")
            assert one.text("r2") == two.text("r2") == "w1 w2 w3 w4 w5"


async def test_whoever_comes_while_the_last_one_goes_hears_what_follows(sqlite_url: str) -> None:
    """A room is left and entered at the same time."""
    async with served(Strict, url=sqlite_url) as server:
        for n in range(10):
            first = await server.tab(**strict(f"f{n}")).open()
            coming = asyncio.create_task(server.tab(**strict(f"s{n}")).open())
            going = asyncio.create_task(first.cut())
            tab = await coming
            await going
            await tab.wait("cf_agent_mcp_servers")
            await tab.call("shout", f'{{"type":"mine","n":{n}}}', [])
            await tab.wait("mine", n=n)
            await tab.close()
