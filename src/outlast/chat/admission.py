"""The entry points of a chat agent. All add an entry to the inbox; they differ in what they wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from outlast.agent.commit import Commit
from outlast.agent.part import Parts
from outlast.chat.answer.attempt import Attempts
from outlast.chat.inbox import sql as rows
from outlast.chat.inbox.concurrency import Concurrency, policy_of
from outlast.chat.inbox.inbox import COMPOSED, Inbox, Request
from outlast.chat.inbox.sql import EntryRow
from outlast.chat.message.incoming import to_messages
from outlast.chat.message.results import Message, Submission, SubmissionStatus, TurnEnd, TurnResult
from outlast.chat.run.runner import Runner
from outlast.chat.run.stop import Stop
from outlast.chat.stream.stream import Stream
from outlast.chat.stream.streams import Streams
from outlast.chat.transcript.transcript import Change, Transcript
from outlast.chat.turn.notices import MessageUpdated, TranscriptChanged
from outlast.chat.turn.part import ChatPart
from outlast.chat.turn.pending import checked_schemas
from outlast.chat.turn.state import TurnState
from outlast.chat.turn.turn import EXECUTOR_TOOLS, Executor, composing_for, current_turn
from outlast.core import json
from outlast.core.abort import Abort
from outlast.core.clock import to_datetime
from outlast.core.errors import HostStopped, InsideTurn, TurnFailed, again
from outlast.core.hooks import call_hook
from outlast.core.text import problem_of, storable
from outlast.store.operations import Argument

logger = logging.getLogger("outlast.chat")

STOPPED = "its caller stopped it"
MAX_LISTED = 100
MAX_DELETED = 500
ENDED: tuple[SubmissionStatus, ...] = ("completed", "error", "aborted", "skipped", "interrupted")
_STATUSES: tuple[SubmissionStatus, ...] = ("pending", "running", *ENDED)


class StreamCallback(Protocol):
    """The methods that `chat` calls as the answer arrives. Each may be async; only `on_event` is required.

    The last call says how the turn ended: `on_done` for a completed turn only, `on_error`, `on_interrupted`,
    or `on_aborted` with the reason for a turn that was stopped or skipped. Without `on_aborted`, `on_error`
    is called instead.
    """

    def on_start(self, event: dict[str, str]) -> Any: ...
    def on_event(self, chunk: str) -> Any: ...
    def on_done(self) -> Any: ...
    def on_error(self, error: str) -> Any: ...
    def on_aborted(self, reason: str) -> Any: ...
    def on_interrupted(self) -> Any: ...


class Admission(ChatPart):
    """The entry points of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._inbox = parts[Inbox]
        self._transcript = parts[Transcript]
        self._streams = parts[Streams]
        self._state = parts[TurnState]

    # --- requests --------------------------------------------------------------------------------

    def messages(self, given: Any) -> list[dict[str, Any]]:
        """Convert input to messages; raise if it is invalid."""
        return to_messages(given, self.activation.ids)

    def message_request(
        self, origin: str, given: Any, key: str | None, options: dict[str, Any]
    ) -> Request:
        """Return a request with messages, or with a function that creates them when the turn begins."""
        if not callable(given):
            return Request("message", origin, self.messages(given), key=key, options=options)
        marked = {**options, COMPOSED: True}
        return Request("message", origin, key=key, options=marked, compose=given)

    def options(
        self, body: Mapping[str, Any] | None, client_tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Return the options of a request."""
        options: dict[str, Any] = {"body": dict(body or {})}
        if client_tools is not None:
            options["client_tools"] = checked_schemas(client_tools)
        return options

    async def last_body(self) -> Mapping[str, Any]:
        """Return the body of the request for the last answer."""
        path = self._transcript.path
        made_by = await self._transcript.turn_of(path[-1]["id"]) if path else None
        entry = None if made_by is None else await self._inbox.get(made_by)
        body = {} if entry is None else json.decode(entry.options).get("body")
        return body if isinstance(body, dict) else {}

    async def ask(self, request: Request, signal: Abort | None = None) -> TurnResult:
        """Accept a request, and wait for its end."""
        self._no_block("save_messages")
        with self._waiting("waited for"):
            entry, accepted = await self._accept(_with(signal, request))
            end = await self._end_of(entry, signal)
        return TurnResult(entry.id, end.status, end.message, end.error, end.output, accepted)

    async def _end_of(self, entry: EntryRow, signal: Abort | None) -> TurnEnd:
        if self._inbox.current(entry) is None:
            return await self._streams.end_of(await self._inbox.get(entry.id) or entry)
        forget = self._linked(entry, signal)
        try:
            return await self._state.wait(entry.id)
        finally:
            forget()

    def _linked(self, entry: EntryRow, signal: Abort | None) -> Callable[[], None]:
        """Cancel the turn when the caller's signal is set."""
        if signal is None:
            return lambda: None

        def cancel() -> None:
            reason = signal.reason or STOPPED
            self.activation.spawn(self.parts[Stop].cancel(entry.id, reason), "cancel a turn")

        return signal.listen(cancel)

    async def submit(self, request: Request) -> tuple[EntryRow, bool]:
        """Accept a request; it is answered later."""
        return await self._inbox.accept(request)

    async def message(
        self, request: Request, concurrency: Concurrency
    ) -> tuple[EntryRow | None, bool]:
        """Accept a user's message according to `message_concurrency`. None if it was dropped."""
        policy = policy_of(concurrency)
        if policy == "drop":
            if self._inbox.is_busy:  # unless it is the request being answered
                return await self._inbox.existing(request.id, request.key), False
            policy = "queue"
        return await self._inbox.accept(replace(request, policy=policy))

    async def chat(
        self,
        request: Request,
        callback: StreamCallback,
        signal: Abort | None = None,
        tools: Sequence[Any] = (),
        executor: Executor | None = None,
    ) -> None:
        """Accept a request, and pass every chunk to the callback, from the first to the end.

        An executor runs the client's tools in this turn, but not after a restart.
        """
        self._no_block("chat")
        with self._waiting("followed"):
            entry, _ = await self._accept_with(_with(signal, request), tools, executor)
            await _notify(callback, "on_start", {"request_id": entry.id})
            stream = await self.stream(entry)
            forget = self._linked(entry, signal)
            try:
                async for _, chunk in stream.read(leaves=True):
                    await _notify(callback, "on_event", chunk)
            finally:
                forget()
        end = stream.end
        if end is None or end.status == "interrupted":
            await _notify(callback, "on_interrupted")
        elif end.status == "error":
            await _notify(callback, "on_error", end.error or "")
        elif end.status == "completed":
            await _notify(callback, "on_done")
        else:
            reason = end.error or "there was nothing to answer"
            if hasattr(callback, "on_aborted"):
                await _notify(callback, "on_aborted", reason)
            else:
                what = "stopped" if end.status == "aborted" else "skipped"
                await _notify(callback, "on_error", f"The turn was {what}: {reason}")

    async def _accept_with(
        self, request: Request, tools: Sequence[Any], executor: Executor | None
    ) -> tuple[EntryRow, bool]:
        if executor is None:
            return await self._accept(request)
        schemas, executors = checked_schemas(tools), self.parts[Attempts].executors
        names = [str(schema["name"]) for schema in schemas]
        request = replace(request, options={**(request.options or {}), EXECUTOR_TOOLS: names})
        return await self._accept(request, (executors, (schemas, executor)))

    async def _accept(
        self, request: Request, *kept: tuple[dict[str, Any], Any]
    ) -> tuple[EntryRow, bool]:
        """Accept a request, and keep values in memory that its turn needs: `kept`."""
        if request.compose is not None:
            kept = (*kept, (self.parts[Runner].composing, request.compose))
        if not kept:
            return await self._inbox.accept(request)
        new: list[str] = []

        def remember(entry: EntryRow) -> None:
            new.append(entry.id)
            for where, value in kept:
                where[entry.id] = value

        accepted = False
        try:
            entry, accepted = await self._inbox.accept(request, remember)
        finally:
            if not accepted and new and self._inbox.find_open(new[0]) is None:
                for where, _ in kept:
                    where.pop(new[0], None)
        return entry, accepted

    async def follow(self, request: Request) -> AsyncIterator[list[dict[str, Any]]]:
        """Accept a request, and yield its chunks, all available ones at a time. Raises if the turn fails."""
        self._no_block("chat")
        with self._waiting("followed"):
            entry, _ = await self._accept(request)
            stream = await self.stream(entry)
            last: dict[str, Any] = {}
            async for chunks in stream.chunk_lists():
                decoded = json.decode(f"[{','.join(chunks)}]")
                last = decoded[-1]
                yield decoded
        end = stream.end
        if end is None:  # the activation ended, not the turn
            raise again(self.activation.ended or HostStopped(f"{self.address} is over"))
        if end.status in ("error", "interrupted"):
            text = end.error or "An error occurred."
            if last.get("type") != "error":
                yield [{"type": "error", "errorText": text}]
            raise TurnFailed(text)

    async def resume(self, id: str, after: int) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Yield the chunks of a request from a seq on, with their seqs: first stored ones, then new ones."""
        entry = await self._inbox.get(id)
        if entry is None:
            raise LookupError(f"{self.address} has no request {id!r}")
        stream = await self.stream(entry)
        async for seq, chunk in stream.read(after):
            yield seq, json.decode(chunk)
        if stream.end is None:
            raise again(self.activation.ended or HostStopped(f"{self.address} is over"))

    async def stable(self, timeout: float | None) -> bool:
        """Wait until no turn runs or waits, and no call is pending. False on timeout."""
        with self._waiting("waited for"):
            try:
                async with asyncio.timeout(timeout):
                    await self.parts[Runner].until_stable()
            except TimeoutError:
                return False
        return True

    async def stream(self, entry: EntryRow) -> Stream:
        """Return the stream of an entry, live or stored."""
        if entry.ended_at is None:
            current = self._inbox.current(entry)
            if current is not None:
                return self._streams.of(current)
        stored = await self._inbox.get(entry.id)
        return await self._streams.stored(stored or entry)

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Raise if waiting for a turn of this agent would deadlock."""
        if composing_for.get() == self.address:
            raise InsideTurn(
                f"a turn of {self.address} cannot be {what} by the function that creates the messages of a"
                " turn, which must return first; use submit_messages(), which does not wait"
            )
        turn = current_turn.get()
        if turn is None or not turn.is_running:
            yield
            return
        if turn.agent == self.address:
            raise InsideTurn(
                f"a turn of {self.address} cannot be {what} from inside one of its turns, which must"
                f" end first; use submit_messages(), which does not wait"
            )
        if self._state.waits_for(turn):
            raise InsideTurn(
                f"a turn of {self.address} cannot be {what} from inside a turn of {turn.agent}, because"
                f" {self.address} waits for that turn; use submit_messages(), which does not wait"
            )
        turn.waits_for.append(self._state)
        try:
            yield
        finally:
            turn.waits_for.remove(self._state)

    # --- messages without a turn -----------------------------------------------------------------

    async def add(self, given: Any) -> list[Message]:
        """Append messages to the conversation. Messages that are stored already are not changed."""
        self._no_block("add_messages")
        if callable(given):
            given = await call_hook(given, [Message(message) for message in self._transcript.path])
        messages = self.messages(given)
        async with self._transcript.changing:
            known = await self._transcript.stored_ids([message["id"] for message in messages])
            new = [message for message in messages if message["id"] not in known]
            key = self._inbox.derived_key(Request("add", "add", messages))
            if not new or (key and await self._inbox.existing(None, key)):
                return []
            commit = self.commits.new()
            if key is not None:  # recognised if the surrounding durable work runs again
                self._inbox.write_ended(commit, self._inbox.entry(Request("add", "add", key=key)))
            self._apply(commit, self._transcript.appending(new))
            await commit.stored()
        return [Message(message) for message in new]

    async def update(self, message: Any) -> bool:
        """Replace the stored message with this id. False if it does not exist."""
        self._no_block("update_message")
        if not isinstance(message, Message | dict) or not (
            message.id if isinstance(message, Message) else message.get("id")
        ):
            raise ValueError("a message that replaces another must have its id")
        (given,) = self.messages(message.raw if isinstance(message, Message) else message)
        async with self._transcript.changing:
            stored = await self._transcript.get(given["id"])
            if stored is None:
                return False
            if stored.get("role") != given["role"]:
                raise ValueError(f"the role of {given['id']!r} must stay {stored.get('role')!r}")
            commit = self.commits.new()
            self._apply(commit, self._transcript.replacing(given), given)
            await commit.stored()
        return True

    async def select(self, id: str) -> bool:
        """Switch to the branch of this message: to the newest message below it."""
        self._no_block("select_branch")
        async with self._transcript.changing:
            leaf = await self._transcript.newest_below(id)
            if leaf is None:
                return False
            change = await self._transcript.branching(leaf)
            if self._transcript.is_changed_by(change):
                commit = self.commits.new()
                self._apply(commit, change)
                await commit.stored()
        return True

    def _apply(self, commit: Commit, change: Change, message: dict[str, Any] | None = None) -> None:
        """Change the conversation without a turn; `message` is set if only that one changed."""
        self._transcript.apply(commit, change)
        shown = self._state.shown_messages
        notice = TranscriptChanged(shown) if message is None else MessageUpdated(message)
        commit.then(lambda: self.activation.tell(notice))
        commit.then(self._state.transcript_changed)

    def _no_block(self, what: str) -> None:
        if self.commits.current() is not None:
            raise RuntimeError(
                f"{what}() must not be called inside a commit() block; call it after the block"
            )

    # --- submissions -----------------------------------------------------------------------------

    async def inspect(self, id: str) -> Submission | None:
        entry = await self._inbox.get(id)
        return (
            None
            if entry is None or not self._inbox.origins[entry.origin].is_listed
            else submission(entry)
        )

    async def list(
        self, status: SubmissionStatus | Iterable[SubmissionStatus] | None, limit: int
    ) -> list[Submission]:
        _check_limit(limit, MAX_LISTED)
        wanted = _statuses(status)
        if status is not None and not wanted:
            return []
        outcomes = [each for each in wanted if each in ENDED]
        query = rows.listing(
            len(outcomes), pending="pending" in wanted, running="running" in wanted
        )
        return [submission(entry) for entry in await self._inbox.fetch(query, *outcomes, limit)]

    async def delete(
        self,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None,
        completed_before: datetime | None,
        limit: int,
    ) -> int:
        """Delete submissions that have ended; other statuses are ignored."""
        _check_limit(limit, MAX_DELETED)
        wanted = ENDED if status is None else _statuses(status)
        outcomes = [each for each in wanted if each in ENDED]
        if not outcomes:
            return 0
        arguments: list[Argument] = [self.address, *outcomes]
        if completed_before is not None:
            if completed_before.tzinfo is None:
                raise ValueError("completed_before must have a time zone; use datetime.now(UTC)")
            arguments.append(int(completed_before.timestamp() * 1000))
        statement = rows.deletion(len(outcomes), completed_before is not None)
        touched = await self.commits.write([(statement, (*arguments, limit))])
        return 0 if touched is None else touched[0]


def submission(entry: EntryRow, *, accepted: bool = True) -> Submission:
    status: SubmissionStatus = entry.outcome or (
        "pending" if entry.state == "accepted" else "running"
    )
    return Submission(
        id=entry.id,
        status=status,
        idempotency_key=entry.key,
        metadata=_metadata(entry),
        error=entry.error,
        created_at=to_datetime(entry.accepted_at),
        started_at=None if entry.started_at is None else to_datetime(entry.started_at),
        completed_at=None if entry.ended_at is None else to_datetime(entry.ended_at),
        accepted=accepted,
    )


def _metadata(entry: EntryRow) -> Any:
    try:
        return None if entry.metadata is None else json.decode(entry.metadata)
    except ValueError as error:
        logger.error("cannot read the metadata of the request %s: %s", entry.id, error)
        return None


def check_text(what: str, value: str | None) -> None:
    if value is not None and (problem := problem_of(value)) is not None:
        raise ValueError(f"{what} {problem}")


def _with(signal: Abort | None, request: Request) -> Request:
    """Return the request, already cancelled if the caller's signal is set."""
    if signal is None or not signal.is_set:
        return request
    return replace(request, cancelled=storable(signal.reason or STOPPED))


async def _notify(callback: StreamCallback, name: str, *arguments: Any) -> None:
    method = getattr(callback, name, None)
    if method is not None:
        await call_hook(method, *arguments)


def _statuses(
    status: SubmissionStatus | Iterable[SubmissionStatus] | None,
) -> Sequence[SubmissionStatus]:
    if status is None:
        return ()
    wanted = (status,) if isinstance(status, str) else tuple(status)
    for each in wanted:
        if each not in _STATUSES:
            raise ValueError(f"status must be one of {', '.join(_STATUSES)}, got {each!r}")
    return wanted


def _check_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise ValueError(f"limit must be from 1 to {most}, got {limit}")
