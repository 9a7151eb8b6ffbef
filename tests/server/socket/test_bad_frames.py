"""What no client should send: the connection stays healthy, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import json
import tempfile
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tabs import LONG, MESSAGES, RESPONSE, Tab, quiet_log, served, tool_parts, user

from outlast.server.limits import Limits

GOOD: dict[str, dict[str, Any]] = {
    "cf_agent_state": {"state": {"counter": 1}},
    "rpc": {"id": "x", "method": "add", "args": [1, 2]},
    "cf_agent_use_chat_request": {
        "id": "x",
        "init": {"method": "POST", "body": json.dumps({"messages": [user("u", "say 1 words")]})},
    },
    "cf_agent_chat_request_cancel": {"id": "x"},
    "cf_agent_chat_clear": {},
    "cf_agent_stream_resume_request": {"probeId": "p"},
    "cf_agent_stream_resume_ack": {"id": "x"},
    "cf_agent_tool_result": {
        "toolCallId": "c",
        "toolName": "t",
        "output": 1,
        "state": "output-available",
        "errorText": "e",
        "autoContinue": True,
        "clientTools": [],
    },
    "cf_agent_tool_approval": {"toolCallId": "c", "approved": True, "autoContinue": True},
    "cf_agent_chat_messages": {"messages": []},
    "cf_agent_identity": {"name": "x", "agent": "y"},
    "cf_agent_use_chat_response": {"id": "x", "body": "", "done": True},
    "cf_agent_message_updated": {"message": {"id": "x"}},
    "cf_agent_stream_resuming": {"id": "x"},
}
ODD: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x", "\0", "\ud800", [], [1], {}, {"a": 1}, [[[]]],
    "x" * 5000, {"type": "rpc"}, ["x"] * 50, "constructor", "__init__", "{}", "💥\u2028"]  # fmt: skip


async def healthy(tab: Tab) -> None:
    """It answers, and says nothing about its insides."""
    assert await tab.call("add", 2, 3) == 5
    text = json.dumps(tab.frames)
    for leak in ("Traceback", "Exception", "sqlite", "outlast.", ".py", "object at 0x"):
        assert leak not in text, leak


async def test_every_field_of_every_frame_with_every_kind_of_value(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        for kind, fields in GOOD.items():
            for name in fields:
                await tab.send(kind, **{each: fields[each] for each in fields if each != name})
                for odd in ODD:
                    await tab.send(kind, **{**fields, name: odd})
            await healthy(tab)


async def test_every_field_of_a_message_with_every_kind_of_value(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        good: dict[str, Any] = {
            "messages": [user("u", "say 1 words")],
            "trigger": "submit-message",
            "clientTools": [{"name": "t", "description": "d", "parameters": {}}],
            "custom": 1,
        }
        bodies = [{**good, name: odd} for name in good for odd in ODD]
        message = user("u", "say 1 words")
        bodies += [{"messages": [{**message, name: odd}]} for name in message for odd in ODD]
        part = {"type": "text", "text": "say 1 words"}
        bodies += [
            {"messages": [{**message, "parts": [{**part, name: odd}]}]}
            for name in part
            for odd in ODD
        ]
        tool = {"name": "t", "description": "d", "parameters": {}, "inputSchema": {}}
        bodies += [
            {"messages": [message], "clientTools": [{**tool, name: odd}]}
            for name in tool
            for odd in ODD
        ]
        for n, body in enumerate(bodies):
            init = {"method": "POST", "body": json.dumps(body)}
            await tab.send("cf_agent_use_chat_request", id=f"r{n}", init=init)
        await healthy(tab)
        await tab.answered("last", "say 2 words")
        ends = [each["id"] for each in tab.all(RESPONSE, done=True)]
        assert len(ends) == len(set(ends))
        await healthy(tab)


async def test_what_is_no_frame_is_ignored(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        await tab.wait("cf_agent_mcp_servers")
        before = len(tab.frames)
        for text in (b"", b"\0\xff", b'{"type":"rpc","id":"b","method":"add","args":[1,2]}', "", "{", "null",
            "[]", "1", '"rpc"', '{"type":1}', '{"type":null}', '{"type":["rpc"]}', "{}", '{"type":"unknown"}',
            "[" * 100_000, '{"a":' * 300 + "1" + "}" * 300, "\0", "NaN", "9" * 100_000,
            '{"type":"rpc","type":"x"}', '{"type":"RPC","id":"1","method":"add","args":[1,2]}'):  # fmt: skip
            await tab.raw(text)
        await tab.call("echo")
        assert len(tab.frames) == before + 1
        await healthy(tab)


async def test_deep_json_is_refused_wherever_it_stands(sqlite_url: str) -> None:
    quiet = quiet_log("FixtureAgent/a.echo failed")  # a result that is too deep to be sent
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet:
        for depth in (100, *range(140, 152), 180, 195, 199, 200, 201, 1000):
            deep = "[" * depth + "]" * depth
            await tab.raw(f'{{"type":"cf_agent_state","state":{deep}}}')
            await tab.raw(f'{{"type":"rpc","id":"d{depth}","method":"echo","args":[{deep}]}}')
            tool = f'{{"type":"cf_agent_tool_result","toolCallId":"c","output":{deep}}}'
            await tab.raw(tool)
            part = f'{{"type":"data-x","data":{deep}}}'
            message = f'{{"id":"u{depth}","role":"user","parts":[{part}]}}'
            await tab.send(
                "cf_agent_use_chat_request",
                id=f"r{depth}",
                init={"method": "POST", "body": f'{{"messages":[{message}]}}'},
            )
        await healthy(tab)
        async with server.tab() as other:
            await healthy(other)


async def test_deep_json_as_the_result_of_a_real_call(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, quiet_log():
        await tab.answered("r1", "call client tool")
        (part,) = tool_parts(tab.all(MESSAGES)[-1]["messages"][1])
        for depth in (180, 150, 149, 148, 147, 146, 145, 144, 143):
            deep = "[" * depth + "]" * depth
            id = json.dumps(part["toolCallId"])
            await tab.raw(
                f'{{"type":"cf_agent_tool_result","toolCallId":{id},"toolName":"",'
                f'"output":{deep},"autoContinue":true}}'
            )
            await healthy(tab)
        await tab.answered("r2", "say 1 words")
        await healthy(tab)
        async with server.tab() as other:
            await healthy(other)


async def test_a_frame_that_is_too_large_does_no_harm(sqlite_url: str) -> None:
    limits = Limits(frame=300_000, body=100_000)
    async with served(url=sqlite_url, limits=limits) as server, server.tab() as tab, quiet_log():
        await tab.send("rpc", id="big", method="echo", args=["x" * 200_000])
        await tab.send("rpc", id="fits", method="echo", args=["x" * 90_000])
        await tab.wait("rpc", id="fits")
        await healthy(tab)
        (refused,) = tab.all("rpc", id="big")
        assert not refused["success"]
        assert "too large" in refused["error"]


async def test_ten_thousand_frames_in_a_row(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab, server.tab() as other:
        async with quiet_log():
            junk = ["", "{", '{"type":"x"}', '{"type":"cf_agent_stream_resume_request"}',
                '{"type":"cf_agent_chat_request_cancel","id":"no"}', '{"type":"rpc","id":"r"}',
                '{"type":"cf_agent_state","state":{"counter":1}}']  # fmt: skip
            for n in range(10_000):
                await tab.raw(junk[n % len(junk)])
            await asyncio.wait_for(healthy(tab), LONG)
            await tab.answered("r1", "say 2 words")
            assert tab.text("r1") == "w1 w2"
            await other.done("r1")
            probes = len([n for n in range(10_000) if n % len(junk) == 3])
            assert len(tab.all("cf_agent_stream_resume_none")) == probes


async def test_many_calls_with_one_id_are_answered_once_each(sqlite_url: str) -> None:
    async with served(url=sqlite_url) as server, server.tab() as tab:
        for n in range(100):
            await tab.send("rpc", id="same", method="echo", args=[n])
        await tab.until(lambda: len(tab.all("rpc", id="same")) == 100)
        await tab.call("echo")
        results = [each["result"] for each in tab.all("rpc", id="same")]
        assert sorted(results) == [*range(100)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
frames = st.sampled_from([*GOOD]).flatmap(
    lambda kind: st.fixed_dictionaries(
        {"type": st.just(kind)},
        optional={name: json_values | st.just(GOOD[kind][name]) for name in GOOD[kind]},
    )
)


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
@given(st.lists(frames, min_size=80, max_size=150))
def test_any_frames_at_all_leave_a_healthy_connection(sent: list[dict[str, Any]]) -> None:
    """Whoever asks for millions of frames gets them, so nobody does that here."""
    sent = [frame for frame in sent if frame.get("method") not in ("countTo", "countAndFail")]

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with served(url=f"sqlite:///{folder}/store.db") as server:
                async with server.tab() as tab, quiet_log():
                    for frame in sent:
                        await tab.raw(json.dumps(frame))
                    await healthy(tab)
                    await tab.answered("last", "say 2 words")

    asyncio.run(run())
