"""Events: told by channel, harmless when a listener is not, free when nobody listens."""

from __future__ import annotations

import logging

import pytest

from outlast.core import events as events_module
from outlast.core.events import Event, Events


def names(seen: list[Event]) -> list[str]:
    return [event.name for event in seen]


def test_a_listener_hears_the_events_of_its_channel_and_no_others() -> None:
    events, seen = Events(), []
    events.subscribe("fiber", seen.append)
    events.emit("fiber:run:started", "A/x", fiber_id="f1")
    events.emit("fiberglass:cut", "A/x")
    events.emit("lifecycle:evicted", "A/x")
    events.emit("fiber", None)
    assert names(seen) == ["fiber:run:started", "fiber"]
    assert seen[0] == Event("fiber:run:started", "A/x", {"fiber_id": "f1"})
    assert (seen[0].channel, seen[1].channel, seen[1].agent) == ("fiber", "fiber", None)


def test_a_star_hears_everything() -> None:
    events, seen = Events(), []
    events.subscribe("*", seen.append)
    events.emit("fiber:run:started", "A/x")
    events.emit("fence:lost", "A/x")
    assert names(seen) == ["fiber:run:started", "fence:lost"]


def test_the_listeners_of_a_channel_are_told_before_those_of_all_in_order_of_subscription() -> None:
    events, order = Events(), []
    events.subscribe("*", lambda _: order.append("all"))
    events.subscribe("fiber", lambda _: order.append("first"))
    events.subscribe("fiber", lambda _: order.append("second"))
    events.emit("fiber:run:started")
    assert order == ["first", "second", "all"]


def test_after_unsubscribing_nothing_is_heard_and_doing_it_again_is_harmless() -> None:
    events, seen, others = Events(), [], []
    stop = events.subscribe("fiber", seen.append)
    events.subscribe("fiber", others.append)
    events.emit("fiber:one")
    stop()
    stop()
    events.emit("fiber:two")
    assert names(seen) == ["fiber:one"]
    assert names(others) == ["fiber:one", "fiber:two"]


def test_a_listener_subscribed_twice_is_ended_one_subscription_at_a_time() -> None:
    events, seen = Events(), []
    first = events.subscribe("fiber", seen.append)
    second = events.subscribe("fiber", seen.append)
    first()
    first()
    events.emit("fiber:one")
    assert names(seen) == ["fiber:one"]
    second()
    events.emit("fiber:two")
    assert names(seen) == ["fiber:one"]


def test_a_listener_may_unsubscribe_while_it_is_told() -> None:
    events, seen = Events(), []
    stop = events.subscribe("fiber", lambda event: (seen.append(event), stop()))
    events.subscribe("fiber", seen.append)
    events.emit("fiber:one")
    events.emit("fiber:two")
    assert names(seen) == ["fiber:one", "fiber:one", "fiber:two"]


def test_a_listener_that_raises_is_logged_and_harms_neither_the_others_nor_the_emitter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, seen = Events(), []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    events.subscribe("fiber", broken)
    events.subscribe("fiber", seen.append)
    events.emit("fiber:run:started", "A/x")
    assert names(seen) == ["fiber:run:started"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "fiber:run:started" in record.getMessage()
    assert record.exc_info is not None


def test_an_event_that_nobody_listens_to_is_not_even_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(events_module, "Event", lambda *parts: made.append(parts))
    events = Events()
    events.emit("fiber:run:started", "A/x")
    stop = events.subscribe("lifecycle", lambda _: None)
    events.emit("fiber:run:started", "A/x")
    assert made == []
    events.emit("lifecycle:evicted", "A/x")
    assert len(made) == 1
    stop()
    events.emit("lifecycle:evicted", "A/x")
    assert len(made) == 1
