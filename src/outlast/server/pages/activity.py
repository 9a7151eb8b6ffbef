"""The activity of a host for the chat page: its recent events, kept and streamed.

A page that lost its connection when a process died reconnects when the next one is already working. So the
last few hundred events since the start of the host are kept, and each reader receives them first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from outlast.chat.types.events import ModelAsked
from outlast.core.events import Event
from outlast.host.life.host import Host

KEPT = 400  # events
QUEUED = 1000  # events queued for a slow reader; older ones are dropped

Entry = dict[str, Any]


class Activity:
    """The events of one host. Subscribes on `attach`."""

    def __init__(self) -> None:
        self._kept: deque[Entry] = deque(maxlen=KEPT)
        self._followers: set[asyncio.Queue[Entry]] = set()
        self._count = 0

    def attach(self, host: Host) -> None:
        """Subscribe to the events of this host, which is about to start."""
        self._publish(
            {
                "name": "host:started",
                "at": int(time.time() * 1000),
                "severity": "info" if host.cause in (None, "deploy") else "warning",
                "agent": None,
                "pid": os.getpid(),
                "cause": host.cause,
            }
        )
        host.events.subscribe("*", self._hear)

    def _hear(self, event: Event) -> None:
        if event.channel == "rpc" or isinstance(event, ModelAsked):
            return  # whole conversations are for the inspector, not for an activity line
        entry = {
            "name": event.name,
            "at": event.at,
            "severity": event.severity,
            "agent": event.agent,
        }
        self._publish({**event.payload, **entry})

    def _publish(self, entry: Entry) -> None:
        self._count += 1
        entry = {**entry, "seq": self._count}
        self._kept.append(entry)
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()
            follower.put_nowait(entry)

    @contextmanager
    def _following(self) -> Iterator[asyncio.Queue[Entry]]:
        queue: asyncio.Queue[Entry] = asyncio.Queue(QUEUED)
        for entry in self._kept:
            queue.put_nowait(entry)
        self._followers.add(queue)
        try:
            yield queue
        finally:
            self._followers.discard(queue)

    async def follow(self, agent: str | None) -> AsyncIterator[Entry]:
        """Yield past, then new events of an agent and of the host; None: of every agent."""
        with self._following() as queue:
            while True:
                entry = await queue.get()
                if agent is None or entry["agent"] in (None, agent):
                    yield entry
