"""Clients that write down what they are told, and what is known of a conversation by that."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outlast.chat.message.reducer import MessageBuilder
from outlast.client import Client
from outlast.core import json
from outlast.testing.torture.plan import Plan


@dataclass(slots=True)
class Turn:
    """What a user has asked for, and was told of it."""

    plan: Plan
    request: str
    is_behind: bool = False  # asked while another one is answered
    is_cancelled: bool = False
    decisions: dict[str, bool] = field(default_factory=dict)  # by call: whether it was allowed
    is_ignored: bool = False  # the approval was asked for, and nobody has answered
    end: str | None = None  # "done", or "failed: " and what the user is shown
    chunks: int = 0
    asked: list[str] = field(default_factory=list)  # calls that need an approval
    said_at: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    greetings: int = 0  # how often its client was connected since it has heard something
    text: str = ""
    _builder: MessageBuilder = field(default_factory=MessageBuilder)

    def hear(self, chunk: dict[str, Any]) -> None:
        self.chunks += 1
        self.heard_at, self.greetings = time.monotonic(), 0
        self._builder.apply(chunk)
        if chunk.get("type") == "tool-approval-request":
            self.asked.append(str(chunk["toolCallId"]))

    @property
    def late(self) -> float | None:
        """Seconds that it took beyond its words, if nobody stopped it or was before it."""
        if self.end != "done" or self.is_cancelled or self.is_behind:
            return None
        return max(0.0, self.heard_at - self.said_at - self.plan.duration)

    def close(self, end: str) -> None:
        self.end, self.heard_at = end, time.monotonic()
        self.text = text_of(self._builder.message())


@dataclass(slots=True)
class Conversation:
    """Everything that the clients of one agent have seen."""

    agent: str
    turns: list[Turn] = field(default_factory=list)
    seen: dict[str, dict[int, str]] = field(default_factory=dict)  # by request and seq
    changed: list[str] = field(default_factory=list)  # chunks that were different the second time
    ends: Counter[str] = field(default_factory=Counter)  # by request: how often the end was told
    spinning: list[str] = field(default_factory=list)
    on_fresh: Callable[[], None] = lambda: None
    on_greeting: Callable[[int], None] = lambda tab: None
    chunks: int = 0

    def greeted(self, tab: int) -> None:
        """A tab is connected, and has asked for what it has missed."""
        self.on_greeting(tab)
        for turn in self.turns:
            turn.greetings += tab == 0 and turn.end is None

    def heard(self, frame: dict[str, Any]) -> None:
        """A response frame, to any of the clients."""
        request, seq, body = str(frame.get("id")), frame.get("seq"), frame.get("body")
        if frame.get("done") or frame.get("error"):
            self.ends[request] += 1
        elif isinstance(seq, int) and isinstance(body, str) and body:
            self.chunks += 1
            of_request = self.seen.setdefault(request, {})
            known = of_request.setdefault(seq, body)
            if known != body:
                self.changed.append(f"{request}: chunk {seq} was {known}, and is {body}")
            elif not frame.get("replay"):
                self.on_fresh()


class Watcher(Client):
    """A client of an agent; every chunk goes into the record of its conversation."""

    def __init__(self, url: str, conversation: Conversation, number: int = 0) -> None:
        super().__init__(url, "chatter", conversation.agent)
        self._conversation = conversation
        self.number = number  # of the tab; the first one is the one that asks
        self._unended: set[str] = set()  # requests of which something was heard on this connection

    async def _greet(self, socket: Any) -> None:
        self._unended.clear()
        await super()._greet(socket)
        self._conversation.greeted(self.number)

    def _response(self, frame: dict[str, Any]) -> None:
        self._conversation.heard(frame)
        request = str(frame.get("id"))
        if frame.get("done") or frame.get("error"):
            self._unended.discard(request)
        else:
            self._unended.add(request)
        super()._response(frame)

    @property
    def indicators(self) -> list[str]:
        """What a page would show as still going on."""
        found = [f"{request} is being answered" for request in sorted(self._unended)]
        return [*found, "the agent is recovering"] if self.is_recovering else found


def text_of(message: dict[str, Any]) -> str:
    parts = message.get("parts", ())
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def folded(chunks: dict[int, str]) -> dict[str, Any]:
    """The message that these chunks make."""
    builder = MessageBuilder()
    for _, chunk in sorted(chunks.items()):
        builder.apply(json.decode(chunk))
    return builder.message()
