"""A model that fails, breaks off or falls silent: a visible outcome, and the queue goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from conversation import agent_of, answering, inbox, leftovers, rows, said, talker

from outlast import TurnConfig
from outlast.core import json
from outlast.testing import ScriptedModel, Step
from support import World, hosting

pytestmark = pytest.mark.virtual_time

RETRYABLE = ["rate_limit", "overloaded", "connection"]
LASTING = ["context_overflow", "quota", "rejected"]


async def asked_twice(url: str, Talker: type[Any]) -> tuple[Any, Any, list[Any]]:
    """A turn that may fail, one behind it, and the chunks of the first."""
    async with hosting(Talker, url=url) as host:
        a = host.get(Talker, "a")
        first, second = await asyncio.gather(a.save_messages("u1"), a.save_messages("u2"))
        stored = await rows(host, "streams", "turn, body", "turn, seq")
        bodies = [body for turn, body in stored if turn == first.request_id]
        chunks = [json.decode(line) for body in bodies for line in body.split("\n")]
        assert leftovers(agent_of(host, Talker)) == {}
        return first, second, chunks


@pytest.mark.parametrize("kind", RETRYABLE)
async def test_what_passes_is_tried_again_before_anything_was_said(
    store_url: str, kind: Any
) -> None:
    model = ScriptedModel(
        Step.fails(kind), Step.fails(kind), "Hello", "Next", by="request", repeat=True
    )
    first, second, chunks = await asked_twice(store_url, talker(model))
    assert (first.status, first.message.text) == ("completed", "Hello")
    assert (second.status, second.message.text) == ("completed", "Next")
    assert "error" not in [chunk["type"] for chunk in chunks]
    assert len(model.requests) == 4


@pytest.mark.parametrize(
    ("kind", "requests"), [*((k, 3) for k in RETRYABLE), *((k, 1) for k in LASTING)]
)
async def test_a_model_that_goes_on_failing_ends_the_turn_with_an_error(
    store_url: str, kind: Any, requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = answering(*[Step.fails(kind)] * requests, "Next")
    first, second, chunks = await asked_twice(store_url, talker(model))
    assert (first.status, first.message) == ("error", None)
    assert first.error == chunks[-1]["errorText"]
    assert f"turn {first.request_id} failed: ModelFailed: the model scripted failed" in caplog.text
    assert [chunk["type"] for chunk in chunks] == ["start", "start-step", "error"]
    assert (second.status, second.message.text) == ("completed", "Next")
    assert len(model.requests) == requests + 1


@pytest.mark.parametrize(
    ("of_class", "of_turn", "requests"),
    [(2, None, 3), (0, None, 1), (5, None, 6), (2, 0, 1), (0, 1, 2)],
)
async def test_how_often_a_request_is_tried_is_a_setting(
    sqlite_world: World, of_class: int, of_turn: int | None, requests: int
) -> None:
    Talker = talker(
        model := answering(Step.fails("overloaded")),
        max_retries=of_class,
        before_turn=lambda _, context: TurnConfig(max_retries=of_turn),
    )
    host = await sqlite_world.host(Talker)
    assert (await host.get(Talker, "a").save_messages("u1")).status == "error"
    await sqlite_world.stop()
    assert len(model.requests) == requests


@pytest.mark.parametrize("kind", [*RETRYABLE, *LASTING])
async def test_what_was_said_before_a_failure_is_kept_and_not_said_again(
    store_url: str, kind: Any
) -> None:
    model = answering(Step.text(chunks=["So far "]) + Step.fails(kind), "Next")
    Talker = talker(model)
    first, second, chunks = await asked_twice(store_url, Talker)
    assert (first.status, first.message.text) == ("error", "So far ")
    assert first.message.parts[-1]["state"] == "done"
    kinds = [chunk["type"] for chunk in chunks]
    assert kinds == ["start", "start-step", "text-start", "text-delta", "text-end", "error"]
    assert second.message.text == "Next"
    assert len(model.requests) == 2
    async with hosting(Talker, url=store_url, life="2") as host:
        assert said(await host.get(Talker, "a").get_messages()) == [
            "user: u1",
            "assistant: So far ",
            "user: u2",
            "assistant: Next",
        ]


@pytest.mark.parametrize(
    "error", [ValueError("secret"), KeyError("secret"), RuntimeError("a\0b"), TypeError("\ud83d")]
)
async def test_an_error_nobody_expects_is_shown_without_its_details(
    store_url: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Any) -> Any:
        raise error

    Talker = talker(answering("Hello"), get_model=broken)
    first, second, chunks = await asked_twice(store_url, Talker)
    assert (first.status, second.status) == ("error", "error")
    assert first.error == "An error occurred."
    assert f"turn {first.request_id} failed: {type(error).__name__}" in caplog.text
    assert chunks == [{"type": "error", "errorText": "An error occurred."}]


async def test_an_answer_that_breaks_off_is_an_error_and_what_came_is_kept(store_url: str) -> None:
    model = answering(Step.truncated("So far "), "Next")
    first, second, chunks = await asked_twice(store_url, talker(model))
    assert (first.status, first.message.text) == ("error", "So far ")
    assert first.error == "The answer was cut off. Please try again."
    assert chunks[-1]["type"] == "error"
    assert second.status == "completed"


async def test_half_a_call_is_never_run(store_url: str) -> None:
    ran: list[str] = []

    async def act(what: str = "") -> None:
        ran.append(what)

    broken = Step.text("Let me. ") + Step.call("act", '{"what": "x') + Step.fails("rejected")
    Talker = talker(model := answering(broken, "Next"), get_tools=lambda _: [act])
    first, second, _ = await asked_twice(store_url, Talker)
    assert (first.status, second.status) == ("error", "completed")
    assert first.message.text == "Let me. "
    assert ran == []
    states = [part["state"] for part in first.message.parts if part["type"] == "tool-act"]
    assert set(states) <= {"output-error"}
    parts = [part for message in model.requests[1].messages for part in message.parts]
    kinds = [part.part_kind for part in parts]
    assert kinds.count("tool-call") == kinds.count("tool-return") == len(states)


async def test_a_failure_after_a_tool_keeps_what_the_tool_did(store_url: str) -> None:
    async def act() -> str:
        return "done"

    Talker = talker(
        answering(Step.calls("act"), Step.fails("rejected"), "Next"), get_tools=lambda _: [act]
    )
    first, second, _ = await asked_twice(store_url, Talker)
    assert first.status == "error"
    (part,) = [part for part in first.message.parts if part["type"] == "tool-act"]
    assert part["output"] == "done"
    assert second.status == "completed"


# --- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_class", "of_turn", "stalls_after"),
    [
        (5, None, 5),
        (timedelta(seconds=5), None, 5),
        (None, 7, 7),
        (5, 60, 60),
        (5, 0, None),
        (None, None, None),
        (0, None, None),
    ],
)
async def test_a_silent_model_is_given_up_after_a_while(
    sqlite_world: World, of_class: Any, of_turn: Any, stalls_after: float | None
) -> None:
    Talker = talker(
        answering(Step.text("So far ") + Step.stalls(1000) + "and on"),
        chat_stream_stall_timeout=of_class,
        before_turn=lambda _, context: TurnConfig(chat_stream_stall_timeout=of_turn),
    )
    host = await sqlite_world.host(Talker)
    a = host.get(Talker, "a")
    begun = asyncio.get_running_loop().time()
    turn = await a.save_messages("u1")
    took = asyncio.get_running_loop().time() - begun
    if stalls_after is None:
        assert turn.status == "completed"
        assert took >= 1000
    else:
        assert (turn.status, turn.message.text) == ("error", "So far ")
        assert turn.error == "The model stopped answering. Please try again."
        assert stalls_after <= took < stalls_after + 1
    await host.until_settled()
    assert (await inbox(host, "outcome")) == [(turn.status,)]


async def test_a_model_that_is_slow_but_not_silent_is_not_given_up(world: World) -> None:
    Talker = talker(
        answering(Step.text("one two three four five six", delay=4)), chat_stream_stall_timeout=5
    )
    host = await world.host(Talker)
    assert (await host.get(Talker, "a").save_messages("u1")).status == "completed"


@pytest.mark.invariant("E3")
async def test_an_answer_of_any_size_is_stored_whole(world: World) -> None:
    huge = "x" * 3_000_000
    Talker = talker(answering(Step.text(chunks=["a ", huge, " z"])))
    host = await world.host(Talker)
    turn = await host.get(Talker, "a").save_messages("u1")
    assert turn.message.text == f"a {huge} z"
    host = await world.next_life()
    assert len((await host.get(Talker, "a").get_messages())[1].text) == len(huge) + 4


async def test_an_answer_without_a_word_is_no_message(world: World) -> None:
    Talker = talker(answering(Step.text(""), "Next"))
    host = await world.host(Talker)
    a = host.get(Talker, "a")
    turn = await a.save_messages("u1")
    assert turn.message is None
    await a.save_messages("u2")
    assert said(await a.get_messages()) == ["user: u1", "user: u2", "assistant: Next"]
