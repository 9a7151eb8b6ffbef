"""What becomes of messages that arrive while others are waiting or being answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conversation import (
    agent_of,
    answering,
    asked,
    inbox,
    leftovers,
    said,
    talker,
    until_running,
)

from outlast import Debounce, Host
from outlast.agent.agent import parts_of
from outlast.chat.admission import Admission
from outlast.chat.inbox.concurrency import policy_of
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.testing import Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

SLOW = Step.text("one two", delay=1)
TWO = ["assistant: one two"]


async def send(
    host: Host, Talker: type[Any], text: str, concurrency: Any, id: str | None = None
) -> Any:
    """A message as a server hands it in."""
    await host.get(Talker, "a").get_messages()
    asking = parts_of(agent_of(host, Talker))[Admission]
    request = Request("message", "chat", asking.messages(text), id=id or f"id of {text}")
    return await asking.message(request, concurrency)


def users(count: int) -> list[str]:
    return [f"user: u{n}" for n in range(count)]


# policy, what is stored in the end, the last user message of each model request
TABLE: list[tuple[Any, list[str], list[str]]] = [
    (
        "queue",
        [line for user in users(4) for line in (user, *TWO)],
        ["u0", "u1", "u2", "u3"],
    ),
    ("latest", ["user: u0", *TWO, "user: u1", "user: u2", "user: u3", *TWO], ["u0", "u3"]),
    ("merge", ["user: u0", *TWO, "user: u1", "user: u2", "user: u3", *TWO], ["u0", "u3"]),
    ("drop", ["user: u0", *TWO], ["u0"]),
    (Debounce(0.2), ["user: u0", *TWO, "user: u1", "user: u2", "user: u3", *TWO], ["u0", "u3"]),
    (Debounce(5), [*users(4), *TWO], ["u3"]),
    ("debounce", ["user: u0", *TWO, "user: u1", "user: u2", "user: u3", *TWO], ["u0", "u3"]),
]


@pytest.mark.invariant("D3")
@pytest.mark.parametrize(("policy", "stored", "answered"), TABLE, ids=[str(p) for p, *_ in TABLE])
async def test_messages_that_arrive_during_a_turn(
    world: World, policy: Any, stored: list[str], answered: list[str]
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    await send(host, Talker, "u0", policy)
    await asyncio.sleep(1)
    found = [await send(host, Talker, f"u{n}", policy) for n in (1, 2, 3)]
    assert all((entry is None) == (policy == "drop") for entry, _ in found)
    await host.until_settled()
    assert said(await host.get(Talker, "a").get_messages()) == stored
    assert [asked(request)[-1] for request in model.requests] == answered
    outcomes = [outcome for _, outcome in await inbox(host)]
    assert outcomes.count("completed") == len(answered)
    assert set(outcomes) <= {"completed", "skipped"}
    assert leftovers(agent_of(host, Talker)) == {}


@pytest.mark.invariant("D2", "D3")
@pytest.mark.parametrize(
    ("policy", "messages", "calls"),
    [("queue", 8, 4), ("latest", 5, 1), ("merge", 5, 1), ("drop", 2, 1), (Debounce(1), 5, 1)],
    ids=str,
)
async def test_messages_of_the_same_moment_overlap_from_their_acceptance_on(
    store_url: str, policy: Any, messages: int, calls: int
) -> None:
    for turn in range(5):
        Talker = talker(model := answering(SLOW))
        async with hosting(Talker, url=store_url, life=f"{turn}") as host:
            await host.get(Talker, "a").clear_messages()
            await asyncio.gather(
                *(send(host, Talker, f"u{n}", policy, f"{turn} {n}") for n in range(4))
            )
            await host.until_settled()
            assert len(await host.get(Talker, "a").get_messages()) == messages
            assert len(model.requests) == calls


@pytest.mark.invariant("D2")
@pytest.mark.parametrize("policy", ["latest", "merge"])
async def test_a_message_that_is_still_being_accepted_overlaps_already(
    world: World, policy: str
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    await host.get(Talker, "a").get_messages()
    inbox_of = parts_of(agent_of(host, Talker))[Inbox]
    existing = inbox_of.existing

    async def slowly(id: str | None, key: str | None) -> Any:
        if id == "id of u1":
            await asyncio.sleep(0.5)
        return await existing(id, key)

    inbox_of.existing = slowly
    await asyncio.gather(*(send(host, Talker, f"u{n}", policy) for n in range(2)))
    await host.until_settled()
    assert said(await host.get(Talker, "a").get_messages()) == [*users(2), *TWO]
    assert len(model.requests) == 1


@pytest.mark.invariant("D3")
@pytest.mark.parametrize(
    ("policy", "lines", "calls"),
    [
        ("queue", [line for user in users(4) for line in (user, *TWO)][2:], ["u1", "u2", "u3"]),
        ("latest", [*users(4)[1:], *TWO], ["u3"]),
        ("merge", [*users(4)[1:], *TWO], ["u3"]),
        (Debounce(3), [*users(4)[1:], *TWO], ["u3"]),
    ],
    ids=str,
)
async def test_policies_hold_across_a_restart(
    world: World, policy: Any, lines: list[str], calls: list[str]
) -> None:
    Talker = talker(model := answering(Step.text("par ", delay=1) + Step.stalls()))
    host = await world.host(Talker, shutdown_timeout=0)
    await send(host, Talker, "u0", "queue")
    await asyncio.sleep(2)
    await send(host, Talker, "u1", policy)
    await send(host, Talker, "u2", policy)
    await world.stop()
    model.requests.clear()
    model.answers[:] = [SLOW]
    host = await world.next_life()
    await send(host, Talker, "u3", policy)
    await host.until_settled()
    stored = said(await host.get(Talker, "a").get_messages())
    assert stored[:2] == ["user: u0", "assistant: par "]
    if policy in ("latest", "merge"):  # the boot may have begun with those that waited
        assert [line for line in stored if line.startswith("user")] == users(4)
        assert asked(model.requests[-1])[-1] == "u3"
        assert len(model.requests) <= 2
    else:
        assert stored[2:] == lines
        assert [asked(request)[-1] for request in model.requests] == calls


async def test_a_debounced_message_is_answered_when_nothing_has_come_for_so_long(
    world: World,
) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    for n in range(5):
        await send(host, Talker, f"u{n}", Debounce(2))
        await asyncio.sleep(1.5)
        assert model.requests == []
    await asyncio.sleep(0.6)
    assert len(model.requests) == 1
    await host.until_settled()
    assert said(await host.get(Talker, "a").get_messages()) == [*users(5), "assistant: Hello"]
    await send(host, Talker, "u5", Debounce(2))
    await host.until_settled()
    assert len(model.requests) == 2


async def test_what_is_said_by_code_is_never_superseded(world: World) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    await send(host, Talker, "u0", "latest")
    await until_running(host, Talker)
    await a.submit_messages("code 1")
    await send(host, Talker, "u1", "latest")
    await a.submit_messages("code 2")
    await send(host, Talker, "u2", "latest")
    await host.until_settled()
    assert [asked(request)[-1] for request in model.requests] == [
        "u0",
        "code 1",
        "code 2",
        "u2",
    ]
    assert said(await a.get_messages())[4:6] == ["user: u1", "user: code 2"]


@pytest.mark.invariant("C2")
@pytest.mark.parametrize("policy", ["queue", "latest", "merge", "drop", Debounce(1)], ids=str)
async def test_a_message_sent_again_is_the_first_one_whatever_the_policy(
    world: World, policy: Any
) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    first, accepted = await send(host, Talker, "u0", policy)
    await asyncio.sleep(1.5)
    again, accepted_again = await send(host, Talker, "u0", policy)
    assert (first.id, accepted, accepted_again) == (again.id, True, False)
    await host.until_settled()
    late, _ = await send(host, Talker, "u0", policy)
    assert late.outcome == "completed"
    assert len(model.requests) == 1
    assert said(await host.get(Talker, "a").get_messages()) == ["user: u0", *TWO]


async def test_dropping_ends_with_the_turn(world: World) -> None:
    Talker = talker(model := answering(SLOW))
    host = await world.host(Talker)
    for n in range(3):
        assert (await send(host, Talker, f"u{n}", "drop"))[1]
        assert (await send(host, Talker, "dropped", "drop")) == (None, False)
        await host.until_settled()
    assert len(model.requests) == 3
    assert "user: dropped" not in said(await host.get(Talker, "a").get_messages())


@pytest.mark.invariant("D4")
@pytest.mark.parametrize("way", ["clear", "reset", "cancel"])
async def test_a_debounce_that_is_over_holds_up_nothing(world: World, way: str) -> None:
    Talker = talker(model := answering("Hello"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    entry, _ = await send(host, Talker, "u0", Debounce(3600))
    await asyncio.sleep(5)
    if way == "clear":
        await a.clear_messages()
    elif way == "reset":
        await a.reset_turns()
    else:
        assert await a.cancel_chat(entry.id)
    begun = asyncio.get_running_loop().time()
    assert (await a.save_messages("u1")).status == "completed"
    assert asyncio.get_running_loop().time() - begun < 1
    await asyncio.sleep(7200)
    kept = [] if way == "clear" else ["user: u0"]
    assert said(await a.get_messages()) == [*kept, "user: u1", "assistant: Hello"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("policy", ["later", "", 5, None])
async def test_a_policy_that_does_not_exist_is_refused(sqlite_url: str, policy: Any) -> None:
    with pytest.raises(ValueError, match="queue, latest, merge, drop"):
        policy_of(policy)
    assert policy_of("debounce") == policy_of(Debounce()) == "debounce:750"
