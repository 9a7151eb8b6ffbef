"""Nothing that is stored keeps a chat agent from booting, or from its next turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, meddle, rows, said, talker

from outlast.testing import Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


def message(id: str, role: str = "user") -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": id}]}


async def _conversation(url: str, *meddling: tuple[Any, ...]) -> type[Any]:
    """Two turns that have ended, and then somebody at the rows."""
    Talker = talker(answering("Hello"))
    async with hosting(Talker, url=url) as host:
        a = host.get(Talker, "a")
        await a.save_messages(message("u1"))
        await a.save_messages(message("u2"))
        for sql, *arguments in meddling:
            await meddle(agent_of(host, Talker), sql, *arguments)
    return Talker


GARBAGE = ["", "no JSON", "null", "[]", "5", '{"id":"u1"', "{}", '{"id":"other","role":"user"}']


@pytest.mark.invariant("O3")
@pytest.mark.parametrize(
    ("which", "body"), [*(("first", body) for body in GARBAGE), ("last", "no JSON"), ("last", "{}")]
)
async def test_a_message_that_cannot_be_read_is_left_out(
    store_url: str, body: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = "role = 'user' AND parent IS NULL" if which == "first" else "number = 4"
    Talker = await _conversation(store_url, (f"UPDATE messages SET body = ? WHERE {target}", body))
    for life in "23":
        async with hosting(Talker, url=store_url, life=life) as host:
            a = host.get(Talker, "a")
            found = await a.get_messages()
            assert len(found) == (3 if life == "2" else 5)
            if life == "2":
                assert (await a.save_messages("u3")).status == "completed"
                lines = said(await a.get_messages())
            else:
                assert said(found) == lines
                await a.get_branches(found[0].id)
                assert (await a.regenerate()).status == "completed"
    assert "cannot read" in caplog.text


@pytest.mark.parametrize(
    "value", ["", "no JSON", "5", "[]", "{}", "null", '"unknown"', '"' + "x" * 5000 + '"']
)
async def test_a_conversation_whose_end_is_not_known_goes_on_with_the_newest_message(
    store_url: str, value: str
) -> None:
    Talker = await _conversation(
        store_url, ("UPDATE facts SET value = ? WHERE name = 'chat:leaf'", value)
    )
    for life in "23":
        async with hosting(Talker, url=store_url, life=life) as host:
            a = host.get(Talker, "a")
            lines = said(await a.get_messages())
            assert lines[:4] == ["user: u1", "assistant: Hello", "user: u2", "assistant: Hello"]
            if life == "2":
                await a.save_messages("u3")
            else:
                assert lines[4:] == ["user: u3", "assistant: Hello"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(
            ("messages", garbage)
            for garbage in (*GARBAGE, "[5]", '[{"role":"user"}]', '[{"id":5}]')
        ),
        ("options", "no JSON"),
        ("options", "[]"),
        ("options", '{"body":5}'),
        ("policy", "unknown"),
        ("policy", "debounce:soon"),
        ("kind", "unknown"),
        ("origin", ""),
        ("state", "unknown"),
        ("target", "unknown"),
    ],
)
async def test_an_entry_that_makes_no_sense_does_not_hold_up_those_behind_it(
    world: World, column: str, value: str
) -> None:
    Talker = talker(answering(Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    for n in range(3):
        await a.submit_messages(f"u{n}", submission_id=f"s{n}")
    await asyncio.sleep(1)
    sql = f"UPDATE inbox SET {column} = ? WHERE id = 's1'"
    await meddle(agent_of(host, Talker), sql, value)
    await world.stop()
    Talker.model = answering("Hello")
    host = await world.next_life()
    async with asyncio.timeout(60):
        await host.until_settled()
    a = host.get(Talker, "a")
    outcomes = dict(await inbox(host, "id, outcome"))
    assert outcomes["s0"] == "interrupted"
    assert outcomes["s2"] == "completed"
    assert said(await a.get_messages())[-2:] == ["user: u2", "assistant: Hello"]
    assert (await a.save_messages("u3")).status == "completed"
    assert (await a.inspect_submission("s2")).status == "completed"


@pytest.mark.parametrize("value", ["", "no JSON", "\x01"])
async def test_submissions_can_be_listed_whatever_became_of_their_metadata(
    world: World, value: str
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.submit_messages("u0", submission_id="s0", metadata={"n": 0})
    await a.submit_messages("u1", submission_id="s1", metadata={"n": 1})
    await host.until_settled()
    await meddle(agent_of(host, Talker), "UPDATE inbox SET metadata = ? WHERE id = 's0'", value)
    found = await a.list_submissions()
    assert [(each.id, each.metadata) for each in found] == [("s1", {"n": 1}), ("s0", None)]
    assert (await a.inspect_submission("s0")).metadata is None


DAMAGE: dict[str, list[tuple[Any, ...]]] = {
    "garbage": [("UPDATE streams SET body = ?", "no JSON")],
    "empty": [("UPDATE streams SET body = ?", "")],
    "too short": [("UPDATE streams SET body = ? WHERE seq = 0", "{}")],
    "too long": [("UPDATE streams SET body = ? WHERE seq = 0", "{}\n" * 50)],
    "one missing": [
        (
            "DELETE FROM streams WHERE seq ="
            " (SELECT max(seq) FROM streams WHERE seq < (SELECT max(seq) FROM streams))",
        )
    ],
    "one garbage": [
        (
            "UPDATE streams SET body = ? WHERE seq ="
            " (SELECT max(seq) FROM streams WHERE seq < (SELECT max(seq) FROM streams))",
            "no JSON",
        )
    ],
    "the first missing": [("DELETE FROM streams WHERE seq = 0",)],
    "all missing": [("DELETE FROM streams",)],
    "foreign chunks": [("UPDATE streams SET body = ? WHERE seq = 0", '{"type":"hologram"}\n[]')],
}


@pytest.mark.invariant("F9")
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *(("message", damage) for damage in DAMAGE),
        ("continue", "garbage"),
        ("continue", "too short"),
    ],
)
async def test_a_damaged_stream_neither_keeps_the_agent_from_booting_nor_the_next_turn(
    store_url: str, damage: str, kind: str
) -> None:
    slow = Step.text("one two three four five", delay=1) + Step.stalls()
    Talker = talker(answering("A1", slow))
    async with hosting(Talker, url=store_url, shutdown_timeout=0) as host:
        a = host.get(Talker, "a")
        await a.save_messages("u1", idempotency_key="k1")
        await meddle(agent_of(host, Talker), "DELETE FROM streams")
        work = a.continue_last_turn() if kind == "continue" else a.save_messages("u2")
        turn = asyncio.create_task(work)
        await asyncio.sleep(5.5)
        assert len(await rows(host, "streams")) > 4
        for sql, *arguments in DAMAGE[damage]:
            await meddle(agent_of(host, Talker), sql, *arguments)
    await asyncio.gather(turn, return_exceptions=True)
    Talker.model = answering("Next")
    for life in "23":
        async with hosting(Talker, url=store_url, life=life) as host:
            async with asyncio.timeout(60):
                await host.until_settled()
            assert (await inbox(host, "outcome"))[1] == ("interrupted",)
            a = host.get(Talker, "a")
            lines = said(await a.get_messages())
            assert lines[0] == "user: u1"
            assert lines[1].startswith("assistant: A1")
            if damage in ("one missing", "one garbage"):
                assert "three five" in " ".join(lines)
            assert (await a.save_messages(f"u in {life}")).message.text == "Next"


async def test_a_running_turn_without_its_answer_id_is_settled_all_the_same(
    world: World,
) -> None:
    Talker = talker(answering(Step.text("one ", delay=1) + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    await host.get(Talker, "a").submit_messages("u1")
    await asyncio.sleep(2)
    sql = "UPDATE inbox SET message_id = NULL, target = NULL"
    await meddle(agent_of(host, Talker), sql)
    await world.stop()
    Talker.model = answering("Next")
    host = await world.next_life()
    async with asyncio.timeout(60):
        await host.until_settled()
    assert [state for state, _ in await inbox(host)] == ["ended"]
    assert (await host.get(Talker, "a").save_messages("u2")).status == "completed"


@pytest.mark.invariant("O3")
async def test_parents_that_go_round_in_a_circle_keep_nobody_waiting(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    round_about = "UPDATE messages SET parent = (SELECT id FROM messages WHERE number = 4)"
    Talker = await _conversation(store_url, (f"{round_about} WHERE number = 1",))
    async with hosting(Talker, url=store_url, life="2") as host:
        a = host.get(Talker, "a")
        found = await a.get_messages()
        assert said(found) == ["user: u1", "assistant: Hello", "user: u2", "assistant: Hello"]
        assert await a.select_branch(found[0].id)
        assert (await a.save_messages("u3")).status == "completed"
        assert len(await a.get_messages()) == 6
    assert "form a cycle" in caplog.text
