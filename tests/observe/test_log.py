"""Events as log records: where they go, how loud they are, what they carry."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from outlast import Agent, FiberContext
from outlast.agent.events import (
    FiberRunFailed,
    FiberRunInterrupted,
    FiberRunStarted,
    ScheduleDuplicates,
)
from outlast.core.events import Events
from outlast.host.events import AgentEvicted, FenceLost, Rpc
from outlast.observe import log_events
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
