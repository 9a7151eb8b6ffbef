"""The chat agent that users subclass. Each method delegates to the part that implements it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, overload

from outlast.agent.agent import Agent
from outlast.agent.fibers.fibers import Fibers
from outlast.agent.part import Part, Parts
from outlast.chat.admission import Admission, StreamCallback, check_text, submission
from outlast.chat.answer.attempt import Attempts
from outlast.chat.context.view import ModelView
from outlast.chat.gateway import ChatGateway
from outlast.chat.hooks import Overridable
from outlast.chat.inbox import sql as inbox_rows
from outlast.chat.inbox.concurrency import policy_of
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.message.results import Message, Submission, SubmissionStatus, TurnResult
from outlast.chat.recovery import operators
from outlast.chat.recovery.boot import BootStrikes
from outlast.chat.recovery.finish import InterruptedEnds
from outlast.chat.recovery.incidents import Incidents
from outlast.chat.recovery.judge import Judge
from outlast.chat.recovery.operators import RecoveryIncident
from outlast.chat.recovery.resume import Resumption
from outlast.chat.recovery.upgrade import Upgrade
from outlast.chat.run import response_hook
from outlast.chat.run.response_hook import ResponseHook
from outlast.chat.run.retention import Retention
from outlast.chat.run.runner import Runner
from outlast.chat.run.stop import Stop
from outlast.chat.stream.streams import Streams
from outlast.chat.tools.clashes import ToolClashes
from outlast.chat.tools.idempotency import KeyedCalls
from outlast.chat.tools.ledger import Ledger
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.claim import Claims
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.pending import PendingCalls
from outlast.chat.turn.settle import Settler
from outlast.chat.turn.state import TurnState, TurnStatistics
from outlast.chat.turn.traces import Traces
from outlast.chat.turn.turn import Executor, current_turn
from outlast.chat.types.config import check_max_steps
from outlast.chat.types.continuation import continuation_of
from outlast.chat.types.recovery import recovery_of
from outlast.core.abort import Abort
from outlast.core.clock import seconds
from outlast.host.life.activation import Activation
from outlast.store.operations import Query

logger = logging.getLogger("outlast.chat")


class Think(Overridable):
    """A chat agent: name a model, and every answer outlasts its process.

    ```python
    from outlast import Host, Think, tool
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello! How can I help?")      # or "anthropic:claude-sonnet-5", …
        system_prompt = "You are a concise assistant."

    async with Host(agents=[Assistant], store="sqlite:///chat.db") as host:
        alice = host.get(Assistant, "alice")
        turn = await alice.save_messages("Hi")
        assert (turn.status, turn.message.text) == ("completed", "Hello! How can I help?")
        assert [message.role for message in await alice.get_messages()] == ["user", "assistant"]
    ```
    """

    _part_types: ClassVar[tuple[Callable[[Parts], Part | None], ...]] = (
        *Agent._part_types,
        Inbox,
        Incidents,
        BootStrikes,
        Transcript,
        Streams,
        TurnState,
        Retention,
        PendingCalls,
        ResponseHook.of,
        Settler,
        Ledger,
        KeyedCalls,
        ToolClashes,
        PartRepair,
        Traces,
        Claims,
        ModelView,
        Attempts,
        Runner,
        Stop,
        Judge,
        InterruptedEnds,
        Resumption,
        Upgrade,
        Admission,
        ChatGateway,
    )
    _unfinished_work: ClassVar[tuple[Query, ...]] = (
        *Agent._unfinished_work,
        inbox_rows.OPEN_AGENTS,
        response_hook.DUE_AGENTS,
    )
    _for_operators: ClassVar[frozenset[str]] = Agent._for_operators | operators.CALLS
    _through_a_stub: ClassVar[Mapping[str, str]] = {
        **Agent._through_a_stub,
        "messages": "get_messages",
    }

    def _attach(self, activation: Activation) -> None:
        policy_of(self.message_concurrency)  # raises if it is misspelt
        recovery_of(self.chat_recovery)
        check_max_steps(self.max_steps)
        if self.chat_stream_stall_timeout is not None:
            seconds(self.chat_stream_stall_timeout, "chat_stream_stall_timeout")
        continuation_of(self.continuation)
        if self.continuation_style not in ("append", "new_message"):
            raise ValueError(
                f"continuation_style must be 'append' or 'new_message', got {self.continuation_style!r}"
            )
        super()._attach(activation)

    # --- the conversation ------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The conversation, oldest message first; of a very long one, its last part.

        In `on_chat_error` it ends with the partial answer, if there is one.
        """
        return [Message(message) for message in self._parts[Transcript].with_failing_answer()]

    async def get_messages(self) -> list[Message]:
        """Return `messages`, for callers that have a stub."""
        return self.messages

    async def get_message(self, id: str) -> Message | None:
        """Return a message on any branch, or None."""
        found = await self._parts[Transcript].get(id)
        return None if found is None else Message(found)

    async def get_branches(self, message_id: str) -> list[Message]:
        """Return the message and its alternatives, in order of creation."""
        return [Message(message) for message in await self._parts[Transcript].branches(message_id)]

    async def select_branch(self, message_id: str) -> bool:
        """Switch to another branch: to the newest message below this one. False if it does not exist."""
        return await self._parts[Admission].select(message_id)

    async def add_messages(self, messages: Any) -> list[Message]:
        """Append messages to the conversation, without a turn. Returns the new ones."""
        return await self._parts[Admission].add(messages)

    async def update_message(self, message: Any) -> bool:
        """Replace the stored message with this id. False if it does not exist."""
        return await self._parts[Admission].update(message)

    async def clear_messages(self) -> None:
        """Delete the conversation with all branches; requests accepted so far get no answer."""
        await self._parts[Stop].clear()

    async def reset_turns(self, reason: str = "the turns were reset") -> None:
        """Stop the running turn and skip waiting requests; the conversation is kept."""
        await self._parts[Stop].reset(reason)

    # --- turns -----------------------------------------------------------------------------------

    async def save_messages(
        self,
        messages: Any,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Send messages, and wait for the answer.

        `messages` is a str, a message, a list of them, or a function of the conversation that returns one of
        these and may be async. A function is called when its turn begins, so that it sees all earlier
        answers; it is kept in memory, so if the process ends before, the turn ends with an error.
        With an `idempotency_key`, a second call joins the first, even after a restart.
        Cancelling the waiting task does not cancel the turn; setting `signal`, or `cancel_chat`, does.
        `client_tools` are the schemas of tools that the client runs; once a model has answered with them,
        they apply to later requests, too.
        """
        check_text("idempotency_key", idempotency_key)
        options = self._parts[Admission].options(body, client_tools)
        request = self._parts[Admission].message_request("save", messages, idempotency_key, options)
        return await self._parts[Admission].ask(request, signal)

    async def chat(
        self,
        message: Any,
        callback: StreamCallback,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
        executor: Executor | None = None,
        signal: Abort | None = None,
    ) -> None:
        """Send a message, and pass the answer to a callback as it arrives.

        Calls `callback.on_start({"request_id": …})`, then `on_event(chunk)` with the JSON of each chunk, then
        one of `on_done()` (completed), `on_error(text)`, `on_aborted(reason)` (stopped or skipped; `on_error`
        if the callback has no such method) and `on_interrupted()`.

        An `executor`, a function of the `ToolCall` that may be async, runs the client's tools in this turn;
        they do not apply to later requests, and are not waited for after a restart.
        """
        check_text("idempotency_key", idempotency_key)
        kept = None if executor is not None else client_tools
        options = self._parts[Admission].options(body, kept)
        request = self._parts[Admission].message_request("chat", message, idempotency_key, options)
        await self._parts[Admission].chat(request, callback, signal, client_tools or (), executor)

    async def stream(
        self,
        message: Any,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Send a message, and iterate over the chunks of the answer.

        An answer that fails ends with a chunk of the type `error`, and then raises `TurnFailed`, so that a
        partial answer is not mistaken for a complete one. A stopped answer ends with `abort`, and does not
        raise.
        """
        check_text("idempotency_key", idempotency_key)
        options = self._parts[Admission].options(body, client_tools)
        request = self._parts[Admission].message_request("chat", message, idempotency_key, options)
        async for chunks in self._parts[Admission].follow(request):
            for chunk in chunks:
                yield chunk

    async def resume_stream(
        self, request_id: str, after: int = 0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """Iterate over the chunks of a request from a seq on, with their seqs: stored ones, then new ones.

        A stream is kept until ten minutes after its turn has ended. It is replayed unchanged: an answer that
        failed ends with a chunk of the type `error`, and does not raise.
        """
        async for numbered in self._parts[Admission].resume(request_id, after):
            yield numbered

    async def submit_messages(
        self,
        messages: Any,
        *,
        submission_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Any = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
    ) -> Submission:
        """Submit messages to be answered later. They are durable when this returns.

        A second submission with the same id or key returns the first (`accepted` is False).
        """
        check_text("submission_id", submission_id)
        check_text("idempotency_key", idempotency_key)
        if callable(messages):
            raise TypeError("messages must not be a function, because they are stored now")
        given = self._parts[Admission].messages(messages)
        if not given:
            raise ValueError("messages must not be empty")
        entry, accepted = await self._parts[Admission].submit(
            Request(
                "message",
                "submission",
                given,
                id=submission_id,
                key=idempotency_key,
                options=self._parts[Admission].options(body, client_tools),
                metadata=metadata,
            )
        )
        return submission(entry, accepted=accepted)

    async def inspect_submission(self, id: str) -> Submission | None:
        """Return a stored submission, or None."""
        return await self._parts[Admission].inspect(id)

    async def list_submissions(
        self,
        *,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None = None,
        limit: int = 50,
    ) -> list[Submission]:
        """Return submissions, newest first; `limit` is at most 100."""
        return await self._parts[Admission].list(status, limit)

    async def cancel_submission(self, id: str, reason: str = "cancelled") -> bool:
        """Cancel a submission. False if it does not exist or has ended."""
        return await self._parts[Stop].cancel(id, reason)

    async def delete_submissions(
        self,
        *,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None = None,
        completed_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete submissions that have ended, oldest first. Returns how many."""
        return await self._parts[Admission].delete(status, completed_before, limit)

    async def continue_last_turn(
        self,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Let the model continue its last answer, in the same message.

        The default `body` is that of the answer's own turn. The status is `skipped` if the last message is
        not an answer.
        """
        check_text("idempotency_key", idempotency_key)
        admission = self._parts[Admission]
        options = admission.options(await admission.last_body() if body is None else body)
        request = Request("continue", "continue", key=idempotency_key, options=options)
        return await self._parts[Admission].ask(request, signal)

    async def regenerate(
        self,
        message_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Generate another answer in place of this one (None: the last). The old one is kept as a branch."""
        check_text("message_id", message_id)
        check_text("idempotency_key", idempotency_key)
        options = self._parts[Admission].options(body)
        request = Request(
            "regenerate", "save", key=idempotency_key, target=message_id, options=options
        )
        return await self._parts[Admission].ask(request, signal)

    @overload
    async def run_turn(
        self,
        messages: Any = None,
        *,
        mode: Literal["wait"] = "wait",
        continuation: bool = False,
        **options: Any,
    ) -> TurnResult: ...

    @overload
    async def run_turn(
        self, messages: Any, *, mode: Literal["submit"], **options: Any
    ) -> Submission: ...

    @overload
    async def run_turn(
        self, messages: Any, *, mode: Literal["stream"], callback: StreamCallback, **options: Any
    ) -> None: ...

    async def run_turn(
        self,
        messages: Any = None,
        *,
        mode: str = "wait",
        continuation: bool = False,
        callback: StreamCallback | None = None,
        **options: Any,
    ) -> Any:
        """The general entry point: `wait` for the answer, `submit` for later, or `stream` to a callback.

        The options are those of `save_messages`, `submit_messages` and `chat`.
        """
        if mode not in ("wait", "submit", "stream"):
            raise ValueError(f"mode must be wait, submit or stream, got {mode!r}")
        if continuation and (mode != "wait" or messages is not None):
            raise ValueError("continuation=True takes no messages, and requires mode='wait'")
        if (callback is not None) != (mode == "stream"):
            raise ValueError("mode='stream' requires a callback, and other modes take none")
        if continuation:
            return await self.continue_last_turn(**options)
        if messages is None:
            raise ValueError("messages must be given, unless continuation=True")
        if mode == "submit":
            return await self.submit_messages(messages, **options)
        if mode == "stream":
            assert callback is not None
            return await self.chat(messages, callback, **options)
        return await self.save_messages(messages, **options)

    # --- pending calls ---------------------------------------------------------------------------

    async def add_tool_output(
        self,
        tool_call_id: str,
        output: Any = None,
        *,
        error_text: str | None = None,
        auto_continue: bool = True,
        client_tools: Sequence[Any] | None = None,
    ) -> bool:
        """Store the result of a call that the client ran. False if the call does not wait for one.

        The first answer counts. When the last pending call of a message is answered, and any of the answers
        set `auto_continue`, the agent continues that message. Durable when this returns.
        """
        return await self._parts[PendingCalls].add_output(
            tool_call_id,
            output,
            error=error_text,
            goes_on=auto_continue,
            client_tools=client_tools,
        )

    async def add_tool_approval(
        self,
        tool_call_id: str,
        approved: bool,
        *,
        reason: str | None = None,
        auto_continue: bool = True,
    ) -> bool:
        """Approve or deny a call. False if it does not wait for an approval."""
        if not isinstance(approved, bool):
            raise TypeError(f"approved must be a bool, got {approved!r}")
        return await self._parts[PendingCalls].add_approval(
            tool_call_id, approved, reason=reason, goes_on=auto_continue
        )

    async def stash(self, data: Any) -> None:
        """Store a value for `on_fiber_recovered`, or in a turn for `on_chat_recovery`.

        Durable when this returns. In a turn, it becomes `recovery_data` if the turn is interrupted. After the
        end of the turn, for example in `on_chunk`, there is nothing to recover, and nothing is stored.
        """
        turn = current_turn.get()
        if turn is None or self._parts[Fibers].is_inside:
            await super().stash(data)
        elif turn.is_running:
            await self._parts[Resumption].stash(turn, data)

    def emit_data(
        self, name: str, data: Any, *, id: str | None = None, transient: bool = False
    ) -> None:
        """Write a part of your own, `data-<name>`, into the running answer, for the page that shows it.

        Call it from hooks and tools of a turn, including tools that are plain functions. Clients receive the
        part once it is durable, and it is stored with the message; another part with the same name and `id`
        replaces it. A `transient` part is only sent to connected clients, and not stored. The model sees
        neither.

        ```python
        from outlast import Host, Think, tool
        from outlast.testing import ScriptedModel, Step

        class Shop(Think):
            model = ScriptedModel(Step.call("order"), "Ordered.")

            @tool
            async def order(self) -> str:
                self.emit_data("progress", {"done": 0.5}, transient=True)
                self.emit_data("receipt", {"total": 12}, id="r1")
                return "ok"

        async with Host(agents=[Shop], store="sqlite:///shop.db") as host:
            turn = await host.get(Shop, "a").save_messages("One, please")
            parts = [part for part in turn.message.parts if part["type"] == "data-receipt"]
            assert parts == [{"type": "data-receipt", "id": "r1", "data": {"total": 12}}]
        ```
        """
        turn = current_turn.get()
        if turn is None or turn.agent != self._activation.address.text:
            raise RuntimeError(
                "emit_data() must be called from a hook or tool of a turn of this agent"
            )
        turn.writer.data(name, data, id=id, transient=transient)

    async def request_upgrade(self) -> bool:
        """Request a new process that runs the newest code. False if there is no supervisor to start one.

        In `before_turn`, the turn is left to the new process, which does not count as a recovery. Later in a
        turn, or outside of one, the process is replaced once no turn of this agent runs.
        """
        return self._parts[Upgrade].upgrade(current_turn.get())

    async def end_run(self) -> None:
        """Leave memory as soon as the agent is idle, without waiting for the host's `idle_timeout`."""
        self._parts[Upgrade].retire()

    async def has_pending_interaction(self) -> bool:
        """Return whether a call waits for the client, or for an approval."""
        return bool(self._parts[PendingCalls].pending)

    async def wait_until_stable(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until no turn runs or waits, and no call is pending. False on timeout."""
        return await self._parts[Admission].stable(
            None if timeout is None else seconds(timeout, "timeout")
        )

    async def cancel_chat(self, request_id: str, reason: str = "cancelled") -> bool:
        """Stop a turn, or cancel a waiting request. Durable when this returns.

        The partial answer is kept. False if the request does not exist or has ended.
        """
        return await self._parts[Stop].cancel(request_id, reason)

    # --- for operators ---------------------------------------------------------------------------

    async def list_incidents(self) -> list[RecoveryIncident]:
        """Return interrupted turns that continue, or that were given up within the last hour."""
        return operators.to_incidents(await self._parts[Incidents].all())

    async def seal_incident(self, request_id: str) -> bool:
        """End an interrupted turn now, keeping its partial answer. False if it ended or does not exist."""
        return await self._parts[Stop].cancel(request_id, operators.SEALED)

    async def retry_incident(self, request_id: str) -> TurnResult:
        """Generate another answer for a turn that was given up."""
        entry = await self._parts[Inbox].get(request_id)
        if entry is None or entry.ended_at is None or entry.target is None:
            raise LookupError(f"turn {request_id!r} has not ended, so it cannot be retried")
        return await self.regenerate(entry.target)

    async def release(self) -> None:
        """Reset the count of crashes during the agent's start, so that its turns are resumed again."""
        await self._parts[BootStrikes].forget()

    def turn_statistics(self) -> TurnStatistics:
        """Return a snapshot of this agent's activity."""
        calls = [str(part.get("toolCallId")) for part in self._parts[PendingCalls].pending]
        return self._parts[TurnState].statistics(calls)
