"""Events as log records: where they go, how loud they are, what they carry."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from outlast import Agent, FiberContext, Think, tool
from outlast.agent.events import (
    FiberRunFailed,
    FiberRunInterrupted,
    FiberRunStarted,
    ScheduleDuplicates,
)
from outlast.chat.types import events as chat
from outlast.core.events import Event, Events
from outlast.host.events import AgentEvicted, FenceLost, Rpc
from outlast.observe import log_events
from outlast.testing import ScriptedModel, Step
from support import hosting

pytestmark = pytest.mark.virtual_time


class Keeping(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [f"{each.levelname} {each.name} {each.getMessage()}" for each in self.records]


@pytest.fixture
def kept() -> Iterator[Keeping]:
    handler, logger = Keeping(), logging.getLogger("outlast.events")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_each_event_is_a_readable_line_on_the_logger_of_its_channel(kept: Keeping) -> None:
    events = Events()
    log_events(events)
    events.emit(AgentEvicted, "A/x")
    events.emit(FiberRunStarted, "A/x", "f1", "look it up", False)
    events.emit(ScheduleDuplicates, None, callback="tick", count=25)
    assert kept.lines == [
        "INFO outlast.events.lifecycle lifecycle:evicted A/x",
        "INFO outlast.events.fiber fiber:run:started A/x"
        " fiber_id='f1' fiber_name='look it up' managed=False",
        "WARNING outlast.events.schedule schedule:duplicate_warning callback='tick' count=25",
    ]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.CRITICAL])
async def test_trouble_is_louder_than_the_rest_whose_level_can_be_chosen(
    kept: Keeping, level: int
) -> None:
    events = Events()
    log_events(events, level=level)
    events.emit(FiberRunStarted, "A/x", "f1", "work", False)
    events.emit(FiberRunInterrupted, "A/x", "f1", "work", False, recovery_reason="left")
    events.emit(FiberRunFailed, "A/x", "f1", "work", False, error="ValueError: no")
    events.emit(FenceLost, "A/x", reason="taken over")
    assert [record.levelno for record in kept.records] == [
        level,
        logging.WARNING,
        logging.ERROR,
        logging.WARNING,
    ]


async def test_a_record_carries_the_fields_of_its_event_for_those_who_search(kept: Keeping) -> None:
    events = Events()
    log_events(events)
    events.emit(FiberRunFailed, "A/x", "f1", "work", True, error="ValueError: no")
    events.emit(Rpc, "A/x", method="greet", elapsed_ms=7)
    found = [
        {name: value for name, value in vars(record).items() if name.startswith("outlast_")}
        for record in kept.records
    ]
    assert found == [
        {
            "outlast_event": "fiber:run:failed",
            "outlast_agent": "A/x",
            "outlast_fiber_id": "f1",
            "outlast_fiber_name": "work",
            "outlast_fiber_managed": True,
            "outlast_fiber_error": "ValueError: no",
        },
        {
            "outlast_event": "rpc",
            "outlast_agent": "A/x",
            "outlast_rpc_method": "greet",
            "outlast_rpc_elapsed_ms": 7,
        },
    ]
    formatted = logging.Formatter("%(outlast_fiber_id)s").format(kept.records[0])
    assert formatted == "f1"


async def test_an_error_of_several_lines_makes_one_line(kept: Keeping) -> None:
    events = Events()
    log_events(events)
    events.emit(FiberRunFailed, "A/x", "f1", "work", False, error="ValueError: a\nINFO b\r\x1b[31m")
    (line,) = kept.lines
    assert line.splitlines() == [line]
    assert line.isprintable()


async def test_only_the_channels_that_were_asked_for_are_logged_until_that_is_ended(
    kept: Keeping,
) -> None:
    events = Events()
    for channels in ("lifecycle", ["lifecycle"], ["rpc", "lifecycle:evicted"]):
        kept.records.clear()
        end = log_events(events, channels=channels)
        events.emit(AgentEvicted, "A/x")
        events.emit(FiberRunStarted, "A/x", "f1", "work", False)
        assert len(kept.records) == 1
        end()
        end()
        events.emit(AgentEvicted, "A/x")
        assert len(kept.records) == 1


async def test_what_the_logger_does_not_want_is_not_even_written_out(kept: Keeping) -> None:
    written = []

    class Noticed(str):
        def __repr__(self) -> str:
            written.append(str(self))
            return ""

    logging.getLogger("outlast.events.fiber").setLevel(logging.WARNING)
    try:
        events = Events()
        log_events(events)
        events.emit(FiberRunStarted, "A/x", Noticed("f1"), "work", False)
    finally:
        logging.getLogger("outlast.events.fiber").setLevel(logging.NOTSET)
    assert (kept.records, written) == ([], [])


async def test_nothing_is_logged_unless_it_was_asked_for(kept: Keeping, sqlite_url: str) -> None:
    class Worker(Agent):
        async def work(self) -> None:
            await self.run_fiber("work", self.step)

        async def step(self, fiber: FiberContext, input: Any = None) -> None: ...

    async with hosting(Worker, url=sqlite_url) as host:
        await host.get(Worker, "w").work()
        assert kept.records == []
        log_events(host.events, channels="fiber")
        await host.get(Worker, "w").work()
    assert [line.split()[2] for line in kept.lines] == ["fiber:run:started", "fiber:run:completed"]


# --- chat agents ---------------------------------------------------------------------------------

CALL = ("r1", "c1", "send")
CHAT: list[tuple[Event, str]] = [
    (
        chat.TurnStarted(0, "A/x", "r1", "message", "save", False, 1),
        "INFO chat chat:turn:start A/x request_id='r1' trigger='message' admission='save'"
        " continuation=False attempt=1",
    ),
    (
        chat.TurnFinished(0, "A/x", "r1", "completed", 12),
        "INFO chat chat:turn:finish A/x request_id='r1' status='completed' duration_ms=12",
    ),
    (
        chat.TurnFinished(0, "A/x", "r1", "aborted", 12, "cancelled"),
        "INFO chat chat:turn:finish A/x request_id='r1' status='aborted' duration_ms=12"
        " error='cancelled'",
    ),
    (
        chat.TurnFinished(0, "A/x", "r1", "interrupted", 12, "The answer was interrupted."),
        "WARNING chat chat:turn:finish A/x request_id='r1' status='interrupted' duration_ms=12"
        " error='The answer was interrupted.'",
    ),
    (
        chat.TurnFinished(0, "A/x", "r1", "error", 12, "ValueError: no"),
        "ERROR chat chat:turn:finish A/x request_id='r1' status='error' duration_ms=12"
        " error='ValueError: no'",
    ),
    (
        chat.ChatRequestFailed(0, "A/x", "r1", "stream", True, "ValueError: no"),
        "ERROR chat chat:request:failed A/x request_id='r1' stage='stream'"
        " messages_persisted=True error='ValueError: no'",
    ),
    (
        chat.StreamStalled(0, "A/x", "r1", 30_000),
        "WARNING chat chat:stream:stalled A/x request_id='r1' timeout_ms=30000",
    ),
    (
        chat.TranscriptRepaired(0, "A/x", "r1", ("c1", "c2")),
        "WARNING transcript chat:transcript:repaired A/x request_id='r1' tool_call_ids=('c1', 'c2')",
    ),
    (
        chat.InboxAccepted(0, "A/x", "r1", "message", "save"),
        "INFO inbox inbox:accepted A/x request_id='r1' kind='message' origin='save'",
    ),
    (
        chat.InboxClaimed(0, "A/x", "r1", "message"),
        "INFO inbox inbox:claimed A/x request_id='r1' kind='message'",
    ),
    (
        chat.InboxAcked(0, "A/x", "r1", "message", "skipped"),
        "INFO inbox inbox:acked A/x request_id='r1' kind='message' status='skipped'",
    ),
    (
        chat.CancelRecorded(0, "A/x", "r1", "cancelled"),
        "INFO inbox cancel:recorded A/x request_id='r1' reason='cancelled'",
    ),
    (chat.MessageRequest(0, "A/x", "r1"), "INFO message message:request A/x request_id='r1'"),
    (
        chat.MessageResponse(0, "A/x", "r1", "m1"),
        "INFO message message:response A/x request_id='r1' message_id='m1'",
    ),
    (chat.MessagesCleared(0, "A/x"), "INFO message message:clear A/x"),
    (chat.MessageCancelled(0, "A/x", "r1"), "INFO message message:cancel A/x request_id='r1'"),
    (
        chat.MessageFailed(0, "A/x", "r1", "ValueError: no"),
        "ERROR message message:error A/x request_id='r1' error='ValueError: no'",
    ),
    (
        chat.ToolStarted(0, "A/x", *CALL, "once"),
        "INFO message tool:start A/x request_id='r1' tool_call_id='c1' tool_name='send'"
        " effect='once'",
    ),
    (
        chat.ToolFinished(0, "A/x", *CALL, "once", "done", 7),
        "INFO message tool:finish A/x request_id='r1' tool_call_id='c1' tool_name='send'"
        " effect='once' outcome='done' elapsed_ms=7",
    ),
    (
        chat.ToolFinished(0, "A/x", *CALL, "once", "failed", 7, "ValueError: no"),
        "WARNING message tool:finish A/x request_id='r1' tool_call_id='c1' tool_name='send'"
        " effect='once' outcome='failed' elapsed_ms=7 error='ValueError: no'",
    ),
    (
        chat.ToolFinished(0, "A/x", *CALL, "once", "unknown", 7, "It is not known."),
        "WARNING message tool:finish A/x request_id='r1' tool_call_id='c1' tool_name='send'"
        " effect='once' outcome='unknown' elapsed_ms=7 error='It is not known.'",
    ),
    (
        chat.ToolAnswered(0, "A/x", *CALL),
        "INFO message tool:result A/x request_id='r1' tool_call_id='c1' tool_name='send'",
    ),
    (
        chat.ToolApproval(0, "A/x", *CALL, False),
        "INFO message tool:approval A/x request_id='r1' tool_call_id='c1' tool_name='send'"
        " approved=False",
    ),
    (
        chat.LedgerReplayed(0, "A/x", "send", "send:k"),
        "INFO message action:ledger:replayed A/x tool_name='send' key='send:k'",
    ),
    (
        chat.LedgerConflict(0, "A/x", "send", "send:k"),
        "WARNING message action:ledger:conflict A/x tool_name='send' key='send:k'",
    ),
    (
        chat.SubmissionCreated(0, "A/x", "s1", None),
        "INFO message submission:create A/x submission_id='s1'",
    ),
    (
        chat.SubmissionChanged(0, "A/x", "s1", "running"),
        "INFO message submission:status A/x submission_id='s1' status='running'",
    ),
    (
        chat.SubmissionFailed(0, "A/x", "s1", "ValueError: no"),
        "ERROR message submission:error A/x submission_id='s1' error='ValueError: no'",
    ),
]


@pytest.mark.parametrize(("event", "line"), CHAT, ids=[event.name for event, _ in CHAT])
async def test_what_happens_to_a_chat_is_a_readable_line_as_loud_as_it_deserves(
    kept: Keeping, event: Event, line: str
) -> None:
    events = Events()
    log_events(events)
    events.emit(type(event), event.agent, *event.payload.values())
    assert [each.replace("outlast.events.", "") for each in kept.lines] == [line]


async def test_nothing_that_was_said_or_handed_to_a_tool_is_logged(
    kept: Keeping, sqlite_url: str
) -> None:
    class Talker(Think):
        model = ScriptedModel(
            Step.calls("send", to="secret input") + Step.calls("fails", to="secret input"),
            "secret answer",
        )
        system_prompt = "secret prompt"

        @tool(idempotency_key=lambda call: "order-7")
        async def send(self, to: str) -> str:
            """A secret description."""
            return "secret output"

        @tool(effect="read")
        async def fails(self, to: str) -> str:
            """A secret description."""
            raise ValueError("what it says is logged")

    async with hosting(Talker, url=sqlite_url) as host:
        log_events(host.events)
        a = host.get(Talker, "a")
        for _ in range(2):  # the second one is given the first one's result
            await a.submit_messages("secret question", metadata={"note": "secret metadata"})
        await host.until_settled()
    told = [str(vars(record)) for record in kept.records]
    assert [line for line in told if "secret" in line] == []
    assert "tool:finish" in str(told)
    assert "action:ledger:replayed" in str(told)
    assert "what it says is logged" in str(told)


async def test_a_field_is_called_after_what_its_event_tells_of(kept: Keeping) -> None:
    events = Events()
    log_events(events)
    events.emit(chat.ToolStarted, "A/x", *CALL, "once")
    events.emit(chat.SubmissionCreated, "A/x", "s1", None)
    events.emit(chat.TranscriptRepaired, "A/x", "r1", ("c1", "c2"))
    found = [
        {name: value for name, value in vars(record).items() if name.startswith("outlast_")}
        for record in kept.records
    ]
    common = {"outlast_agent": "A/x"}
    assert found == [
        {
            **common,
            "outlast_event": "tool:start",
            "outlast_tool_request_id": "r1",
            "outlast_tool_call_id": "c1",
            "outlast_tool_name": "send",
            "outlast_tool_effect": "once",
        },
        {**common, "outlast_event": "submission:create", "outlast_submission_id": "s1"},
        {
            **common,
            "outlast_event": "chat:transcript:repaired",
            "outlast_chat_request_id": "r1",
            "outlast_chat_tool_call_ids": ("c1", "c2"),
        },
    ]
