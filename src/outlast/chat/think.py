"""The chat agent that users subclass. Thin: each method leads into the part that owns the matter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, overload

from outlast.agent.agent import Agent
from outlast.chat.admission import Asking, StreamCallback, check_text, submission
from outlast.chat.context.compaction import Compactions
from outlast.chat.context.session import Session
from outlast.chat.gateway import Serving
from outlast.chat.hooks import Overridable
from outlast.chat.inbox import sql as inbox_rows
from outlast.chat.inbox.concurrency import policy_of
from outlast.chat.inbox.inbox import Inbox, Request
from outlast.chat.message.results import Message, Submission, SubmissionStatus, TurnResult
from outlast.chat.recovery import operators as operating
from outlast.chat.recovery.operators import RecoveryIncident
from outlast.chat.run import response_hook as responses
from outlast.chat.run import retention
from outlast.chat.run.response_hook import Responses
from outlast.chat.run.runner import Turns
from outlast.chat.tools.pending import Interactions
from outlast.chat.transcript.transcript import Transcript
from outlast.chat.turn.claim import Claims
from outlast.chat.turn.part_repair import PartRepair
from outlast.chat.turn.turn import Executor, current_turn
from outlast.chat.types.config import check_max_steps
from outlast.chat.types.contexts import (
    is_overridden,
    told,
)
from outlast.chat.types.recovery import (
    recovery_of,
)
from outlast.core.abort import Abort
from outlast.core.clock import seconds
from outlast.host.life.activation import Activation
from outlast.store.operations import Query, Read

logger = logging.getLogger("outlast.chat")


class Think(Overridable):
    """A chat agent: name a model, and every answer outlasts the process that gives it.

    ```python
    from outlast import Host, Think, tool
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello! How can I help?")      # or "anthropic:claude-sonnet-4-5", …
        system_prompt = "You are a concise assistant."

    async with Host(agents=[Assistant], store="sqlite:///chat.db") as host:
        alice = host.get(Assistant, "alice")
        turn = await alice.save_messages("Hi")
        assert (turn.status, turn.message.text) == ("completed", "Hello! How can I help?")
        assert [message.role for message in await alice.get_messages()] == ["user", "assistant"]
    ```
    """

    _unfinished_work: ClassVar[tuple[Query, ...]] = (
        *Agent._unfinished_work,
        inbox_rows.OPEN_AGENTS,
        responses.DUE_AGENTS,
    )
    _for_operators: ClassVar[frozenset[str]] = Agent._for_operators | operating.CALLS
    _through_a_stub: ClassVar[Mapping[str, str]] = {
        **Agent._through_a_stub,
        "messages": "get_messages",
    }

    def _attach(self, activation: Activation) -> None:
        super()._attach(activation)
        policy_of(self.message_concurrency)  # a misspelt one is told now
        recovery_of(self.chat_recovery)
        check_max_steps(self.max_steps)
        if self.chat_stream_stall_timeout is not None:
            seconds(self.chat_stream_stall_timeout, "chat_stream_stall_timeout")
        if self.continuation_style not in ("append", "new_message"):
            raise ValueError(
                f"continuation_style is append or new_message, not {self.continuation_style!r}"
            )
        commits = self._commits
        self._inbox = inbox = Inbox(activation, commits)
        self._transcript = transcript = Transcript(activation, self._facts)
        self._interactions = Interactions(activation, commits, self._facts, inbox, transcript)
        repair = PartRepair(self, activation.address.text)
        claims = Claims(activation, commits, inbox, transcript, repair)
        hook = self.on_chat_response
        self._responses = (
            Responses(hook, activation, commits, inbox, transcript) if is_overridden(hook) else None
        )
        self._turns = Turns(
            self,
            activation,
            commits,
            inbox,
            transcript,
            self._interactions,
            claims,
            self._responses,
            Compactions(activation, self._facts),
        )
        self._asking = Asking(activation, commits, inbox, transcript, self._turns)
        self._serving = Serving(activation, inbox, transcript, self._turns, self._asking)

    # --- the conversation ------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The conversation, oldest message first; of a very long one, its last part.

        In `on_chat_error` it ends with the partial answer, if there is one.
        """
        return [Message(message) for message in self._transcript.with_coming()]

    async def get_messages(self) -> list[Message]:
        """The same, for callers that have a stub."""
        return self.messages

    async def get_message(self, id: str) -> Message | None:
        """A message, on whatever branch."""
        found = await self._transcript.get(id)
        return None if found is None else Message(found)

    async def get_branches(self, message_id: str) -> list[Message]:
        """The message and those that were tried in its place, in the order they were made."""
        return [Message(message) for message in await self._transcript.branches(message_id)]

    async def select_branch(self, message_id: str) -> bool:
        """Go on with another branch: with the newest message below this one. False: there is none."""
        return await self._asking.select(message_id)

    async def add_messages(self, messages: Any) -> list[Message]:
        """Store messages at the end of the conversation, without a turn. Returns those that were new."""
        return await self._asking.add(messages)

    async def update_message(self, message: Any) -> bool:
        """Store a message in place of the one with its id. False: there is none."""
        return await self._asking.update(message)

    async def clear_messages(self) -> None:
        """Delete the conversation, with all branches; what was asked before this gets no answer."""
        await self._turns.stopping.clear()

    async def reset_turns(self, reason: str = "the turns were reset") -> None:
        """Stop the running turn and give up what waits; the conversation stays."""
        await self._turns.stopping.reset(reason)

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
        """Say something, and wait for the answer.

        `messages` is a text, a message, a list of them, or a function of the conversation that returns
        one of these and may be async. A function is called when its turn begins, so that it sees every
        answer before; it lives in memory, and if the process dies before that the turn ends with an error.
        With an `idempotency_key` a second call joins the first, also after a restart.
        Cancelling whoever waits does not cancel the turn; setting `signal` does, and `cancel_chat`.
        `client_tools` are the schemas of tools that the client runs; once a model has answered with
        them, the next requests have them too.
        """
        check_text("idempotency_key", idempotency_key)
        options = self._asking.options(body, client_tools)
        request = self._asking.request("save", messages, idempotency_key, options)
        return await self._asking.ask(request, signal)

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
        """Say something, and have the answer told to a callback as it comes.

        `callback.on_start({"request_id": …})`, then `on_event(chunk)` with the JSON text of each chunk, then
        one of `on_done()` (completed), `on_error(text)`, `on_aborted(reason)` (stopped or skipped; `on_error`
        if the callback has no such method) and `on_interrupted()`.

        With an `executor`, a function of the `ToolCall` that may be async, the client's tools are run by it
        in this turn; they are not remembered, and nobody waits for them after a restart.
        """
        check_text("idempotency_key", idempotency_key)
        kept = None if executor is not None else client_tools
        options = self._asking.options(body, kept)
        request = self._asking.request("chat", message, idempotency_key, options)
        await self._asking.chat(request, callback, signal, client_tools or (), executor)

    async def stream(
        self,
        message: Any,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Say something, and iterate over the chunks of the answer.

        An answer that fails ends with a chunk of the type `error`, and then raises `TurnFailed`: nobody takes
        half an answer for a whole one. One that is stopped ends with `abort`, and raises nothing.
        """
        check_text("idempotency_key", idempotency_key)
        options = self._asking.options(body, client_tools)
        request = self._asking.request("chat", message, idempotency_key, options)
        async for chunks in self._asking.follow(request):
            for chunk in chunks:
                yield chunk

    async def resume_stream(
        self, request_id: str, after: int = 0
    ) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """The chunks of a request from a place on, each with its place: what is stored, then what comes.

        A stream is kept until ten minutes after its turn has ended. It is told as it was: an answer that
        failed ends with a chunk of the type `error`, and nothing is raised.
        """
        async for numbered in self._asking.resume(request_id, after):
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
        """Have something answered later: it is durable when this returns, and survives everything.

        A second submission with the same id or key is the first one (`accepted` is False then).
        """
        check_text("submission_id", submission_id)
        check_text("idempotency_key", idempotency_key)
        if callable(messages):
            raise TypeError("submit_messages takes messages, not a function: they are stored now")
        given = self._asking.messages(messages)
        if not given:
            raise ValueError("there is nothing to submit: the list of messages is empty")
        entry, accepted = await self._asking.submit(
            Request(
                "message",
                "submission",
                given,
                id=submission_id,
                key=idempotency_key,
                options=self._asking.options(body, client_tools),
                metadata=metadata,
            )
        )
        return submission(entry, accepted=accepted)

    async def inspect_submission(self, id: str) -> Submission | None:
        """A submission as it stands, or None."""
        return await self._asking.inspect(id)

    async def list_submissions(
        self,
        *,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None = None,
        limit: int = 50,
    ) -> list[Submission]:
        """Submissions, newest first; at most 100."""
        return await self._asking.list(status, limit)

    async def cancel_submission(self, id: str, reason: str = "cancelled") -> bool:
        """Cancel a submission. False: there is none, or it has ended."""
        return await self._turns.stopping.cancel(id, reason)

    async def delete_submissions(
        self,
        *,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None = None,
        completed_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete submissions that have ended, oldest first. Returns how many."""
        return await self._asking.delete(status, completed_before, limit)

    async def continue_last_turn(
        self,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Let the model go on with its last answer, as part of the same message.

        The `body` is that of the answer's own turn, unless another one is given. The status is `skipped`
        when the last message is not an answer.
        """
        check_text("idempotency_key", idempotency_key)
        options = self._asking.options(await self._asking.last_body() if body is None else body)
        request = Request("continue", "continue", key=idempotency_key, options=options)
        return await self._asking.ask(request, signal)

    async def regenerate(
        self,
        message_id: str | None = None,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Have another answer in place of this one (None: the last). The old one stays, as a branch."""
        check_text("message_id", message_id)
        check_text("idempotency_key", idempotency_key)
        options = self._asking.options(body)
        request = Request(
            "regenerate", "save", key=idempotency_key, target=message_id, options=options
        )
        return await self._asking.ask(request, signal)

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
        """One door for all: `wait` for the answer, `submit` for later, or `stream` to a callback.

        The options are those of `save_messages`, `submit_messages` and `chat`.
        """
        if mode not in ("wait", "submit", "stream"):
            raise ValueError(f"mode is wait, submit or stream, not {mode!r}")
        if continuation and (mode != "wait" or messages is not None):
            raise ValueError("a continuation takes no messages, and is waited for")
        if (callback is not None) != (mode == "stream"):
            raise ValueError("a callback is needed for mode='stream', and only there")
        if continuation:
            return await self.continue_last_turn(**options)
        if messages is None:
            raise ValueError("there are no messages to answer")
        if mode == "submit":
            return await self.submit_messages(messages, **options)
        if mode == "stream":
            assert callback is not None
            return await self.chat(messages, callback, **options)
        return await self.save_messages(messages, **options)

    # --- what a turn has left open ---------------------------------------------------------------

    async def add_tool_output(
        self,
        tool_call_id: str,
        output: Any = None,
        *,
        error_text: str | None = None,
        auto_continue: bool = True,
        client_tools: Sequence[Any] | None = None,
    ) -> bool:
        """The result of a call that the client has run. The first answer counts. False: it waits for none.

        When the last open call of a message is answered, and any of the answers said `auto_continue`, the
        agent goes on with that message. Durable when this returns.
        """
        return await self._interactions.add_output(
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
        """Allow a call, or do not. False: it waits for no approval."""
        if not isinstance(approved, bool):
            raise TypeError(f"approved is True or False, not {approved!r}")
        return await self._interactions.add_approval(
            tool_call_id, approved, reason=reason, goes_on=auto_continue
        )

    async def stash(self, data: Any) -> None:
        """Remember something for `on_fiber_recovered`, or in a turn for `on_chat_recovery`.

        Durable when it returns. In a turn, it is what `recovery_data` is if the turn is interrupted. Once the
        turn is over, as it may be in `on_chunk`, there is nothing left to recover, and nothing is stored.
        """
        turn = current_turn.get()
        if turn is None or self._fibers.is_inside:
            await super().stash(data)
        elif turn.is_running:
            await self._turns.stash(turn, data)

    def emit_data(
        self, name: str, data: Any, *, id: str | None = None, transient: bool = False
    ) -> None:
        """Write a part of your own into the running answer: `data-<name>`, for the page that shows it.

        From hooks and tools of a turn, also from a tool that is a plain function. Clients are sent it once
        it is durable, and it is stored with the message; another part with the same name and `id` takes its
        place. A `transient` part is only sent to those who are connected, and stored nowhere. The model
        sees neither.

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
                "emit_data() can only be called from the hooks and tools of a turn of this agent"
            )
        turn.writer.data(name, data, id=id, transient=transient)

    async def request_upgrade(self) -> bool:
        """Have this process replaced by one that runs the newest code. False: nobody here can do that.

        In `before_turn`, the turn is left to the new process, and nobody calls that a recovery; later in a
        turn, or outside of one, the process is replaced when no turn of this agent runs.
        """
        return self._turns.leaving.upgrade(current_turn.get())

    async def end_run(self) -> None:
        """Leave memory as soon as there is nothing left to do: before the host's `idle_timeout`."""
        self._turns.leaving.retire()

    async def has_pending_interaction(self) -> bool:
        """Whether a call waits for the client, or for an approval."""
        return bool(self._interactions.pending)

    async def wait_until_stable(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until no turn is under way and no call waits for an answer. False: it took too long."""
        return await self._asking.stable(None if timeout is None else seconds(timeout, "timeout"))

    async def cancel_chat(self, request_id: str, reason: str = "cancelled") -> bool:
        """Stop a turn, or take back what waits for one. Durable when this returns.

        What the turn has said is kept. False: there is no such request, or it has ended.
        """
        return await self._turns.stopping.cancel(request_id, reason)

    # --- for operators ---------------------------------------------------------------------------

    async def list_incidents(self) -> list[RecoveryIncident]:
        """The turns that were interrupted and go on, or were given up within the last hour."""
        return operating.shown(await self._turns.incidents.all())

    async def seal_incident(self, request_id: str) -> bool:
        """End an interrupted turn now: what it has said is kept. False: it has ended, or is not known."""
        return await self._turns.stopping.cancel(request_id, operating.SEALED)

    async def retry_incident(self, request_id: str) -> TurnResult:
        """Have another answer to what a turn that was given up should have answered."""
        entry = await self._inbox.get(request_id)
        if entry is None or entry.ended_at is None or entry.target is None:
            raise LookupError(
                f"there is no turn {request_id!r} that has ended, and can be tried again"
            )
        return await self.regenerate(entry.target)

    async def release(self) -> None:
        """Forget that the agent has died while it was starting: its turns are taken up again."""
        await self._turns.boots.forget()

    # --- what the host calls ---------------------------------------------------------------------

    @classmethod
    def _first_reads(cls, address: str) -> list[Read]:
        queries = (*Inbox.FIRST_READS, *Transcript.FIRST_READS)
        return [*super()._first_reads(address), *((query, (address,)) for query in queries)]

    async def _prepare(self) -> None:
        await super()._prepare()
        await self._inbox.load()
        await self._turns.begin_boot()
        await self._transcript.load()
        if self._responses is not None:
            await self._responses.load()
        session = await told(self.configure_session, Session())
        if not isinstance(session, Session):
            raise TypeError(f"configure_session returns a Session, not {session!r}")
        overflow = self.context_overflow
        if session.compaction is None and (overflow.reactive or overflow.proactive is not None):
            logger.warning(
                "%s: context_overflow is on, but no compaction is set: a conversation that is too long"
                " ends with an error. Set one in configure_session: session.on_compaction(…)",
                self._activation.address,
            )
        self._turns.answering.session = session
        self._turns.answering.compactions.function = session.compaction

    async def _start(self) -> None:
        try:
            await super()._start()
        except Exception:  # an error is no death
            await self._turns.boots.failed()
            raise
        self._turns.go_on()
        if self._responses is not None:
            self._responses.go_on()

    async def _wake(self, source: str) -> None:
        if source == retention.ALARM:
            await asyncio.shield(self._activation.spawn(self._turns.sweep(), "retention"))
        else:
            await super()._wake(source)

    async def _interrupting(self, cause: str) -> None:
        await super()._interrupting(cause)
        await self._turns.mark(cause)

    def _leave(self, reason: Exception) -> None:
        self._turns.leave(reason)
        super()._leave(reason)
