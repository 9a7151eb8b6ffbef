"""The settings of recovery, and the arguments and results of its hooks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from outlast.chat.message.results import Message
from outlast.chat.types.data_parts import DataWriter
from outlast.core.clock import seconds

Cause = Literal["cancelled", "crashed", "oom", "deploy", "evicted", "stalled", "unknown"]
"""Why a turn was interrupted; "unknown" if nothing recorded it, which is treated as "crashed"."""

CAUSES: tuple[Cause, ...] = (
    "cancelled",
    "crashed",
    "oom",
    "deploy",
    "evicted",
    "stalled",
    "unknown",
)

Reason = Literal[
    "out_of_memory",
    "work_budget_exceeded",
    "no_progress_timeout",
    "recovery_aborted",
    "max_attempts_exceeded",
    "recovery_error",
    "boot_strikes",
    "stale",
    "sealed",
]
"""Why recovery was given up."""

ContinuationStyle = Literal["append", "new_message"]

RecoveryKind = Literal["retry", "continue"]

TERMINAL_MESSAGE = "The assistant was interrupted and could not recover. Please try again."


@dataclass(frozen=True, slots=True)
class KeepRecoveringContext:
    """The argument of `should_keep_recovering`."""

    incident_id: str
    request_id: str
    attempt: int
    max_attempts: int
    recovery_kind: RecoveryKind
    work: int  # chunks produced since the incident was opened
    age: timedelta

    @property
    def recovery_root_request_id(self) -> str:
        """The same as `request_id`: one turn is one request, regardless of its attempts."""
        return self.request_id


@dataclass(frozen=True, slots=True)
class RecoveryExhaustedContext:
    """The argument of `on_exhausted`."""

    incident_id: str
    request_id: str
    attempt: int
    max_attempts: int
    recovery_kind: RecoveryKind
    reason: Reason
    terminal_message: str
    created_at: datetime
    partial_text: str
    partial_parts: Sequence[Mapping[str, Any]]
    host_deaths: int = 0  # crashes in a row while the turn ran without progress

    @property
    def recovery_root_request_id(self) -> str:
        """The same as `request_id`."""
        return self.request_id

    @property
    def stream_id(self) -> str:
        """The same as `request_id`: a turn has one stream."""
        return self.request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRecovery:
    """How often an interrupted turn is resumed, and what happens when recovery is given up.

    ```python
    from outlast import ChatRecovery, Think

    class Assistant(Think):
        model = "anthropic:claude-sonnet-5"
        chat_recovery = ChatRecovery(max_attempts=6, terminal_message="I could not go on. Ask again?")
    ```

    A turn that makes progress is never given up because of its duration. Durations are in seconds, or a
    `timedelta`. `should_keep_recovering` is called from the second attempt on, and only `False` stops
    recovery; `on_exhausted` is called once. Both may be async.
    """

    max_attempts: int = 10  # in a row without progress
    stable_timeout: None = None  # not supported
    no_progress_timeout: float | timedelta = 300.0
    max_recovery_work: float = math.inf  # chunks since the first interruption
    max_oom_retries: int = 3  # progress does not reset them
    max_age: float | timedelta | None = None  # older turns are not resumed; None: no limit
    should_keep_recovering: Callable[[KeepRecoveringContext], Any] | None = None
    terminal_message: str = TERMINAL_MESSAGE
    on_exhausted: Callable[[RecoveryExhaustedContext], Any] | None = None

    def __post_init__(self) -> None:
        if self.stable_timeout is not None:
            raise ValueError(
                "stable_timeout is not supported: an attempt begins as soon as its agent has started."
                " Remove it; no_progress_timeout bounds a turn that is stuck."
            )
        seconds(self.no_progress_timeout, "no_progress_timeout")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if self.max_oom_retries < 0 or not self.max_recovery_work >= 0:
            raise ValueError("max_oom_retries and max_recovery_work must not be negative")
        if self.max_age is not None and seconds(self.max_age, "max_age") == 0:
            raise ValueError("max_age must be longer than 0, got 0; use None for no limit")


def recovery_of(setting: Any) -> ChatRecovery | None:
    """Return the settings that `chat_recovery` stands for; None if recovery is off."""
    if isinstance(setting, ChatRecovery):
        return setting
    if isinstance(setting, bool):
        return ChatRecovery() if setting else None
    raise TypeError(f"chat_recovery must be a bool or a ChatRecovery, got {setting!r}")


# --- hooks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRecoveryContext:
    """The argument of `on_chat_recovery`: an interrupted turn."""

    incident_id: str
    attempt: int
    max_attempts: int
    recovery_kind: RecoveryKind
    request_id: str
    stream_id: str  # "" if nothing was streamed
    cause: Cause
    partial_text: str
    partial_parts: Sequence[Mapping[str, Any]]
    recovery_data: Any  # the value passed to `self.stash()` during the turn
    messages: Sequence[Message]
    last_body: Mapping[str, Any]
    last_client_tools: Sequence[Any]
    created_at: datetime  # when the turn started
    age: timedelta


@dataclass(frozen=True, slots=True)
class ChatRecoveryOptions:
    """What `on_chat_recovery` may return. None means the default."""

    persist: bool | None = None  # False: discard a partial answer without settled tool calls
    continue_: bool | None = None  # False: end the turn here


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A call that had no outcome when its turn was interrupted."""

    tool_call_id: str
    tool_name: str
    input: Any
    part_index: int  # in the parts of `partial_assistant`
    state: Literal["not_begun", "begun", "waiting"]  # waiting: for the client, or for an approval


class RecoveryWriter(DataWriter):
    """Writes data parts into the stream before the turn continues.

    Clients are about to reconnect: unlike those of `emit_data`, transient parts are kept in the stream until
    then. They are still not stored with the message.
    """

    def __init__(self) -> None:
        self.chunks: list[str] = []
        super().__init__(lambda chunk, _: self.chunks.append(chunk))


@dataclass(frozen=True, slots=True)
class RecoveryBootEvent:
    """The argument of `on_recovery_boot`: a turn that was interrupted in the middle of its answer."""

    agent: str
    request_id: str
    previous_run_id: str  # the interrupted attempt
    cause: Cause
    settled_messages: Sequence[Message]
    in_flight_users: Sequence[Message]  # the first is being answered; the others wait
    partial_assistant: Message
    pending_tool_calls: Sequence[PendingToolCall]
    writer: RecoveryWriter = field(default_factory=RecoveryWriter)


@dataclass(frozen=True, slots=True)
class RecoveryBootResult:
    """What `on_recovery_boot` may return; None means the default.

    `chain` is stored as the conversation from now on. If it ends with `partial_assistant`, changed or not,
    the turn continues from there; calls that have an outcome in it keep that outcome, and are not run. If it
    omits the partial answer, the turn ends as `skipped`. Messages that are not in the chain stay in the
    store, on a branch.

    `recovered_turns` are messages of `in_flight_users`, or new ones, that get a turn after this one (`[]`:
    none). The first of `in_flight_users` may be among them only if the partial answer is omitted: it is then
    answered again. `before_boot` runs first; if it raises, nothing is dispatched, and it is retried later.
    """

    chain: Sequence[Any] | None = None
    recovered_turns: Sequence[Any] | None = None
    before_boot: Callable[[], Awaitable[None] | None] | None = None
