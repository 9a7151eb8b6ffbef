"""Turns that are interrupted, for tests: how it comes about, and what is stored of it afterwards."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from chat_rows import Stored, check_request, prompts_of, said, stored
from conversation import rows

from outlast import Host, Think
from outlast.chat.model.beginnings import asks_to_continue
from outlast.core.errors import OutlastError
from outlast.testing import Step
from support import hosting, listen

SLOW = Step.text("one two three four", delay=1)
ADDRESS = "Talker/a"


def talker(model: Any, **members: Any) -> type[Any]:
    """A class of chat agents whose interrupted turns are taken up."""
    return type("Talker", (Think,), {"model": model, **members})


async def break_off(
    url: str,
    Talker: type[Any],
    *prompts: Any,
    after: float = 2.5,
    life: str = "1",
    id: str = "s1",
    killed: bool = False,
    **options: Any,
) -> None:
    """One life of a host, which ends so many seconds after all this was submitted."""
    async with hosting(Talker, url=url, life=life, shutdown_timeout=0) as host:
        if killed:
            tell_nobody(host)
        for number, prompt in enumerate(prompts):
            name = id if number == 0 else f"{id}.{number}"
            await host.get(Talker, "a").submit_messages(prompt, submission_id=name, **options)
        await asyncio.sleep(after)


def tell_nobody(host: Host) -> None:
    """When it stops, it leaves everything as a process does that is killed."""

    async def mark_interruptions(cause: str) -> None:
        pass

    host.mark_interruptions = mark_interruptions  # type: ignore[method-assign]


async def wait_for(host: Host, Talker: type[Any]) -> Any:
    """The agent, once it has nothing left to do."""
    await host.until_settled()
    return host.get(Talker, "a")


class Told:
    """The decisions of a host, and all its events of recovery."""

    def __init__(self, host: Host) -> None:
        self._events = listen(host, "chat")

    def __call__(self, name: str) -> list[Any]:
        return [event for event in self._events if event.name == name]

    @property
    def decided(self) -> list[tuple[int, str, str]]:
        """Row, action and cause of each decision."""
        found = self("chat:recovery:decision")
        return [(each.row, each.action, each.cause) for each in found]

    @property
    def names(self) -> list[str]:
        """The events of recovery, in their order."""
        return [event.name for event in self._events if ":recovery:" in event.name]


async def incidents(host: Host, columns: str = "turn, state") -> list[Any]:
    return await rows(host, "incidents", columns, "at, turn")


async def transcript(host: Host) -> list[str]:
    """Who said what, on the path; and that every message says what its streams have said."""
    found = await stored(host, ADDRESS)
    return [f"{row.role}: {row.text}" for row in found.path]


def chunks_of(found: Stored, request: str) -> list[dict[str, Any]]:
    return [json.loads(chunk) for chunk in found.streams[request]]


def kinds(found: Stored, request: str) -> list[str]:
    return [chunk["type"] for chunk in chunks_of(found, request)]


def check_stream(found: Stored, request: str, text: str) -> None:
    """It has said this, once; it has begun once, and has one end."""
    assert said(found.streams[request], "text") == text
    seen = kinds(found, request)
    assert seen.count("finish") + seen.count("error") + seen.count("abort") == 1
    assert seen[-1] in ("finish", "error", "abort")


def check_requests(model: Any) -> None:
    """No request ends with an answer, and each call in it has its result."""
    for request in model.requests:
        check_request(request.messages)


def asked(model: Any, request: int = -1) -> list[str]:
    """What users had said in a request; without the instruction to go on."""
    return prompts_of(model.requests[request].messages)


def is_continued(model: Any, request: int = -1) -> bool:
    """Whether the model was told to go on where it had stopped."""
    return any(
        part.part_kind == "user-prompt" and asks_to_continue(part.content)
        for message in model.requests[request].messages
        for part in message.parts
    )


def call_states(message: Any) -> dict[str, str]:
    """The calls of a message: by id, the state and what our own metadata says of the outcome."""
    found: dict[str, str] = {}
    for part in message.parts:
        if "toolCallId" in part:
            note = part.get("resultProviderMetadata", {}).get("outlast", {})
            found[part["toolCallId"]] = note.get("outcome", part["state"])
    return found


class Callback:
    """What `chat` tells."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.text = ""

    def on_start(self, context: Any) -> None:
        self.told.append("start")

    def on_event(self, chunk: str) -> None:
        self.text += said([chunk], "text")

    def on_done(self) -> None:
        self.told.append("done")

    def on_error(self, error: str) -> None:
        self.told.append(f"error: {error}")

    def on_interrupted(self) -> None:
        self.told.append("interrupted")


async def chunks_read(agent: Any, request: str, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
    return [numbered async for numbered in agent.resume_stream(request, after)]


async def in_background(work: Any) -> asyncio.Task[Any]:
    """Somebody who waits, and may be left alone."""

    async def waiting() -> Any:
        with suppress(OutlastError):
            return await work

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    return task
