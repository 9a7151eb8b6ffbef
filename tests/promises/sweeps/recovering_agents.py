"""Agents whose model goes on where it stopped, and whose tools are counted: for sweeps of recovery."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_rows import Seen
from conversation import followed
from pydantic_ai.messages import ModelMessage

from outlast import NotDone, StepContext, Think, ToolCall, tool
from outlast.agent.agent import parts_of
from outlast.chat.inbox.inbox import Inbox
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.model.beginnings import asks_to_continue
from outlast.chat.turn.state import TurnState
from outlast.chat.types.events import RecoveryDecided
from outlast.chat.types.recovery import ChatRecoveryContext
from outlast.store.operations import Query
from outlast.testing import ScriptedModel, Step

THOUGHT = "Well, let me see."
TEXTS = {
    "one": "The answer to one.",
    "two": "To two.",
    "three": "And to three.",
    "four": "Four it is.",
    "stop": "This one never comes to its end.",
    "work": "I see to it. Once more. All is done.",
    "ask": "May I? Thank you.",
}
STAGES = {"work": ("I see to it. ", "Once more. "), "ask": ("May I? ",)}
CALLS = {"work": ("mail", "look", "book", "pay"), "ask": ("locate", "delete")}
LOCATE = {"name": "locate", "inputSchema": {"type": "object", "properties": {}}}


@dataclass(slots=True)
class World:
    """What is outside, and does not die: what listeners have seen, and what tools have done."""

    seen: Seen = field(default_factory=Seen)
    accepted: set[str] = field(default_factory=set)  # requests that somebody was told of
    cancelled_at: list[int] = field(default_factory=list)  # requests to the model by then
    mails: list[str] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    books: list[str] = field(default_factory=list)
    payments: list[str] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)
    recoveries: list[str] = field(default_factory=list)  # what was done about interruptions

    def outside(self) -> list[Any]:
        """All of it, for a sweep."""
        others = [getattr(self, name) for name in self.__slots__ if name != "seen"]
        return [self.seen.chunks, *others, model.requests]

    def forget(self) -> None:
        for each in self.outside():
            each.clear()


world = World()
decided: set[int] = set()  # of the decision table, in all the lives of a sweep


# --- the model -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Position:
    """How far the answer to the last prompt has come, as the messages tell it."""

    prompt: str = ""
    said: str = ""
    has_thought: bool = False
    settled: list[str] = field(default_factory=list)  # tools whose outcome needs no second call


def position_of(messages: Sequence[ModelMessage]) -> Position:
    at = Position()
    for message in messages:
        for part in message.parts:
            if part.part_kind == "user-prompt" and not asks_to_continue(part.content):
                at = Position(str(part.content))
            elif part.part_kind == "text":
                at.said += part.content
            elif part.part_kind == "thinking":
                at.has_thought = True
            elif part.part_kind == "tool-return" and (
                part.outcome == "success" or "is unknown" in str(part.content)
            ):
                at.settled.append(part.tool_name)
    return at


def answer(messages: list[ModelMessage]) -> Step:
    """The rest of what there is to say and to call, word by word."""
    at = position_of(messages)
    whole, stages = TEXTS[at.prompt], STAGES.get(at.prompt, ())
    missing = [name for name in CALLS.get(at.prompt, ()) if name not in at.settled]
    if missing:
        whole = stages[0]
    elif at.prompt == "work" and at.settled.count("book") < 2:
        whole, missing = stages[0] + stages[1], ["book"]  # the same again: it has a key
    assert whole.startswith(at.said), f"{at.prompt}: {at.said!r} is no beginning of {whole!r}"
    delay = 1 if at.prompt == "stop" else 0.01
    thinks = at.prompt in ("one", "three") and not at.said and not at.has_thought
    step = Step.reasoning(THOUGHT, delay=delay) if thinks else Step()
    step = step + Step.text(whole[len(at.said) :], delay=delay)
    for name in missing:
        step = step + Step.call(name, {"what": name}, id=f"call-{name}")
    return step


model = ScriptedModel.answering(answer)


# --- the agents ----------------------------------------------------------------------------------


class Talker(Think):
    model = model

    async def on_start(self) -> None:
        events = parts_of(self).activation.events
        events.subscribe(RecoveryDecided, lambda event: decided.add(event.row))  # type: ignore[attr-defined]

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> None:
        world.recoveries.append(context.recovery_kind)
        await asyncio.sleep(0.01)  # much may happen meanwhile

    async def on_step_finish(self, context: StepContext) -> None:
        await asyncio.sleep(0.01)  # a whole answer is durable, and its end is not

    async def follow(self, request: str, after: int = 0) -> AsyncIterator[tuple[int, str]]:
        """The stream of a request, from a place on."""
        async for item in followed(self, request, after):
            yield item

    async def open_requests(self) -> list[EntryRow]:
        return list(parts_of(self)[Inbox].open)

    async def knows(self, message: str) -> bool:
        """Whether the message was accepted."""
        waiting = [
            entry.messages for entry in parts_of(self)[Inbox].open if entry.messages is not None
        ]
        if any(message == one["id"] for each in waiting for one in json.loads(each)):
            return True
        return await self.get_message(message) is not None

    async def count(self, kind: str) -> int:
        query = Query.same("SELECT count(*) FROM inbox WHERE agent = ? AND kind = ?")
        found = await parts_of(self).activation.store.fetch(
            query, parts_of(self).activation.address.text, kind
        )
        return int(found[0][0])

    async def remind(self) -> None:
        """Add a note, a moment later, when an answer is on its way."""
        if not await self.storage.get("reminded"):
            async with self.commit():
                await self.storage.put("reminded", True)
                await self.schedule(0.05, self.note)

    async def note(self) -> None:
        await self.add_messages(user("note"))

    async def is_recovering(self) -> bool:
        """Whether clients are shown that it is, or something is stored for the case."""
        for table in ("incidents", "boots"):
            query = Query.same(f"SELECT count(*) FROM {table} WHERE agent = ?")
            found = await parts_of(self).activation.store.fetch(
                query, parts_of(self).activation.address.text
            )
            assert found[0][0] == 0, f"{table} has rows left"
        return parts_of(self)[TurnState].recovering is not None


class Hasty(Talker):
    async def on_start(self) -> None:
        """The next message is there before it is decided what becomes of the one before it."""
        await super().on_start()
        if await self.knows("u-one"):
            await self.submit_messages(user("two"), idempotency_key="two")


class Clerk(Talker):
    @tool
    async def mail(self, what: str, call: ToolCall) -> str:
        """Send a mail."""
        world.mails.append(call.idempotency_key)
        await asyncio.sleep(0.05)
        return "sent"

    @tool(effect="read")
    async def look(self, what: str, call: ToolCall) -> str:
        """Look at something."""
        world.looks.append(call.idempotency_key)
        await asyncio.sleep(0.02)
        return "seen"

    @tool(idempotency_key=lambda call: "the table")
    async def book(self, what: str) -> str:
        """Book a table."""
        world.books.append(what)
        await asyncio.sleep(0.01)
        return "booked"

    @tool(reconcile="was_paid")
    async def pay(self, what: str, call: ToolCall) -> str:
        """Pay a bill."""
        await asyncio.sleep(0.01)
        world.payments.append(call.idempotency_key)
        await asyncio.sleep(0.02)
        return "paid"

    async def was_paid(self, call: ToolCall) -> Any:
        return "paid" if call.idempotency_key in world.payments else NotDone()

    @tool(needs_approval=True)
    async def delete(self, what: str, call: ToolCall) -> str:
        """Delete something."""
        assert call.approved
        world.deletions.append(call.idempotency_key)
        return "deleted"


def user(prompt: str) -> dict[str, Any]:
    return {"id": f"u-{prompt}", "role": "user", "parts": [{"type": "text", "text": prompt}]}


class Listener:
    """A callback of `chat`."""

    def __init__(self, enough: int = 0) -> None:
        self.request = ""
        self.count = 0
        self.enough = enough
        self.begun = asyncio.Event()
        self.heard_enough = asyncio.Event()

    def on_start(self, event: dict[str, str]) -> None:
        self.request = event["request_id"]
        world.accepted.add(self.request)
        self.begun.set()

    def on_event(self, chunk: str) -> None:
        world.seen.saw(self.request, self.count, chunk)
        self.count += 1
        if self.count == self.enough:
            self.heard_enough.set()


async def watch(agent: Talker, request: str, after: int = 0) -> None:
    """One more reader, who comes later and starts at some place."""
    at = after
    async for seq, chunk in agent.follow(request, after):
        assert seq == at, "no gap, no repetition"
        world.seen.saw(request, seq, chunk)
        at += 1
