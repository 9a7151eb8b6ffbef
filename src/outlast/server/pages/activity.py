"""What a host is doing, as a line for people: its events, kept for a while and told as they come.

A page that was cut off when a process died comes back when the next one is at work already. So events are
kept from the start of the host on, the last few hundred, and whoever asks is told those first.
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
QUEUED = 1000  # events that may wait for a slow reader; older ones are dropped

Told = dict[str, Any]


class Activity:
    """The events of one host. Listens from `attach` on."""

    def __init__(self) -> None:
        self._kept: deque[Told] = deque(maxlen=KEPT)
        self._followers: set[asyncio.Queue[Told]] = set()
        self._count = 0

    def attach(self, host: Host) -> None:
        """Listen to this host, which is about to start."""
        self._tell(
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
            return  # whole conversations are for the inspector, not for a line
        told = {
            "name": event.name,
            "at": event.at,
            "severity": event.severity,
            "agent": event.agent,
        }
        self._tell({**event.payload, **told})

    def _tell(self, told: Told) -> None:
        self._count += 1
        told = {**told, "seq": self._count}
        self._kept.append(told)
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()
            follower.put_nowait(told)

    @contextmanager
    def _following(self) -> Iterator[asyncio.Queue[Told]]:
        queue: asyncio.Queue[Told] = asyncio.Queue(QUEUED)
        for told in self._kept:
            queue.put_nowait(told)
        self._followers.add(queue)
        try:
            yield queue
        finally:
            self._followers.discard(queue)

    async def follow(self, agent: str | None) -> AsyncIterator[Told]:
        """What happened to an agent and to the host, then what happens. None: to every agent."""
        with self._following() as queue:
            while True:
                told = await queue.get()
                if agent is None or told["agent"] in (None, agent):
                    yield told
