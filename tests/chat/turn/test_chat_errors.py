"""`on_chat_error` and `classify_chat_error`: told of every failure, and what users are shown of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from conversation import agent_of, answering, failing, inbox, leftovers, reasons, rows, said
from pydantic_ai.toolsets import FunctionToolset

from outlast import ContextOverflow, StepConfig, Think, TurnConfig
from outlast.agent.agent import parts_of
from outlast.chat.run.runner import Runner
from outlast.chat.types.events import ChatRequestFailed
from outlast.testing import Step
from support import World, hosting, listen

pytestmark = pytest.mark.virtual_time

GENERIC = "An error occurred."
SO_FAR = Step.text("So far ")


class Judged(Think):
    """Notes what it is told of failures, and says about them what the test says."""

    chat_recovery = False

    model = answering("Hello")
    log: list[Any] = []
    kind: Any = None
    says: Callable[[Any, Exception], Any]

    def classify_chat_error(self, error: Exception, context: Any) -> Any:
        self.log.append(("classify", error, context))
        if isinstance(self.kind, BaseException):
            raise self.kind
        return self.kind

    def on_chat_error(self, error: Exception, context: Any) -> Any:
        self.log.append(("on_chat_error", error, context))
        return self.says(error)


def judged(says: Any, **members: Any) -> type[Judged]:
    def answer(self: Any, error: Exception) -> Any:
        return says(error)

    return type("Judging", (Judged,), {"says": answer, "log": [], **members})


def broken(*_: Any) -> Any:
    raise ValueError("the secret is 42")


def look() -> str:
    return "seen"


def configured(**config: Any) -> dict[str, Any]:
    return {"before_turn": lambda *_: TurnConfig(**config)}


FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a model that refuses": ({"model": answering(Step.fails("rejected"))}, "stream", "rejected"),
    "a model that fails later": (
        {"model": answering(SO_FAR + Step.fails("overloaded"))},
        "stream",
        "overloaded",
    ),
    "a model that breaks off": (
        {"model": answering(Step.truncated("So far "))},
        "stream",
        "was cut off",
    ),
    "a model that falls silent": (
        {"model": answering(SO_FAR + Step.stalls()), "chat_stream_stall_timeout": 5},
        "stream",
        "sent nothing",
    ),
    "no model": ({"model": None}, "turn", "has no model"),
    "a model that is none": ({"model": 5}, "turn", "got 5"),
    "a model that nobody knows": ({"model": "nobody:nothing"}, "turn", "nobody:nothing"),
    "get_model": ({"get_model": broken}, "turn", "secret"),
    "get_tools": ({"get_tools": broken}, "turn", "secret"),
    "a tool that is none": ({"get_tools": lambda _: [5]}, "turn", "a tool must be a function"),
    "two tools of one name": ({"get_tools": lambda _: [look, look]}, "turn", "look"),
    "get_system_prompt": ({"get_system_prompt": broken}, "turn", "secret"),
    "before_turn": ({"before_turn": broken}, "turn", "secret"),
    "the model of a turn": (configured(model="nobody:nothing"), "turn", "nobody:nothing"),
    "the tools of a turn": (configured(tools=5), "turn", "a tool must be a function"),
    "the type of an answer": (
        configured(output=list[int]),
        "stream",
        "the answer does not validate",
    ),
    "a condition": (
        {
            "model": answering(Step.calls("look")),
            "get_tools": lambda _: [look],
            **configured(stop_when=broken),
        },
        "stream",
        "secret",
    ),
    "before_step": ({"before_step": broken}, "stream", "secret"),
    "the model of a step": (
        {"before_step": lambda *_: StepConfig(model="nobody:nothing")},
        "stream",
        "nobody:nothing",
    ),
}


@pytest.mark.invariant("C9")
@pytest.mark.parametrize("what", FAILURES)
async def test_every_failure_of_a_turn_is_told_once_and_shown_as_the_agent_says(
    world: World, what: str
) -> None:
    members, stage, why = FAILURES[what]
    Judging = judged(lambda _: "Sorry, that did not work.", max_retries=0, **members)
    host = await world.host(Judging)
    failed = listen(host, ChatRequestFailed)
    a = host.get(Judging, "a")
    chunks = await failing(a.stream("u1"))
    await host.until_settled()
    assert leftovers(agent_of(host, Judging)) == {}
    assert said(await a.get_messages())[0] == "user: u1"
    ((id, *stored),) = await inbox(host, "id, outcome, error")
    (reason,) = await reasons(host)
    await world.stop()
    assert chunks[-1] == {"type": "error", "errorText": "Sorry, that did not work."}
    assert [chunk["type"] for chunk in chunks].count("error") == 1
    assert stored == ["error", "Sorry, that did not work."]
    assert why in str(reason), "operators see the original"
    ((what_was_told, error, context),) = Judging.log
    assert what_was_told == "on_chat_error", "without `reactive`, nothing is classified"
    assert why in str(error)
    assert (context.request_id, context.stage, context.messages_persisted) == (id, stage, True)
    assert context.classification is None
    (event,) = failed
    assert (event.request_id, event.stage, event.messages_persisted) == (id, stage, True)


async def test_what_was_said_is_durable_before_anybody_is_told_of_the_failure(
    world: World,
) -> None:
    class Looking(Judged):
        model = answering(SO_FAR + Step.fails("rejected"))

        async def on_chat_error(self, error: Exception, context: Any) -> Any:
            bodies = [body for (body,) in await rows(host, "streams", "body", "seq")]
            seen.append("far " in "".join(bodies))
            return error

    seen: list[bool] = []
    host = await world.host(Looking)
    turn = await host.get(Looking, "a").save_messages("u1")
    assert (turn.status, turn.message.text) == ("error", "So far ")
    await world.stop()
    assert seen == [True]


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def later(error: Exception) -> str:
    await asyncio.sleep(1)
    return "Later."


def cancelled(_: Any) -> None:
    raise asyncio.CancelledError


SECRET = "ValueError: the secret is 42"
SAID: dict[str, tuple[Callable[[Exception], Any], str]] = {
    # what the hook returns, and what everybody gets
    "the error itself": (lambda error: error, GENERIC),
    "nothing": (lambda _: None, GENERIC),
    "a text": (lambda _: "Sorry.", "Sorry."),
    "another error": (lambda _: OSError("Try again."), "Try again."),
    "an error without a text": (lambda _: OSError(), GENERIC),
    "a text that no store takes": (lambda _: "a\0b \ud83d", "a\ufffdb \ufffd"),
    "a number": (lambda _: 5, "5"),
    "later": (later, "Later."),
    "an error that has no words": (lambda _: Rude(), GENERIC),
    "an error of its own": (lambda _: {}["a private key"], GENERIC),
    "a cancellation of its own": (cancelled, GENERIC),
}


@pytest.mark.parametrize("what", SAID)
async def test_users_are_shown_what_the_hook_says_and_nothing_that_it_did_not_mean_to_say(
    world: World, what: str
) -> None:
    says, shown = SAID[what]
    calls: list[Any] = []

    def before_turn(self: Any, context: Any) -> None:
        calls.append(context)
        if len(calls) == 1:
            broken()

    Judging = judged(says, before_turn=before_turn)
    host = await world.host(Judging)
    a = host.get(Judging, "a")
    first = await a.submit_messages("u1")
    assert (await a.save_messages("u2")).message.text == "Hello"
    chunks = [chunk async for _, chunk in a.resume_stream(first.id)]
    found = await a.inspect_submission(first.id)
    assert said(await a.get_messages()) == ["user: u1", "user: u2", "assistant: Hello"]
    assert (await reasons(host))[0] == SECRET
    await world.stop()
    assert chunks == [{"type": "error", "errorText": shown}]
    assert (found.status, found.error) == ("error", shown)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("context_overflow", "context_overflow"),
        *((kind, None) for kind in ("rate_limit", "transient", "fatal", "unknown", None, 5)),
        (ValueError("no idea"), None),
        (asyncio.CancelledError(), None),
    ],
)
async def test_only_an_overflow_is_passed_on_as_what_it_was_classified_as(
    sqlite_world: World, kind: Any, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = answering(Step.fails("context_overflow"), "Next")
    overflow = ContextOverflow(reactive=True)
    Judging = judged(lambda error: error, model=model, kind=kind, context_overflow=overflow)
    host = await sqlite_world.host(Judging)
    a = host.get(Judging, "a")
    turn = await a.save_messages("u1")
    assert (turn.status, turn.message) == ("error", None)
    assert (await a.save_messages("u2")).message.text == "Next"
    await sqlite_world.stop()
    (_, error, before), (_, _, context) = Judging.log
    assert error.kind == "context_overflow"
    assert (before.classification, context.classification) == (None, told)
    logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    raised = "Judging/a: classify_chat_error raised"
    assert (raised in logged) == isinstance(kind, BaseException)


async def test_an_error_is_classified_once_and_only_if_overflows_are_handled(
    sqlite_url: str,
) -> None:
    for overflow, times in (
        (ContextOverflow(), 0),
        (ContextOverflow(reactive=True), 1),
        (ContextOverflow(reactive=True, max_retries=0), 1),
    ):
        model = answering(SO_FAR + Step.fails("rejected"))
        Judging = judged(lambda error: error, model=model, context_overflow=overflow)
        async with hosting(Judging, url=sqlite_url) as host:
            assert (await host.get(Judging, str(overflow)).save_messages("u1")).status == "error"
        assert [what for what, *_ in Judging.log] == ["classify"] * times + ["on_chat_error"]


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_bundled_classifier_s_verdict_is_passed_on(
    sqlite_world: World, retries: int
) -> None:
    contexts: list[Any] = []

    class Bundled(Think):
        model = answering(Step.fails("context_overflow"))
        context_overflow = ContextOverflow(reactive=True, max_retries=retries)

        def on_chat_error(self, error: Exception, context: Any) -> Any:
            contexts.append(context)

    host = await sqlite_world.host(Bundled)
    turn = await host.get(Bundled, "a").save_messages("u1")
    await sqlite_world.stop()
    assert turn.error == "The conversation is too long for the model."
    assert [context.classification for context in contexts] == ["context_overflow"]


@pytest.mark.invariant("C9")
async def test_everybody_gets_the_text_of_the_hook_and_nothing_else(world: World) -> None:
    class Answered(Judged):
        model = answering(SO_FAR + Step.fails("rejected"))
        results: list[Any] = []

        def on_chat_error(self, error: Exception, context: Any) -> Any:
            return RuntimeError("Please try again.")

        def on_chat_response(self, result: Any) -> None:
            self.results.append(result)

    host = await world.host(Answered)
    a = host.get(Answered, "a")
    chunks = await failing(a.stream("u1"))
    turn = await a.save_messages("u2")
    caller = Caller()
    await a.chat("u3", caller)
    submitted = await a.submit_messages("u4")
    await host.until_settled()
    host = await world.next_life()
    found = await host.get(Answered, "a").inspect_submission(submitted.id)
    assert all("rejected" in str(reason) for reason in await reasons(host))
    await world.stop()
    assert chunks[-1] == {"type": "error", "errorText": "Please try again."}
    assert (turn.status, turn.error) == ("error", "Please try again.")
    assert caller.errors == ["Please try again."]
    assert (found.status, found.error) == ("error", "Please try again.")
    assert [result.error for result in Answered.results] == ["Please try again."] * 4


class Caller:
    """Notes what it is told of an error."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def on_event(self, chunk: str) -> None: ...

    def on_error(self, error: str) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("partial", [True, False])
async def test_the_hook_sees_the_partial_answer_in_the_conversation(
    world: World, partial: bool, is_async: bool
) -> None:
    seen: list[list[str]] = []

    def look(self: Any, error: Exception, context: Any) -> Any:
        seen.append(said(self.messages))
        return error

    async def look_later(self: Any, error: Exception, context: Any) -> Any:
        await asyncio.sleep(1)
        seen.append(said(await self.get_messages()))
        await self.add_messages("a note")
        seen.append(said(self.messages))
        return error

    fails = Step.fails("rejected")
    members: dict[str, Any] = {"model": answering(SO_FAR + fails if partial else fails)}
    Judging = judged(None, on_chat_error=look_later if is_async else look, **members)
    host = await world.host(Judging)
    a = host.get(Judging, "a")
    await a.save_messages("u1")
    stored = said(await a.get_messages())
    await world.stop()
    answer = ["assistant: So far "] if partial else []
    note = ["user: a note"] if is_async else []
    assert seen[0] == ["user: u1", *answer]
    assert seen[-1] == stored == ["user: u1", *answer, *note]


async def test_the_hook_sees_what_an_interrupted_turn_has_said(world: World) -> None:
    seen: list[Any] = []

    def on_chat_error(self: Any, error: Exception, context: Any) -> Any:
        seen.append((said(self.messages), context.stage, context.messages_persisted))

    Judging = judged(None, model=answering(SO_FAR + Step.stalls()), on_chat_error=on_chat_error)
    host = await world.host(Judging, shutdown_timeout=0)
    await host.get(Judging, "a").submit_messages("u1")
    await asyncio.sleep(1)
    host = await world.next_life()
    failed = listen(host, ChatRequestFailed)
    await host.until_settled()
    stored = said(await host.get(Judging, "a").get_messages())
    await world.stop()
    assert seen == [(stored, "recovery", True)]
    assert stored == ["user: u1", "assistant: So far "]
    assert [(event.stage, event.messages_persisted) for event in failed] == [("recovery", True)]


@pytest.mark.parametrize("what", ["the function", "the function is lost", "hydrate_messages"])
async def test_failures_before_the_model_is_asked_have_stages_of_their_own(
    sqlite_world: World, what: str
) -> None:
    stage, is_persisted = {
        "the function": ("persist", False),
        "the function is lost": ("recovery", False),
        "hydrate_messages": ("transcript", True),
    }[what]
    members = {"hydrate_messages": broken} if what == "hydrate_messages" else {}
    Judging = judged(lambda _: "Sorry.", **members)
    host = await sqlite_world.host(Judging)
    failed = listen(host, ChatRequestFailed)
    a = host.get(Judging, "a")
    if what == "the function is lost":
        await a.get_messages()
        parts_of(agent_of(host, Judging))[Runner].composing = Forgetful()
    turn = await a.save_messages("u1" if members else broken)
    stored = said(await a.get_messages())
    await sqlite_world.stop()
    assert (turn.status, turn.error) == ("error", "Sorry.")
    ((_, _, context),) = Judging.log
    assert (context.stage, context.messages_persisted) == (stage, is_persisted)
    assert context.request_id == turn.request_id
    assert bool(stored) == is_persisted, "it is true"
    assert [(e.stage, e.messages_persisted) for e in failed] == [(stage, is_persisted)]


class Forgetful(dict[str, Any]):
    """As in a process that did not accept the request."""

    def __setitem__(self, key: str, value: Any) -> None: ...


@pytest.mark.parametrize("what", ["the tools of a turn", "before_turn", "before_step", "nothing"])
async def test_a_toolset_is_left_as_often_as_it_is_entered_whatever_fails(
    sqlite_world: World, what: str
) -> None:
    class Counted(FunctionToolset[Any]):
        entered = 0

        async def __aenter__(self) -> Any:
            self.entered += 1
            return self

        async def __aexit__(self, *_: object) -> None:
            assert self.entered, "it was left already"
            self.entered -= 1

    toolset = Counted([look])
    members = FAILURES[what][0] if what in FAILURES else configured(tools={"more": look})
    Judging = judged(lambda error: error, get_tools=lambda _: toolset, **members)
    host = await sqlite_world.host(Judging)
    await host.get(Judging, "a").save_messages("u1")
    assert (FAILURES[what][2] if what in FAILURES else "") in ((await reasons(host))[0] or "")
    await sqlite_world.stop()
    assert toolset.entered == 0
