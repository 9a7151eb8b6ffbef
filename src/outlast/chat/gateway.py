"""The interface of servers to a chat agent: what clients see, and their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outlast.agent.agent import parts_of
from outlast.agent.part import Parts
from outlast.chat.admission import Admission, check_text, submission
from outlast.chat.inbox.concurrency import Concurrency
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.inbox.origin import AUTO
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.content import restored, value_of
from outlast.chat.message.incoming import to_messages
from outlast.chat.message.results import Submission, TurnEnd
from outlast.chat.stream.stream import Stream
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.shown import Shown
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.failure import reported
from outlast.chat.turn.notices import Started
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.state import TurnState
from outlast.chat.types.contexts import ChatErrorContext, ChatErrorStage


class Situation(NamedTuple):
    """The state of an agent, for a client that joins now."""

    started: Started | None  # the running turn
    waiting: list[str]  # accepted requests whose turns have not begun
    failed: str | None  # the last request, if it failed
    recovering: bool


class StoredTurn(NamedTuple):
    """An ended turn, with the chunks that are still kept."""

    chunks: list[str]
    end: TurnEnd
    continuation: bool
    message_ids: tuple[str, ...]


class ChatGateway(ChatPart):
    """The entry point for servers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self._state = parts[TurnState]
        self._admission = parts[Admission]

    def messages(self) -> Shown:
        """Return what clients see: the stored path, and accepted messages that are not part of it yet."""
        return self._state.shown_messages()

    async def earlier(self, id: str, most: int, count: int) -> Shown | None:
        """Return the messages before one, as many as fit; None if that message does not exist."""
        return await self._transcript.before(id, most, count)

    async def content(self, message_id: str, key: str) -> Mapping[str, Any] | None:
        """Return the part of a message that contains a large value, or None."""
        live = self._state.live
        if live is not None and live.message_id == message_id:
            message: Mapping[str, Any] | None = live.builder.message()
        else:
            message = await self._transcript.get(message_id)
        return None if message is None else value_of(message, key)

    @property
    def is_used(self) -> bool:
        """Whether the agent ever accepted a request."""
        return self._inbox.last_seq > 0

    async def forks(self) -> dict[str, list[str]]:
        """Return the shown messages that have siblings, each with the siblings' ids in order."""
        return await self._transcript.forks()

    def situation(self) -> Situation:
        started = self._state.started()
        running = None if started is None else started.request_id
        # A turn that was interrupted in another process waits, too: for recovery.
        left = [each for each in self._inbox.open if each.id != running]
        waiting = [each.id for each in left if each.cancelled is None or each.state == "running"]
        is_failed = not waiting and bool(self._transcript.path)  # not after a clear
        failed = self._inbox.last_failed if is_failed else None
        return Situation(started, waiting, failed, self._state.recovering is not None)

    async def stored(self, id: str) -> StoredTurn | None:
        """Return an ended request; None if it is unknown or has not ended."""
        entry = await self._inbox.get(id)
        if entry is None or entry.ended_at is None:
            return None
        stream = await self._streams.stored(entry)
        assert stream.end is not None
        ids = self._state.message_ids(entry)
        return StoredTurn(stream.chunks, stream.end, entry.kind == "continue", ids)

    # --- requests --------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of open requests."""
        return len(self._inbox.open)

    @property
    def last_seq(self) -> int:
        """The seq of the last accepted request."""
        return self._inbox.last_seq

    def is_open(self, id: str) -> bool:
        """Return whether a request is open."""
        return self._inbox.find_open(id) is not None

    async def entry(self, id: str) -> EntryRow | None:
        """Return a request, open or ended, or None."""
        return await self._inbox.get(id)

    def continuations(self, after: int = 0) -> list[EntryRow]:
        """Return the open automatic continuations that were accepted after a seq."""
        return [each for each in self._inbox.open if each.origin == AUTO and each.seq > after]

    async def stream(self, entry: EntryRow) -> Stream:
        """Return the stream of a request, live or stored."""
        return await self._admission.stream(entry)

    def _options(
        self, body: Mapping[str, Any] | None, client_tools: Sequence[Any] | None, principal: Any
    ) -> dict[str, Any]:
        """Return the options of a request, with its principal."""
        options = self._admission.options(body, client_tools)
        if principal is not None and principal is not True:
            options["principal"] = principal
        return options

    async def submit(
        self,
        messages: Any,
        *,
        key: str | None = None,
        metadata: Any = None,
        body: Mapping[str, Any] | None = None,
        principal: Any = None,
    ) -> Submission:
        """Accept a submission."""
        check_text("Idempotency-Key", key)
        given = to_messages(messages, self.activation.ids)
        if not given:
            raise ValueError("messages must not be empty")
        options = self._options(body, None, principal)
        request = Request(
            "message", "submission", given, key=key, options=options, metadata=metadata
        )
        entry, accepted = await self._inbox.accept(request)
        return submission(entry, accepted=accepted)

    async def ask(
        self,
        id: str,
        messages: Sequence[dict[str, Any]],
        *,
        regenerates: str | None,
        body: Mapping[str, Any],
        client_tools: Sequence[Any] | None,
        concurrency: Concurrency,
        principal: Any = None,
    ) -> tuple[EntryRow | None, bool]:
        """Accept a client's request. None if it was dropped."""
        options = self._options(body, client_tools, principal)
        if regenerates is not None and (not messages or await self._is_known(regenerates)):
            target = regenerates or None
            request = Request("regenerate", "chat", id=id, target=target, options=options)
            return await self._inbox.accept(request)
        stored = {each["id"]: each for each in self._transcript.path}
        messages = [restored(message, stored.get) for message in messages]
        given = to_messages(messages, self.activation.ids)
        if given and self._is_edit(given[-1]):  # an edited message: answer it again
            edited = given[-1:]
            target = edited[0]["id"]
            request = Request("regenerate", "chat", edited, id=id, target=target, options=options)
            return await self._inbox.accept(request)
        request = Request("message", "chat", given, id=id, options=options)
        return await self._admission.message(request, concurrency)

    async def refused(
        self,
        failure: Exception,
        id: str | None,
        stage: ChatErrorStage,
        *,
        default: str | None = None,
    ) -> str:
        """Report a request that was not accepted. Returns the message for its client."""
        context = ChatErrorContext(id, stage, messages_persisted=False)
        found = await reported(self.parts, failure, context, default=default)
        return found.shown

    async def _is_known(self, id: str) -> bool:
        """Return whether a message is stored, or part of a waiting request."""
        waiting = (self._state.message_ids(entry) for entry in self._inbox.open)
        return any(id in ids for ids in waiting) or bool(await self._transcript.stored_ids([id]))

    def _is_edit(self, message: dict[str, Any]) -> bool:
        stored = [each for each in self._transcript.path if each["id"] == message["id"]]
        return any(
            each["role"] == message["role"] == "user" and each["parts"] != message["parts"]
            for each in stored
        )


def chat_of(agent: Any) -> ChatGateway:
    """Return the gateway of a chat agent."""
    return parts_of(agent)[ChatGateway]


def is_chat(agent: Any) -> bool:
    """Return whether an agent is a chat agent."""
    return parts_of(agent).get(ChatGateway) is not None
