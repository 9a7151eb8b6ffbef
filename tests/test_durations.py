"""Every duration of the public API is seconds or a `timedelta`, and nothing else."""

from __future__ import annotations

import math
import random
import re
import subprocess
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import forked
from outlast import (
    Agent,
    App,
    Auth,
    ChatRecovery,
    Continuation,
    Debounce,
    FiberRecovery,
    Host,
    OutlastError,
    Retry,
    Think,
    TurnConfig,
    tool,
)
from outlast.agent.agent import parts_of
from outlast.chat.answer.continued_text import splice_settings
from outlast.chat.inbox.concurrency import policy_of
from outlast.chat.model.settings import model_settings
from outlast.chat.recovery import budget
from outlast.chat.tools.declare import spec_of
from outlast.core.clock import FOREVER, seconds
from outlast.server import Limits
from outlast.server.socket.unread import UnreadFrames
from outlast.testing import ScriptedModel, Step, Worker
from public_surface import parameters
from support import forever, hosting

pytestmark = pytest.mark.virtual_time

Use = Callable[
    [Any, str], Any
]  # a duration and the URL of a store: what came of it, awaited if need be


class Alarm(Agent):
    async def ring(self, payload: Any) -> None: ...

    async def in_a_while(self, when: Any) -> Any:
        schedule = await self.schedule(when, self.ring)
        return schedule.time.timestamp() - parts_of(self).activation.clock.now() / 1000

    async def every(self, interval: Any) -> Any:
        schedule = await self.schedule_every(interval, self.ring)
        return schedule.interval

    async def with_retry(self, delay: Any) -> Any:
        retry = Retry(base_delay=delay, max_delay=delay)
        await self.schedule("0 0 1 1 *", self.ring, retry=retry)
        (stored,) = await self.get_schedules()
        return stored.retry


class Silent(Think):
    model = ScriptedModel(Step.stalls())


async def nothing(host: Host) -> None: ...


async def asked(url: str, method: str, duration: Any) -> Any:
    async with hosting(Alarm, url=url) as host:
        return await getattr(host.get(Alarm, "a"), method)(duration)


async def stopped(timeout: Any, url: str) -> Any:
    async with hosting(Alarm, url=url) as host:
        await host.stop(timeout)
    return None


async def left(within: Any, url: str) -> Any:
    app = App([Alarm], url)
    await app.leave(within)
    return app._stop_at


async def stable_within(timeout: Any, url: str) -> Any:
    async with hosting(Silent, url=url, shutdown_timeout=0) as host:
        silent = host.get(Silent, "a")
        await silent.submit_messages("Hi")
        started = host.clock.now()
        return await silent.wait_until_stable(timeout), host.clock.now() - started


async def stalled(url: str, timeout: Any, **members: Any) -> Any:
    settings = {"model": ScriptedModel(Step.stalls()), "chat_recovery": False, "max_retries": 0}
    Stalled = type("Stalled", (Think,), {**settings, **members})
    async with hosting(Stalled, url=url) as host:
        started = host.clock.now()
        turn = await host.get(Stalled, "a").save_messages("Hi")
        return turn.status, host.clock.now() - started


async def stalled_class(timeout: Any, url: str) -> Any:
    return await stalled(url, timeout, chat_stream_stall_timeout=timeout)


async def stalled_turn(timeout: Any, url: str) -> Any:
    config = TurnConfig(chat_stream_stall_timeout=timeout)
    return await stalled(url, timeout, before_turn=lambda self, context: config)


def limited(timeout: Any) -> Any:
    @tool(timeout=timeout)
    def marked() -> None: ...

    return spec_of(marked)


def given_up(config: ChatRecovery) -> list[Any]:
    incident = budget.Incident(last_progress_at=0)
    return [budget._spent(incident, now, now, config) for now in (59_999, 60_001)]


def worked(url: str, drive: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", forked.Popen)
        return Worker(agents=[Alarm], drive=drive, store=url).run(**options).killed


DURATIONS: dict[str, Use] = {
    "Agent.schedule(when)": lambda value, url: asked(url, "in_a_while", value),
    "Agent.schedule_every(interval)": lambda value, url: asked(url, "every", value),
    "App.leave(within)": left,
    "Auth(recheck)": lambda value, _: Auth(lambda connection: None, recheck=value).recheck,
    "ChatRecovery(no_progress_timeout)": lambda value, _: given_up(
        ChatRecovery(no_progress_timeout=value)
    ),
    "ChatRecovery(max_age)": lambda value, _: given_up(ChatRecovery(max_age=value)),
    "Continuation(max_delay)": lambda value, _: splice_settings(
        Continuation(max_delay=value), can_replace=True
    ),
    "Debounce(seconds)": lambda value, _: policy_of(Debounce(value)),
    "FiberRecovery(retry)": lambda value, _: FiberRecovery(retry=value).delay_after(2),
    "FiberRecovery(retry_at_most)": lambda value, _: FiberRecovery(
        retry=1000, retry_at_most=value
    ).delay_after(2),
    "FiberRecovery(max_age)": lambda value, _: seconds(FiberRecovery(max_age=value).max_age),
    "FiberRecovery(scan_deadline)": lambda value, _: seconds(
        FiberRecovery(scan_deadline=value).scan_deadline
    ),
    "Host(flush)": lambda value, url: Host([Alarm], url, flush=value)._flush,
    "Host(idle_timeout)": lambda value, url: Host([Alarm], url, idle_timeout=value)._idle_timeout,
    "Host(shutdown_timeout)": lambda value, url: (
        Host([Alarm], url, shutdown_timeout=value)._shutdown_timeout
    ),
    "Host.stop(timeout)": stopped,
    "Limits(body_within)": lambda value, _: seconds(Limits(body_within=value).body_within),
    "Limits(headers_within)": lambda value, _: seconds(Limits(headers_within=value).headers_within),
    "Limits(stall)": lambda value, _: UnreadFrames(Limits(stall=value))._stall,
    "Retry(base_delay)": lambda value, url: asked(url, "with_retry", value),
    "Retry(max_delay)": lambda value, _: Retry(max_delay=value).delay_before(40, random.Random(1)),
    "ScriptedModel.fails(retry_after)": lambda value, _: str(
        ScriptedModel.fails("rate_limit", retry_after=value).answers
    ),
    "ScriptedModel.reasoning(delay)": lambda value, _: (
        ScriptedModel.reasoning("a b", delay=value).answers
    ),
    "ScriptedModel.stalls(seconds)": lambda value, _: ScriptedModel.stalls(value).answers,
    "ScriptedModel.text(delay)": lambda value, _: ScriptedModel.text("a b", delay=value).answers,
    "Step.fails(retry_after)": lambda value, _: (
        Step.fails("rate_limit", retry_after=value).pieces[0].error.retry_after  # type: ignore[union-attr]
    ),
    "Step.reasoning(delay)": lambda value, _: Step.reasoning("a b", delay=value),
    "Step.stalls(seconds)": lambda value, _: Step.stalls(value),
    "Step.text(delay)": lambda value, _: Step.text("a b", delay=value),
    "Think(chat_stream_stall_timeout)": stalled_class,
    "Think.wait_until_stable(timeout)": stable_within,
    "TurnConfig(chat_stream_stall_timeout)": stalled_turn,
    "TurnConfig(timeout)": lambda value, _: model_settings(
        timeout=TurnConfig(timeout=value).timeout
    ),
    "Worker.run(kill_after)": lambda value, url: worked(url, forever, kill_after=value),
    "Worker.run(timeout)": lambda value, url: worked(url, nothing, timeout=value),
    "tool(timeout)": lambda value, _: limited(value),
}

OTHERS = {  # numbers that are no durations
    "ChatRecovery(max_recovery_work)",
    "ProactiveCompaction(headroom)",
    "TurnConfig(frequency_penalty)",
    "TurnConfig(presence_penalty)",
    "TurnConfig(temperature)",
    "TurnConfig(top_p)",
}
RESULTS = {  # what users are told, and do not give
    "ChatRecoveryContext(age)",
    "KeepRecoveringContext(age)",
    "ModelFailed(retry_after)",
    "Schedule(interval)",
    "SearchHit(score)",
    "StoreStatistics(blocked_for)",
    "StoreStatistics(fsync_average)",
    "StoreStatistics(latency_p50)",
    "StoreStatistics(latency_p99)",
    "StoreStatistics(mean_group)",
    "StoreStatistics(unavailable_for)",
    "ToolCallResultContext(duration_ms)",
}


async def outcome(use: Use, value: Any, url: str) -> Any:
    came_of_it = use(value, url)
    return await came_of_it if isinstance(came_of_it, Awaitable) else came_of_it


def test_the_table_names_every_duration_of_the_public_api() -> None:
    inherited = {"Think.schedule(when)", "Think.schedule_every(interval)"}
    numbers = {
        f"{owner}({name})"
        for owner, name, annotation, _ in parameters()
        if re.search(r"\b(float|timedelta)\b", annotation) and name != "return"
    }
    assert numbers - inherited == set(DURATIONS) | OTHERS | RESULTS


@pytest.mark.parametrize("name", DURATIONS)
async def test_a_duration_means_the_same_in_seconds_and_as_a_timedelta(
    name: str, tmp_path: Any
) -> None:
    # What waits in real time does not wait here; and what waits to be shown, not for a minute.
    minute = {"Worker.run(kill_after)": 0, "Host(flush)": 1}.get(name, 60)
    given = [minute, float(minute), timedelta(seconds=minute)]
    came = [
        await outcome(DURATIONS[name], value, f"sqlite:///{tmp_path}/{index}.db")
        for index, value in enumerate(given)
    ]
    assert came[0] == came[1] == came[2]


@pytest.mark.parametrize(
    "wrong",
    ["60", True, math.nan, -1, -0.5, timedelta(seconds=-1), [60]],
    ids=["text", "bool", "nan", "negative", "a bit negative", "negative timedelta", "list"],
)
@pytest.mark.parametrize("name", DURATIONS)
async def test_what_is_no_duration_is_refused_by_name(name: str, wrong: Any, tmp_path: Any) -> None:
    if (name, wrong) == ("Agent.schedule(when)", "60"):
        wrong = b"60"  # a text is a cron text
    parameter = re.sub(r".*\((\w+)\)", r"\1", name)
    called = {"when": "when|a delay", "interval": "an interval"}.get(parameter, parameter)
    with pytest.raises((TypeError, ValueError, OutlastError)) as refusal:
        await outcome(DURATIONS[name], wrong, f"sqlite:///{tmp_path}/refusing.db")
    assert re.match(rf"(.*: )?({called}) must ", str(refusal.value)), refusal.value
    assert repr(wrong) in str(refusal.value)


@pytest.mark.parametrize("endless", [math.inf, 10**400, 1e300, timedelta.max])
def test_an_endless_duration_is_a_very_long_one_that_can_be_added_to_a_time(endless: Any) -> None:
    assert seconds(endless) == FOREVER
    assert FiberRecovery(retry=endless, retry_at_most=endless).delay_after(20) < 2**62
