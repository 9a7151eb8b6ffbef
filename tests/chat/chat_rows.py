"""What must hold for the rows of a chat agent, and for what its model was asked, whatever has happened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast import Host
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.model.beginnings import asks_to_continue
from outlast.store.operations import Query

_ENTRIES = Query.same(
    "SELECT seq, id, kind, origin, policy, key, state, outcome, error, messages, options, metadata,"
    " target, message_id, attempt, cancelled, accepted_at, started_at, ended_at"
    " FROM inbox WHERE agent = ? ORDER BY seq"
)
_MESSAGES = Query.same(
    "SELECT id, parent, number, role, status, turn, body FROM messages WHERE agent = ?"
    " ORDER BY number"
)
_STREAMS = Query.same(
    "SELECT turn, seq, count, attempt, body FROM streams WHERE agent = ? ORDER BY turn, seq"
)
_LEAF = Query.same("SELECT value FROM facts WHERE agent = ? AND name = 'chat:leaf'")


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: str
    parent: str | None
    number: int
    role: str
    status: str
    turn: str | None
    body: str

    @property
    def message(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def text(self) -> str:
        return text_of(self.message, "text")


@dataclass(slots=True)
class Stored:
    """The rows of one agent."""

    entries: list[EntryRow]
    messages: dict[str, MessageRow]
    streams: dict[str, list[str]]  # the chunks of each turn
    leaf: str | None

    @property
    def path(self) -> list[MessageRow]:
        """From the leaf up, and turned round. Fails if it leads nowhere, or in a circle."""
        path: list[MessageRow] = []
        at = self.leaf
        while at is not None:
            assert at in self.messages, f"the path leads to {at}, which is not stored"
            assert len(path) < len(self.messages), "the path goes in a circle"
            path.append(self.messages[at])
            at = path[-1].parent
        return path[::-1]

    def entry(self, id: str) -> EntryRow:
        [found] = [entry for entry in self.entries if entry.id == id]
        return found


async def stored(host: Host, agent: str) -> Stored:
    """Everything that is stored of an agent; `agent` is its address as text."""
    fetch = host.store.fetch
    streams: dict[str, list[str]] = {}
    for turn, seq, count, attempt, body in await fetch(_STREAMS, agent):
        chunks = streams.setdefault(turn, [])
        assert seq == len(chunks), f"{turn}: a row begins at {seq}, after {len(chunks)} chunks"
        assert attempt >= 1
        lines = body.split("\n")
        assert len(lines) == count, "a row holds as many chunks as it says"
        assert all(isinstance(json.loads(line), dict) for line in lines)
        chunks += lines
    leaf = await fetch(_LEAF, agent)
    return Stored(
        [EntryRow(*row) for row in await fetch(_ENTRIES, agent)],
        {row[0]: MessageRow(*row) for row in await fetch(_MESSAGES, agent)},
        streams,
        json.loads(leaf[0][0]) if leaf else None,
    )


def text_of(message: dict[str, Any], kind: str) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == kind)


def said(chunks: Iterable[str], kind: str) -> str:
    """The text, or the reasoning, that these chunks carry, and that was not taken back."""
    return "".join(texts_of(chunks, kind).values())


def texts_of(chunks: Iterable[str], kind: str) -> dict[str | None, str]:
    """The same by message: a turn may go on in another one."""
    texts: dict[str | None, str] = {}
    message: str | None = None
    step = 0  # where it begins
    for chunk in map(json.loads, chunks):
        match chunk["type"]:
            case "start":
                message, step = chunk.get("messageId"), 0
                texts[message] = ""
            case "start-step":
                step = len(texts.get(message, ""))
            case "reset-step":
                texts[message] = texts.get(message, "")[:step]
            case each if each == f"{kind}-delta":
                texts[message] = texts.get(message, "") + chunk["delta"]
    return texts


@dataclass(slots=True)
class Seen:
    """Every chunk that somebody was shown, by request and seq. It outlasts the hosts."""

    chunks: dict[str, dict[int, str]] = field(default_factory=dict)

    def saw(self, request: str, seq: int, chunk: str) -> None:
        known = self.chunks.setdefault(request, {}).setdefault(seq, chunk)
        assert known == chunk, f"{request}: chunk {seq} was another one before"

    def clear(self) -> None:
        self.chunks.clear()


# --- what must hold ------------------------------------------------------------------------------


def check_all_ended(rows: Stored) -> None:
    """Every entry has one outcome, and no two of them have the same id, key or place."""
    for entry in rows.entries:
        assert entry.state == "ended", entry
        assert entry.ended_at is not None, entry
        assert entry.outcome is not None, entry
        assert entry.messages is None, "what was not applied is not kept"
        if entry.cancelled is not None:
            # A cancel may cross the end of the turn, or the look at it at boot.
            assert entry.outcome in ("aborted", "interrupted", "completed"), entry
    for name in ("seq", "id"):
        values = [getattr(entry, name) for entry in rows.entries]
        assert len(values) == len(set(values)), name
    keys = [entry.key for entry in rows.entries if entry.key is not None]
    assert len(keys) == len(set(keys))


def check_tree(rows: Stored) -> None:
    """The messages are a tree, the path is a part of it, and each body is what its row says it is."""
    numbers = [row.number for row in rows.messages.values()]
    assert len(numbers) == len(set(numbers))
    for row in rows.messages.values():
        above, steps = row.parent, 0
        while above is not None:
            assert above in rows.messages, f"{row.id} stands under {above}, which is not stored"
            above, steps = rows.messages[above].parent, steps + 1
            assert steps <= len(rows.messages), "a circle"
        assert row.message["id"] == row.id
        assert row.message["role"] == row.role
        if row.role == "assistant" and row.turn is not None:
            assert any(part["type"] != "step-start" for part in row.message["parts"]), (
                f"{row.id} is an empty bubble"
            )
            for part in row.message["parts"]:
                assert part.get("state") not in ("streaming", "input-streaming", "input-available")
    assert len(rows.path) <= len(rows.messages)


def check_answers(rows: Stored) -> None:
    """A stored answer says exactly what its streams said, once: nothing twice, nothing lost."""
    turns: dict[str, list[EntryRow]] = {}
    # What goes on by itself runs before what waits, so the order of their beginnings counts.
    for entry in sorted(rows.entries, key=lambda each: (each.started_at or 0, each.seq)):
        if entry.started_at is not None and entry.message_id is not None:
            turns.setdefault(entry.message_id, []).append(entry)
    for message_id, entries in turns.items():
        if message_id not in rows.messages or not all(e.id in rows.streams for e in entries):
            continue  # cleared, or past its retention
        if entries[0].kind == "continue":
            continue  # what it goes on with was not made by a turn
        for kind in ("text", "reasoning"):
            whole: dict[str, str] = {}
            for entry in entries:
                for id, text in texts_of(rows.streams[entry.id], kind).items():
                    whole[id or message_id] = whole.get(id or message_id, "") + text
            assert message_id in whole, "live and stored, it has one id"
            for id, text in whole.items():
                assert text_of(rows.messages[id].message, kind) == text, id


def check_seen(rows: Stored, seen: Seen, *, gone: Iterable[str] = ()) -> None:
    """Whatever anybody was shown is stored, at the same place and with the same bytes."""
    for request, chunks in seen.chunks.items():
        if request in gone:
            continue
        kept = rows.streams[request]
        for seq, chunk in chunks.items():
            assert seq < len(kept), f"{request}: chunk {seq} was seen, and is not stored: {chunk}"
            assert kept[seq] == chunk, f"{request}: chunk {seq} was seen as another one"


def check_said(rows: Stored, seen: Seen, *, gone: Iterable[str] = ()) -> None:
    """The same when the streams are gone: what anybody was told is in the message."""
    for request, chunks in seen.chunks.items():
        text = said([chunks[seq] for seq in sorted(chunks)], "text")
        if request in gone or not text:
            continue
        message = rows.entry(request).message_id
        assert message is not None, f"{request} has said something, and has no answer"
        assert text in rows.messages[message].text


def check_requests(requests: Iterable[Any], prompts: Sequence[str]) -> None:
    """What a model was asked is valid, and names the prompts in their order up to its own."""
    for request in requests:
        check_request(request.messages)
        assert prompts_of(request.messages) in [
            list(prompts[:count]) for count in range(1, len(prompts) + 1)
        ]


def check_request(messages: Sequence[Any]) -> None:
    """It ends with a request, and every call of a tool is followed by its result."""
    assert messages[-1].kind == "request", "it ends with an answer"
    for place, message in enumerate(messages):
        if message.kind != "response" or not message.tool_calls:
            continue
        results = [
            part.tool_call_id
            for part in messages[place + 1].parts
            if part.part_kind in ("tool-return", "retry-prompt")
        ]
        assert sorted(results) == sorted(call.tool_call_id for call in message.tool_calls)


def prompts_of(messages: Sequence[Any]) -> list[str]:
    return [
        part.content
        for message in messages
        for part in message.parts
        if part.part_kind == "user-prompt" and not asks_to_continue(part.content)
    ]
