"""Events: told by channel, name or class; harmless when a listener is not; free when nobody listens."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import pytest

from outlast.core.events import Event, Events

ROOT = Path(__file__).parent.parent.parent


class Bell(Event):
    channel = "bell"
    made: ClassVar[list[str]] = []
    times: int = 1

    def __init__(self, *values: Any, **more: Any) -> None:
        super().__init__(*values, **more)
        self.made.append(self.name)


class Rang(Bell):
    name = "bell:rang"


class Broke(Bell):
    name = "bell:broke"
    error: str = "it fell"


class Bellows(Event):
    name = "bellows:blew"
    channel = "bellows"


class Moved(Event):
    name = "moved"
    channel = "lifecycle"


class Stopped:
    """A clock that stands still, and counts who looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> int:
        self.looks += 1
        return 1234


def names(seen: list[Event]) -> list[str]:
    return [event.name for event in seen]


def emit_all(events: Events) -> None:
    events.emit(Rang, "Door/front", times=2)
    events.emit(Bellows, "Organ/o")
    events.emit(Broke, "Door/front")
    events.emit(Moved, None)


def test_an_event_tells_when_of_whom_and_what() -> None:
    events, seen = Events(Stopped()), []
    events.subscribe("bell", seen.append)
    events.emit(Broke, "Door/front", times=2, error="rust")
    (event,) = seen
    assert event == Broke(1234, "Door/front", times=2, error="rust")
    assert (event.at, event.agent, event.name, event.channel) == (
        1234,
        "Door/front",
        "bell:broke",
        "bell",
    )
    assert event.payload == {"times": 2, "error": "rust"}
    assert Moved(0, None).payload == {}
    with pytest.raises(AttributeError):
        event.error = "wear"


def test_without_a_clock_events_tell_the_time_of_the_machine() -> None:
    events, seen = Events(), []
    events.subscribe("*", seen.append)
    events.emit(Moved, None)
    assert seen[0].at > 1_700_000_000_000


@pytest.mark.parametrize(
    ("wanted", "heard"),
    [
        ("bell", ["bell:rang", "bell:broke"]),
        ("bellows", ["bellows:blew"]),
        ("lifecycle", ["moved"]),  # the channel is not always the beginning of the name
        ("moved", ["moved"]),
        ("bell:broke", ["bell:broke"]),
        ("bell:", []),
        ("*", ["bell:rang", "bellows:blew", "bell:broke", "moved"]),
        (Rang, ["bell:rang"]),
        (Bell, ["bell:rang", "bell:broke"]),
        (Event, ["bell:rang", "bellows:blew", "bell:broke", "moved"]),
    ],
)
def test_a_listener_hears_what_it_asked_for_and_nothing_else(wanted: Any, heard: list[str]) -> None:
    events, seen = Events(), []
    events.subscribe(wanted, seen.append)
    emit_all(events)
    assert names(seen) == heard


def test_an_event_whose_name_is_its_channel_is_told_once() -> None:
    class Plain(Event):
        name = channel = "plain"

    events, seen = Events(), []
    events.subscribe("plain", seen.append)
    events.emit(Plain, None)
    assert names(seen) == ["plain"]


def test_listeners_are_told_in_the_order_in_which_they_subscribed() -> None:
    events, order = Events(), []
    events.subscribe("*", lambda _: order.append("all"))
    events.subscribe(Rang, lambda _: order.append("class"))
    events.subscribe("bell", lambda _: order.append("channel"))
    events.emit(Rang, None)
    assert order == ["all", "class", "channel"]


def test_who_subscribes_later_is_told_of_what_happens_later() -> None:
    events, seen, others = Events(), [], []
    events.subscribe("bell", others.append)
    events.emit(Rang, None)
    events.subscribe("bell", seen.append)
    events.emit(Broke, None)
    assert (names(others), names(seen)) == (["bell:rang", "bell:broke"], ["bell:broke"])


def test_after_unsubscribing_nothing_is_heard_and_doing_it_again_is_harmless() -> None:
    events, seen, others = Events(), [], []
    stop = events.subscribe("bell", seen.append)
    events.subscribe("bell", others.append)
    events.emit(Rang, None)
    stop()
    stop()
    events.emit(Broke, None)
    assert names(seen) == ["bell:rang"]
    assert names(others) == ["bell:rang", "bell:broke"]


def test_a_listener_subscribed_twice_is_ended_one_subscription_at_a_time() -> None:
    events, seen = Events(), []
    first = events.subscribe("bell", seen.append)
    second = events.subscribe("bell", seen.append)
    first()
    first()
    events.emit(Rang, None)
    assert names(seen) == ["bell:rang"]
    second()
    events.emit(Rang, None)
    assert names(seen) == ["bell:rang"]


def test_a_listener_may_unsubscribe_itself_while_it_is_told() -> None:
    events, seen = Events(), []
    stop = events.subscribe("bell", lambda event: (seen.append(event), stop()))
    events.subscribe("bell", seen.append)
    events.emit(Rang, None)
    events.emit(Broke, None)
    assert names(seen) == ["bell:rang", "bell:rang", "bell:broke"]


def test_a_listener_that_was_unsubscribed_by_another_is_not_told_of_the_event_under_way() -> None:
    events, seen = Events(), []
    events.subscribe("bell", lambda _: stop())
    stop = events.subscribe("bell", seen.append)
    events.emit(Rang, None)
    assert seen == []


def test_a_listener_may_subscribe_and_emit() -> None:
    events, seen = Events(), []

    def listener(event: Event) -> None:
        events.subscribe("lifecycle", seen.append)
        events.emit(Moved, event.agent)

    events.subscribe(Rang, listener)
    events.emit(Rang, "Door/front")
    assert [(event.name, event.agent) for event in seen] == [("moved", "Door/front")]


def test_a_listener_that_raises_is_logged_and_harms_neither_the_others_nor_the_emitter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, seen = Events(), []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    events.subscribe("bell", broken)
    events.subscribe("bell", seen.append)
    events.emit(Rang, "Door/front")
    assert names(seen) == ["bell:rang"]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("outlast", logging.ERROR)
    assert "bell:rang" in record.getMessage()
    assert record.exc_info is not None


def test_an_event_that_nobody_listens_to_is_not_even_made() -> None:
    clock = Stopped()
    events = Events(clock)
    Bell.made.clear()
    events.emit(Rang, None)
    stop = events.subscribe("lifecycle", lambda _: None)
    events.emit(Rang, None)
    assert (Bell.made, clock.looks) == ([], 0)
    stop()
    events.emit(Moved, None)
    assert clock.looks == 0
    events.subscribe("bell", lambda _: None)
    events.subscribe("*", lambda _: None)
    events.emit(Rang, None)
    assert (Bell.made, clock.looks) == (["bell:rang"], 1)


def test_an_event_is_no_longer_made_when_the_last_who_listened_to_it_has_gone() -> None:
    clock = Stopped()
    events = Events(clock)
    events.subscribe("lifecycle", lambda _: None)
    stop = events.subscribe("bell", lambda _: None)
    events.emit(Rang, None)
    stop()
    events.emit(Rang, None)
    assert clock.looks == 1


def test_without_listeners_emitting_does_not_even_look_at_the_class() -> None:
    class Untouchable:
        __hash__ = None  # type: ignore[assignment]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    Events().emit(Untouchable(), None)


@pytest.mark.parametrize("wanted", [None, 5, dict, [Rang], Rang(0, None)])
def test_only_text_and_classes_of_events_can_be_listened_to(wanted: Any) -> None:
    with pytest.raises(TypeError, match="a channel, a name or an event class"):
        Events().subscribe(wanted, print)


def test_an_async_listener_is_refused_since_nobody_would_await_it() -> None:
    async def listener(event: Event) -> None: ...

    with pytest.raises(TypeError, match="must be a plain function"):
        Events().subscribe("*", listener)


def test_a_type_checker_refuses_fields_that_an_event_does_not_have(tmp_path: Path) -> None:
    source = tmp_path / "emitting.py"
    source.write_text(
        dedent(
            """
            from outlast.agent.events import FiberRunFailed, FiberRunStarted
            from outlast.core.events import Event, Events

            def listener(event: FiberRunFailed) -> None:
                print(event.error)

            events = Events()
            events.emit(FiberRunFailed, "A/x", "f1", "work", False, error="no")
            events.emit(FiberRunFailed, "A/x", fiber_id="f", fiber_name="n", managed=True, error="")
            events.subscribe(FiberRunFailed, listener)
            events.emit(FiberRunFailed, "A/x", "f1", "work", False)
            events.emit(FiberRunFailed, "A/x", "f1", "work", False, error=5)
            events.emit(FiberRunFailed, "A/x", "f1", "work", False, errror="no")
            events.emit(FiberRunStarted, "A/x", "f1", "work", False, error="no")
            events.emit("fiber:run:started", "A/x")
            events.subscribe(FiberRunStarted, listener)
            """
        ).lstrip()
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(source)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    refused = {
        int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error: " in line
    }
    assert refused == {11, 12, 13, 14, 15, 16}, result.stdout + result.stderr
