"""Turns in trouble, killed at every commit: models that stall or refuse, budgets that are spent, hooks that
raise, versions that give way to newer ones. Everything ends, once, and nothing that was said is lost."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from chat_rows import (
    check_all_ended,
    check_answers,
    check_request,
    check_said,
    check_seen,
    check_tree,
    prompts_of,
    stored,
)
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from recovering_agents import TEXTS, Talker, answer, decided, position_of, user, watch, world

from outlast import (
    ChatRecovery,
    ContextOverflow,
    Host,
    RecoveryBootEvent,
    RecoveryBootResult,
    Session,
)
from outlast.chat.run.retention import KEEP_STREAMS
from outlast.store.operations import Query
from outlast.testing import Outcome, ScriptedModel, Step
from support import alarm_rows
from sweeps import crash_sweep

Mode = Literal["commits", "groups", "twice", "thrice"]

TOO_LONG = ModelHTTPError(400, "m", {"error": {"message": "prompt is too long: 9 > 5 maximum"}})
SUMMARY = "They have talked about one and two."
TEXTS |= {
    "stall": "It stops in the middle and goes on.",
    "long": "It was too long and is not any more.",
    "never": "",
    "extra": "An extra one.",
}


def swept(sample: int) -> Any:
    """On SQLite at every point; thrice, and on PostgreSQL, at some."""
    return pytest.mark.parametrize(
        ("mode", "engine", "sample"),
        [
            ("commits", "sqlite", None),
            ("thrice", "sqlite", sample),
            ("commits", "postgresql", sample),
        ],
        ids=["commits-sqlite", "thrice-sqlite", "commits-postgresql"],
    )


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest) -> str | None:
    return str(request.getfixturevalue("postgres")) if engine == "postgresql" else None


class Outside:
    """What does not die with the host."""

    def __init__(self) -> None:
        self.has_stalled = False
        self.exhausted: list[str] = []
        self.requests: list[Any] = []  # of the model
        self.version = 1
        self.upgrades = 0
        self.raised: list[str] = []

    def forget(self) -> None:
        world.forget()
        self.__init__()  # type: ignore[misc]


outside = Outside()


def troubled(messages: list[ModelMessage]) -> Step:
    outside.requests.append(messages)
    at = position_of(messages)
    if at.prompt == "stall" and not outside.has_stalled:
        outside.has_stalled = True
        return Step.text("It stops in ", delay=0.01) + Step.stalls()
    if at.prompt == "never":
        return Step.stalls()
    if at.prompt == "long" and SUMMARY not in str(messages):
        return Step.text("It was too ", delay=0.01) + Step.fails(TOO_LONG)
    return answer(messages)


# --- a model in trouble --------------------------------------------------------------------------


async def gave_up(context: Any) -> None:
    outside.exhausted.append(context.reason)


class Troubled(Talker):
    """Its model stalls, refuses what is too long, and in the end says nothing any more."""

    model = ScriptedModel.answering(troubled)
    chat_stream_stall_timeout = 5
    chat_recovery = ChatRecovery(max_attempts=4, terminal_message="Enough.", on_exhausted=gave_up)
    context_overflow = ContextOverflow(reactive=True)

    def configure_session(self, session: Session) -> Session:
        return session.on_compaction(lambda messages: SUMMARY)


PROMPTS = ("one", "two", "stall", "long", "never", "three")


async def get_into_trouble(host: Host) -> None:
    agent = host.get(Troubled, "t")
    async with asyncio.TaskGroup() as side:
        for prompt in PROMPTS:
            asked = await agent.submit_messages(user(prompt), idempotency_key=prompt)
            world.accepted.add(asked.id)
            if prompt != "long":  # what it has said first is taken back
                side.create_task(watch(agent, asked.id))
    await host.until_settled()
    rows = await stored(host, "Troubled/t")
    due = host.clock.now() - KEEP_STREAMS
    gone = {entry.id for entry in rows.entries if entry.ended_at and entry.ended_at <= due}
    check_seen(rows, world.seen, gone=gone)
    check_answers(rows)
    await asyncio.sleep(2 * 60 * 60)
    await host.until_settled()
    rows = await stored(host, "Troubled/t")
    assert rows.streams == {}
    assert await alarm_rows(host) == []
    check_said(rows, world.seen)


async def check_ended(outcome: Outcome, address: str) -> Any:
    rows = await stored(outcome.host, address)
    check_all_ended(rows)
    check_tree(rows)
    assert {entry.id for entry in rows.entries} >= world.accepted
    for messages in outside.requests:
        check_request(messages)
    query = Query.same("SELECT count(*) FROM boots WHERE agent = ?")
    assert await outcome.host.store.fetch(query, address) == [(0,)], "it has come up"
    return rows


undisturbed: list[int] = []  # requests to the model, if nobody dies


async def check_trouble(outcome: Outcome) -> None:
    rows = await check_ended(outcome, "Troubled/t")
    assert [entry.outcome for entry in rows.entries] == [
        "error" if prompt == "never" else "completed" for prompt in PROMPTS
    ]
    said = [(row.id if row.role == "user" else row.text) for row in rows.path]
    expected: list[str] = []
    for prompt in PROMPTS:
        expected += [f"u-{prompt}", *([TEXTS[prompt]] if TEXTS[prompt] else [])]
    assert said == expected
    deaths = len(outcome.deaths)
    assert 1 <= len(outside.exhausted) <= 1 + deaths
    assert set(outside.exhausted) <= {"max_attempts_exceeded", "no_progress_timeout"}
    if not deaths:
        undisturbed[:] = [len(outside.requests)]
    # Each death costs one request; one that says nothing is tried as often again in the next life.
    assert len(outside.requests) <= undisturbed[0] + 6 * deaths, "the budget is bounded"


@swept(sample=12)
async def test_models_in_trouble(mode: Mode, store: str | None, sample: int | None) -> None:
    decided.clear()
    await crash_sweep(
        agents=[Troubled],
        drive=get_into_trouble,
        check=check_trouble,
        reset=outside.forget,
        mode=mode,
        store=store,
        sample=sample,
        outside=[*world.outside(), vars(outside)],
    )
    if sample is None:
        assert decided >= {8, 9, 22, 23} or decided >= {9, 22, 23}, decided


# --- hooks ---------------------------------------------------------------------------------------


class Hooked(Talker):
    """Its hooks raise, or change everything; and a deploy is noted in the middle."""

    model = ScriptedModel.answering(troubled)

    async def before_turn(self, context: Any) -> None:
        await self.stash({"prompt": prompts_of(context.messages)[-1]})

    async def on_chat_recovery(self, context: Any) -> None:
        assert context.recovery_data == {"prompt": context.messages[-1].text}
        outside.raised.append("on_chat_recovery")
        raise RuntimeError("no idea")

    async def on_recovery_boot(self, event: RecoveryBootEvent) -> RecoveryBootResult:
        def before_boot() -> None:
            if "before_boot" not in outside.raised:
                outside.raised.append("before_boot")
                raise RuntimeError("not yet")

        event.writer.data("recovered", {"cause": event.cause}, id="r")
        waiting = [each for each in event.in_flight_users if each.id != "u-extra"]
        turns = [*waiting, user("extra")]
        return RecoveryBootResult(recovered_turns=turns, before_boot=before_boot)


async def hook(host: Host) -> None:
    agent = host.get(Hooked, "t")
    async with asyncio.TaskGroup() as side:
        for prompt in ("one", "two"):
            asked = await agent.submit_messages(user(prompt), idempotency_key=prompt)
            world.accepted.add(asked.id)
            side.create_task(watch(agent, asked.id))
        await asyncio.sleep(0.05)
        await host.mark_interruptions("deploy")
    await host.until_settled()
    rows = await stored(host, "Hooked/t")
    check_seen(rows, world.seen)
    check_answers(rows)


async def check_hooked(outcome: Outcome) -> None:
    rows = await check_ended(outcome, "Hooked/t")
    assert [entry.error for entry in rows.entries if entry.outcome != "completed"] == []
    asked = [row.id for row in rows.path if row.role == "user"]
    assert asked in (["u-one", "u-two"], ["u-one", "u-two", "u-extra"]), "each once, in order"
    assert ("u-extra" in asked) == (outside.raised.count("before_boot") > 0)
    answers = [row.text for row in rows.path if row.role == "assistant"]
    assert answers == [TEXTS[id.removeprefix("u-")] for id in asked]
    query = Query.same("SELECT count(*) FROM incidents WHERE agent = ?")
    assert await outcome.host.store.fetch(query, "Hooked/t") == [(0,)]


@swept(sample=10)
async def test_hooks_that_raise(mode: Mode, store: str | None, sample: int | None) -> None:
    extra: list[int] = []

    async def check(outcome: Outcome) -> None:
        await check_hooked(outcome)
        extra.append(outside.raised.count("before_boot"))

    await crash_sweep(
        agents=[Hooked],
        drive=hook,
        check=check,
        reset=outside.forget,
        mode=mode,
        store=store,
        sample=sample,
        outside=[*world.outside(), vars(outside)],
    )
    assert any(extra), "in some lives an answer was interrupted in the middle"


# --- newer versions ------------------------------------------------------------------------------


class Versioned(Talker):
    """Version 1 gives way before its second turn; what was interrupted goes on in new messages."""

    model = ScriptedModel.answering(troubled)
    continuation_style = "new_message"

    async def before_turn(self, context: Any) -> None:
        if outside.version == 1 and prompts_of(context.messages)[-1] == "two":
            await self.request_upgrade()


def upgrade() -> None:
    outside.upgrades += 1


async def give_way(host: Host) -> None:
    agent = host.get(Versioned, "t")
    async with asyncio.TaskGroup() as side:
        for prompt in ("one", "two", "three"):
            asked = await agent.submit_messages(user(prompt), idempotency_key=prompt)
            world.accepted.add(asked.id)
            side.create_task(watch(agent, asked.id))
    await host.until_settled()
    rows = await stored(host, "Versioned/t")
    check_seen(rows, world.seen)
    check_answers(rows)


parted: list[int] = []  # messages of an answer


async def check_versions(outcome: Outcome) -> None:
    rows = await check_ended(outcome, "Versioned/t")
    assert {entry.outcome for entry in rows.entries} == {"completed"}
    answers: dict[str, list[str]] = {}
    for row in rows.path:
        if row.role == "user":
            answers[row.id] = []
        else:
            answers[list(answers)[-1]].append(row.text)
    assert {id: "".join(said) for id, said in answers.items()} == {
        f"u-{prompt}": TEXTS[prompt] for prompt in ("one", "two", "three")
    }
    assert list(answers) == ["u-one", "u-two", "u-three"]
    # Once before the turn, and once after it where nobody has come to replace the process. A death replaces
    # it, too: two of them may fall between the wish and its fulfilment, before the turn and after it.
    least = 1 if len(outcome.deaths) < 2 else 0
    assert least <= outside.upgrades <= 2 + 2 * len(outcome.deaths)
    parted.append(max(len(said) for said in answers.values()))
    query = Query.same("SELECT count(*) FROM incidents WHERE agent = ?")
    assert await outcome.host.store.fetch(query, "Versioned/t") == [(0,)]


@swept(sample=10)
async def test_newer_versions(mode: Mode, store: str | None, sample: int | None) -> None:
    parted.clear()
    await crash_sweep(
        agents=[Versioned],
        drive=give_way,
        check=check_versions,
        reset=outside.forget,
        mode=mode,
        store=store,
        sample=sample,
        outside=[*world.outside(), vars(outside)],
        host_options={"on_upgrade": upgrade},
    )
    assert max(parted) > 1, "some answers have gone on in a message of their own"
