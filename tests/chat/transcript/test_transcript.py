"""The transcript: a tree of messages, of which nothing is ever lost or cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    asked,
    counts,
    inbox,
    rows,
    said,
    talker,
    until_running,
)

from outlast.agent.agent import parts_of
from outlast.chat.transcript import transcript as transcript_module
from outlast.chat.transcript.transcript import Transcript
from outlast.core import json
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time


def message(id: str, text: str = "", role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": text or id}], **fields}


async def path_in(host: Any, Talker: Any) -> list[str]:
    return said(await host.get(Talker, "a").get_messages())


# --- branches ------------------------------------------------------------------------------------


async def test_another_answer_is_a_branch_beside_the_first(world: World) -> None:
    Talker = talker(model := answering("A1", "A2", "A3", "B"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1")
    second = await a.regenerate()
    third = await a.regenerate(second.message.id)
    ids = [turn.message.id for turn in (first, second, third)]
    assert len(set(ids)) == 3
    assert [asked(request) for request in model.requests] == [["u1"]] * 3
    assert [len(request.messages) for request in model.requests] == [1, 1, 1]
    assert said(await a.get_messages()) == ["user: u1", "assistant: A3"]
    for id in ids:
        assert [each.id for each in await a.get_branches(id)] == ids
        assert (await a.get_message(id)).id == id
    assert await a.select_branch(ids[0])
    assert said(await a.get_messages()) == ["user: u1", "assistant: A1"]
    await a.save_messages("u2")
    assert said(await a.get_messages())[1:] == ["assistant: A1", "user: u2", "assistant: B"]
    assert await a.select_branch(ids[1])
    assert said(await a.get_messages()) == ["user: u1", "assistant: A2"]
    host = await world.next_life()
    a = host.get(Talker, "a")
    assert said(await a.get_messages()) == ["user: u1", "assistant: A2"]
    assert await a.select_branch(ids[0])  # goes on where that branch ended
    assert said(await a.get_messages())[1:] == ["assistant: A1", "user: u2", "assistant: B"]
    user = (await a.get_messages())[0].id
    assert await a.select_branch(user)  # the newest of all below it
    assert said(await a.get_messages())[-1] == "assistant: B"
    assert not await a.select_branch("unknown")
    assert await a.get_branches("unknown") == []
    assert await a.get_message("unknown") is None
    assert (await counts(host, "messages"))["messages"] == 6


async def test_an_earlier_answer_can_be_made_again(world: World) -> None:
    Talker = talker(model := answering("A1", "A2", "A1 again"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1")
    await a.save_messages("u2")
    turn = await a.regenerate(first.message.id)
    assert turn.status == "completed"
    assert asked(model.requests[-1]) == ["u1"]
    before = said(await a.get_messages())
    assert before == ["user: u1", "assistant: A1 again"]
    host = await world.next_life()
    assert await path_in(host, Talker) == before
    await host.get(Talker, "a").select_branch(first.message.id)
    assert len(await path_in(host, Talker)) == 4


async def test_an_answer_on_another_branch_is_made_again_in_its_own_conversation(
    world: World,
) -> None:
    Talker = talker(model := answering("A1", "B1", "A2", "B1 again"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    one = await a.save_messages("u1")
    under_one = await a.save_messages("u2 on the first branch")
    await a.regenerate(one.message.id)
    turn = await a.regenerate(under_one.message.id)  # its question is not on the path
    assert turn.message.text == "B1 again"
    assert asked(model.requests[-1]) == ["u1", "u2 on the first branch"]
    order = ["user: u1", "assistant: A1", "user: u2 on the first branch", "assistant: B1 again"]
    assert said(await a.get_messages()) == order
    host = await world.next_life()
    assert await path_in(host, Talker) == order


async def test_a_question_can_be_answered_again_by_its_own_id(world: World) -> None:
    Talker = talker(answering("A1", "A2"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages(message("u1"))
    turn = await a.regenerate("u1")
    assert said(await a.get_messages()) == ["user: u1", "assistant: A2"]
    assert len(await a.get_branches(turn.message.id)) == 2


@pytest.mark.invariant("F11")
async def test_an_interrupted_second_answer_is_kept_beside_the_first(world: World) -> None:
    Talker = talker(model := answering("A1", Step.text("A2 ", delay=1) + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1")
    second = asyncio.create_task(a.regenerate())
    await asyncio.sleep(2)
    await world.stop()
    await asyncio.gather(second, return_exceptions=True)
    host = await world.next_life()
    await host.until_settled()
    a = host.get(Talker, "a")
    assert said(await a.get_messages()) == ["user: u1", "assistant: A2 "]
    assert len(await a.get_branches(first.message.id)) == 2
    await world.stop()
    assert len(model.requests) == 2


@pytest.mark.invariant("F2", "F3")
async def test_an_interrupted_continuation_extends_its_message_and_changes_no_other(
    world: World,
) -> None:
    Talker = talker(
        model := answering("A1", "A2", "A3", Step.text(" and", delay=1) + Step.stalls())
    )
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    for n in (1, 2, 3):
        await a.save_messages(f"u{n}")
    before = await rows(host, "messages", "id, body", "number")
    going_on = asyncio.create_task(a.continue_last_turn())
    await asyncio.sleep(2)
    await world.stop()
    await asyncio.gather(going_on, return_exceptions=True)
    host = await world.next_life()
    await host.until_settled()
    after = await rows(host, "messages", "id, body", "number")
    assert after[:-1] == before[:-1]
    assert len(after) == 6
    last = (await host.get(Talker, "a").get_messages())[-1]
    assert (last.id, last.text.replace(" ", "")) == (before[-1][0], "A3and")
    await world.stop()
    assert len(model.requests) == 4


# --- adding --------------------------------------------------------------------------------------


async def test_messages_that_are_added_at_once_are_all_part_of_the_conversation(
    world: World,
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await asyncio.gather(
        *(a.add_messages(f"added {n}") for n in range(20)),
        a.save_messages("saved"),
        *(a.add_messages([f"more {n}", f"and more {n}"]) for n in range(10)),
    )
    before = said(await a.get_messages())
    assert len(before) == 42
    assert before.index("assistant: Hello") > before.index("user: saved")
    assert len({line for line in before if line.startswith("user")}) == 41
    for n in range(10):
        assert before.index(f"user: and more {n}") > before.index(f"user: more {n}")
    host = await world.next_life()
    assert await path_in(host, Talker) == before


async def test_what_is_added_while_an_answer_is_made_comes_after_it(world: World) -> None:
    Talker = talker(model := answering(Step.text("one two three", delay=1), "Next"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = asyncio.create_task(a.save_messages("u1"))
    await until_running(host, Talker)
    await a.add_messages("note 1")
    await asyncio.sleep(1)
    await a.add_messages(["note 2", "note 3"])
    await turn
    order = ["user: u1", "assistant: one two three", *(f"user: note {n}" for n in (1, 2, 3))]
    assert said(await a.get_messages()) == order
    host = await world.next_life()
    assert await path_in(host, Talker) == order
    await host.get(Talker, "a").save_messages("u2")
    assert asked(model.requests[-1]) == ["u1", "note 1", "note 2", "note 3", "u2"]


@pytest.mark.parametrize("ending", ["settled", "interrupted"])
async def test_a_branch_that_is_selected_while_an_answer_is_made_stays_selected(
    world: World, ending: str
) -> None:
    slow = Step.text("A3 ", delay=1) + Step.stalls(None if ending == "interrupted" else 1)
    Talker = talker(model := answering("A1", "A2", slow))
    host = await world.host(Talker, shutdown_timeout=0)
    a = host.get(Talker, "a")
    first = await a.save_messages("u1")
    await a.regenerate()
    turn = asyncio.create_task(a.save_messages("u2"))
    await until_running(host, Talker)
    assert await a.select_branch(first.message.id)
    await asyncio.sleep(1.5)
    if ending == "settled":
        await turn
    await world.stop()
    await asyncio.gather(turn, return_exceptions=True)
    host = await world.next_life()
    await host.until_settled()
    a = host.get(Talker, "a")
    assert said(await a.get_messages()) == ["user: u1", "assistant: A1"]
    (answer,) = [body for (body,) in await rows(host, "messages", "body") if "A3" in body]
    await a.select_branch(json.decode(answer)["id"])
    assert said(await a.get_messages()) == [
        "user: u1",
        "assistant: A2",
        "user: u2",
        "assistant: A3 ",
    ]
    await world.stop()
    assert len(model.requests) == 3


async def test_a_message_is_added_once(world: World) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    results = await asyncio.gather(*(a.add_messages(message("m1", f"{n}")) for n in range(10)))
    assert sorted(len(result) for result in results) == [0] * 9 + [1]
    assert said(await a.get_messages()) == ["user: 0"]
    await a.save_messages("u2")
    assert await a.add_messages(message("m1", "late")) == []
    assert said(await a.get_messages()) == ["user: 0", "user: u2", "assistant: Hello"]


async def test_messages_of_any_role_can_be_added(world: World) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.add_messages([message("s", "Be kind.", "system"), message("a", "Hi!", "assistant")])
    assert model.requests == []
    await a.save_messages("u1")
    roles = [each.role for each in await a.get_messages()]
    assert roles == ["system", "assistant", "user", "assistant"]
    assert len(model.requests[0].messages) == 3
    assert await inbox(host, "outcome") == [("completed",)]


STRANGE = {
    "id": "m1",
    "role": "user",
    "createdAt": "2031-01-01T00:00:00Z",
    "metadata": {"tags": ["a", 1, None, 2.5], "π": "\u2028"},
    "parts": [
        {"type": "text", "text": "héllo \U0001f600 \u0000", "cacheControl": {"ttl": 5}},
        {"type": "hologram", "shape": [[1, 2], {}], "id": 7},
        {"type": "data-weather", "id": "w", "data": {"t": -3}},
        {
            "type": "tool-ask",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {},
            "output": 1,
        },
    ],
    "zzz": None,
}


async def test_what_outlast_does_not_know_comes_back_as_it_was(world: World) -> None:
    Talker = talker(answering("Hello"))
    mine = {"channel": "web", "turnMetadata": {"x": 1}}
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await a.save_messages(STRANGE)
    await a.add_messages({**STRANGE, "id": "m2", "metadata": {**STRANGE["metadata"], **mine}})
    host = await world.next_life()
    found = await host.get(Talker, "a").get_messages()
    assert json.encode(found[0].raw) == json.encode(STRANGE)
    assert json.encode(found[2].raw) == json.encode({**STRANGE, "id": "m2"})


async def test_nobody_can_change_what_is_stored_through_what_was_handed_over(
    world: World,
) -> None:
    Talker = talker(answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    mine = message("m1", "mine")
    await a.add_messages(mine)
    mine["parts"][0]["text"] = "changed"
    assert said(await a.get_messages()) == ["user: mine"]


# --- the window ----------------------------------------------------------------------------------


@pytest.mark.invariant("O2")
async def test_a_long_conversation_is_kept_whole_while_a_part_of_it_is_in_memory(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_module, "WINDOW_BYTES", 2000)
    Talker = talker(model := answering("x" * 100))
    for life in "123":
        async with hosting(Talker, url=store_url, life=life) as host:
            a = host.get(Talker, "a")
            for n in range(10):
                await a.save_messages(message(f"u{life}-{n}", "y" * 100))
                path = parts_of(agent_of(host, Talker))[Transcript].path
                assert sum(len(json.encode(each)) for each in path) <= 2000 * 1.25
            in_memory = await a.get_messages()
            assert 4 <= len(in_memory) < 20
            assert in_memory[-2].id == f"u{life}-9"
    assert max(len(request.messages) for request in model.requests) < 20
    async with hosting(Talker, url=store_url, life="4") as host:
        a = host.get(Talker, "a")
        stored = await rows(host, "messages", "id, parent, body", "number")
        assert len(stored) == 60
        assert [parent for _, parent, _ in stored] == [None, *(id for id, *_ in stored[:-1])]
        assert all(len(body) > 100 for *_, body in stored)
        assert (await a.save_messages(message("u1-0", "again"))).status == "skipped"
        first = (await a.get_message("u1-0")).raw
        assert first["parts"][0]["text"] == "y" * 100
        turn = await a.regenerate(stored[1][0])  # far before the window
        assert turn.status == "completed"
        assert len(model.requests[-1].messages) == 1
        assert [each.id for each in await a.get_messages()] == ["u1-0", turn.message.id]


@pytest.mark.invariant("O2")
async def test_the_last_messages_are_shown_however_large_they_are(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_module, "WINDOW_BYTES", 100)
    Talker = talker(model := answering("x" * 5000))
    for life in "123":
        async with hosting(Talker, url=store_url, life=life) as host:
            await host.get(Talker, "a").save_messages("y" * 5000)
            if life == "2":
                await host.get(Talker, "a").continue_last_turn()
    async with hosting(Talker, url=store_url, life="4") as host:
        found = await host.get(Talker, "a").get_messages()
        assert [each.role for each in found] == ["user", "assistant"] * 2
        assert [len(each.text) for each in found][::2] == [5000, 5000]
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 5]


async def test_a_conversation_within_the_window_is_the_same_before_and_after_a_restart(
    world: World,
) -> None:
    Talker = talker(ScriptedModel.answering(lambda messages: f"{len(messages)} messages"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    for n in range(30):
        await a.save_messages(f"u{n}")
    before = await a.get_messages()
    host = await world.next_life()
    after = await host.get(Talker, "a").get_messages()
    assert after == before
    assert len(after) == 60
