"""The chat agent that users subclass. Thin: each method leads into the part that owns the matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from outlast.agent.agent import Agent
from outlast.chat import inbox_rows, retention
from outlast.chat.abort import Abort
from outlast.chat.asking import Asking, StreamCallback, check_text, submission
from outlast.chat.config import MAX_STEPS, TurnConfig, TurnContext
from outlast.chat.inbox import Inbox, Request
from outlast.chat.overlap import Concurrency
from outlast.chat.prompt import DEFAULT
from outlast.chat.results import Message, Submission, SubmissionStatus, TurnResult
from outlast.chat.transcript import Transcript
from outlast.chat.turns import Turns
from outlast.host.activation import Activation
from outlast.store.operations import Query

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MAX_RETRIES = 2


class Think(Agent):
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

    model: ClassVar[str | Model | None] = None  # a name, or a model of Pydantic AI
    system_prompt: str | None = None  # None: a careful default
    max_steps: int = MAX_STEPS
    max_retries: int = MAX_RETRIES  # of a request that failed before anything of its answer came
    send_reasoning: bool = True
    message_concurrency: Concurrency = "queue"
    chat_stream_stall_timeout: float | timedelta | None = None  # seconds; None or 0: off
    telemetry: Any = None  # Pydantic AI's InstrumentationSettings; None: as that is set up

    unfinished_work: ClassVar[tuple[Query, ...]] = (
        *Agent.unfinished_work,
        inbox_rows.OPEN_AGENTS,
    )

    def _attach(self, activation: Activation) -> None:
        super()._attach(activation)
        self._inbox = Inbox(activation, self._commits)
        self._transcript = Transcript(activation, self._facts)
        self._turns = Turns(self, activation, self._commits, self._inbox, self._transcript)
        self._asking = Asking(activation, self._commits, self._inbox, self._transcript, self._turns)

    # --- what a user may override ----------------------------------------------------------------

    def get_model(self) -> str | Model:
        """The model of the next turn."""
        if self.model is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no model: set `model`, or override get_model()"
            )
        return self.model

    def get_system_prompt(self) -> str:
        """The system prompt; what the turn can do is appended to it."""
        return DEFAULT if self.system_prompt is None else self.system_prompt

    def get_tools(self) -> Any:
        """More tools, beside the methods marked with `@tool`: functions, tools, toolsets."""
        return None

    async def before_turn(self, context: TurnContext) -> TurnConfig | None:
        """Called before each turn; what the returned `TurnConfig` sets is used for it."""
        return None

    # --- the conversation ------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The conversation, oldest message first; of a very long one, its last part."""
        return [Message(message) for message in self._transcript.path]

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

    async def clear_messages(self) -> None:
        """Delete the conversation, with all branches; what was asked before this gets no answer."""
        await self._turns.clear()

    async def reset_turns(self, reason: str = "the turns were reset") -> None:
        """Stop the running turn and give up what waits; the conversation stays."""
        await self._turns.reset(reason)

    # --- turns -----------------------------------------------------------------------------------

    async def save_messages(
        self,
        messages: Any,
        *,
        idempotency_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> TurnResult:
        """Say something, and wait for the answer.

        `messages` is a text, a message, a list of them, or a function of the conversation that returns
        one of these. With an `idempotency_key` a second call joins the first, also after a restart.
        Cancelling whoever waits does not cancel the turn; setting `signal` does, and `cancel_chat`.
        """
        check_text("idempotency_key", idempotency_key)
        request = Request(
            "message",
            "save",
            self._asking.messages(messages),
            key=idempotency_key,
            options={"body": dict(body or {})},
        )
        return await self._asking.ask(request, signal)

    async def chat(
        self,
        message: Any,
        callback: StreamCallback,
        *,
        body: Mapping[str, Any] | None = None,
        signal: Abort | None = None,
    ) -> None:
        """Say something, and have the answer told to a callback as it comes.

        `callback.on_start({"request_id": …})`, then `on_event(chunk)` with the JSON text of each chunk, then
        one of `on_done()`, `on_error(text)` and `on_interrupted()`.
        """
        request = Request(
            "message", "chat", self._asking.messages(message), options={"body": dict(body or {})}
        )
        await self._asking.chat(request, callback, signal)

    async def stream(
        self, message: Any, *, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Say something, and iterate over the chunks of the answer."""
        request = Request(
            "message", "chat", self._asking.messages(message), options={"body": dict(body or {})}
        )
        async for chunk in self._asking.follow(request):
            yield chunk

    async def submit_messages(
        self,
        messages: Any,
        *,
        submission_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: Any = None,
        body: Mapping[str, Any] | None = None,
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
                options={"body": dict(body or {})},
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
        return await self._turns.cancel(id, reason)

    async def delete_submissions(
        self,
        *,
        status: SubmissionStatus | Iterable[SubmissionStatus] | None = None,
        completed_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete submissions that have ended, oldest first. Returns how many."""
        return await self._asking.delete(status, completed_before, limit)

    async def continue_last_turn(self, *, body: Mapping[str, Any] | None = None) -> TurnResult:
        """Let the model go on with its last answer, as part of the same message.

        The status is `skipped` when the last message is not an answer.
        """
        return await self._asking.ask(
            Request("continue", "continue", options={"body": dict(body or {})})
        )

    async def regenerate(
        self, message_id: str | None = None, *, body: Mapping[str, Any] | None = None
    ) -> TurnResult:
        """Have another answer in place of this one (None: the last). The old one stays, as a branch."""
        check_text("message_id", message_id)
        return await self._asking.ask(
            Request("regenerate", "save", target=message_id, options={"body": dict(body or {})})
        )

    @overload
    async def run_turn(
        self, messages: Any = None, *, mode: Literal["wait"] = "wait", continuation: bool = False
    ) -> TurnResult: ...

    @overload
    async def run_turn(self, messages: Any, *, mode: Literal["submit"]) -> Submission: ...

    @overload
    async def run_turn(
        self, messages: Any, *, mode: Literal["stream"], callback: StreamCallback
    ) -> None: ...

    async def run_turn(
        self,
        messages: Any = None,
        *,
        mode: str = "wait",
        continuation: bool = False,
        callback: StreamCallback | None = None,
    ) -> Any:
        """One door for all: `wait` for the answer, `submit` for later, or `stream` to a callback."""
        if mode not in ("wait", "submit", "stream"):
            raise ValueError(f"mode is wait, submit or stream, not {mode!r}")
        if continuation and (mode != "wait" or messages is not None):
            raise ValueError("a continuation takes no messages, and is waited for")
        if (callback is not None) != (mode == "stream"):
            raise ValueError("a callback is needed for mode='stream', and only there")
        if continuation:
            return await self.continue_last_turn()
        if messages is None:
            raise ValueError("there are no messages to answer")
        if mode == "submit":
            return await self.submit_messages(messages)
        if mode == "stream":
            assert callback is not None
            return await self.chat(messages, callback)
        return await self.save_messages(messages)

    async def cancel_chat(self, request_id: str, reason: str = "cancelled") -> bool:
        """Stop a turn, or take back what waits for one. Durable when this returns.

        What the turn has said is kept. False: there is no such request, or it has ended.
        """
        return await self._turns.cancel(request_id, reason)

    # --- what the host calls ---------------------------------------------------------------------

    async def _prepare(self) -> None:
        await super()._prepare()
        await self._transcript.load()
        await self._inbox.load()

    async def _start(self) -> None:
        await super()._start()
        self._turns.go_on()

    async def _wake(self, source: str) -> None:
        if source == retention.ALARM:
            await asyncio.shield(self._activation.spawn(self._turns.sweep(), "retention"))
        else:
            await super()._wake(source)

    def _leave(self, reason: Exception) -> None:
        self._turns.leave(reason)
        super()._leave(reason)
