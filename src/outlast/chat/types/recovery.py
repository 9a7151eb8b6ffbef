"""Recovery as users set it up, and what its hooks are given and may return."""

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
"""Why a turn was interrupted; "unknown" where nobody was there to tell, and treated as "crashed"."""

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
    """What `should_keep_recovering` is asked about."""

    incident_id: str
    request_id: str
    attempt: int
    max_attempts: int
    recovery_kind: RecoveryKind
    work: int  # chunks that were produced since the incident was opened
    age: timedelta

    @property
    def recovery_root_request_id(self) -> str:
        """The same as `request_id`: one turn is one request, however many attempts it takes."""
        return self.request_id


@dataclass(frozen=True, slots=True)
class RecoveryExhaustedContext:
    """What `on_exhausted` is told."""

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
    host_deaths: int = 0  # of the process, in a row, while the turn ran and made no progress

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
    """How long an interrupted turn is taken up again, and what is said when that is given up.

    ```python
    from outlast import ChatRecovery, Think

    class Assistant(Think):
        model = "anthropic:claude-sonnet-4-5"
        chat_recovery = ChatRecovery(max_attempts=6, terminal_message="I could not go on. Ask again?")
    ```

    A turn that makes progress is never given up for how long it takes. Durations are in seconds, or a
    `timedelta`. `should_keep_recovering` is asked from the second attempt on, and only `False` stops;
    `on_exhausted` is told once. Both may be async.
    """

    max_attempts: int = 10  # in a row without progress
    stable_timeout: None = None  # not supported: there is nothing to wait for
    no_progress_timeout: float | timedelta = 300.0
    max_recovery_work: float = math.inf  # chunks since the first interruption
    max_oom_retries: int = 3  # progress does not reset them
    max_age: float | timedelta | None = None  # of a turn that is still taken up; None: any
    should_keep_recovering: Callable[[KeepRecoveringContext], Any] | None = None
    terminal_message: str = TERMINAL_MESSAGE
    on_exhausted: Callable[[RecoveryExhaustedContext], Any] | None = None

    def __post_init__(self) -> None:
        if self.stable_timeout is not None:
            raise ValueError(
                "stable_timeout is not supported: an attempt begins when its agent has started, and waits"
                " for nothing else. Remove it; no_progress_timeout bounds a turn that is stuck."
            )
        seconds(self.no_progress_timeout, "no_progress_timeout")
        if self.max_attempts < 1:
            raise ValueError("max_attempts is at least 1")
        if self.max_oom_retries < 0 or not self.max_recovery_work >= 0:
            raise ValueError("max_oom_retries and max_recovery_work are not negative")
        if self.max_age is not None and seconds(self.max_age, "max_age") == 0:
            raise ValueError("max_age must be longer than 0; None for any age")


def recovery_of(setting: Any) -> ChatRecovery | None:
    """What `chat_recovery` says. None: no recovery."""
    if isinstance(setting, ChatRecovery):
        return setting
    if isinstance(setting, bool):
        return ChatRecovery() if setting else None
    raise TypeError(f"chat_recovery is True, False or a ChatRecovery, not {setting!r}")


# --- hooks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatRecoveryContext:
    """What `on_chat_recovery` is told of an interrupted turn."""

    incident_id: str
    attempt: int
    max_attempts: int
    recovery_kind: RecoveryKind
    request_id: str
    stream_id: str  # "" if nothing had been streamed
    cause: Cause
    partial_text: str
    partial_parts: Sequence[Mapping[str, Any]]
    recovery_data: Any  # what `self.stash()` was given during the turn
    messages: Sequence[Message]
    last_body: Mapping[str, Any]
    last_client_tools: Sequence[Any]
    created_at: datetime  # when the turn started
    age: timedelta


@dataclass(frozen=True, slots=True)
class ChatRecoveryOptions:
    """What `on_chat_recovery` may return. None: as it is done by default."""

    persist: bool | None = None  # False: a partial answer without settled tools is thrown away
    continue_: bool | None = None  # False: the turn ends here, and says so


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A call that had no outcome when its turn was interrupted."""

    tool_call_id: str
    tool_name: str
    input: Any
    part_index: int  # in the parts of `partial_assistant`
    state: Literal["not_begun", "begun", "waiting"]  # waiting: for the client, or for an approval


class RecoveryWriter(DataWriter):
    """Writes data parts into the stream before the turn goes on.

    Clients are about to come back: unlike those of `emit_data`, transient parts are kept in the stream
    until then. They are not stored with the message either.
    """

    def __init__(self) -> None:
        self.chunks: list[str] = []
        super().__init__(lambda chunk, _: self.chunks.append(chunk))


@dataclass(frozen=True, slots=True)
class RecoveryBootEvent:
    """What `on_recovery_boot` is told when a turn was interrupted in the middle of its answer."""

    agent: str
    request_id: str
    previous_run_id: str  # which attempt it was
    cause: Cause
    settled_messages: Sequence[Message]
    in_flight_users: Sequence[Message]  # the first one is being answered; the others wait
    partial_assistant: Message
    pending_tool_calls: Sequence[PendingToolCall]
    writer: RecoveryWriter = field(default_factory=RecoveryWriter)


@dataclass(frozen=True, slots=True)
class RecoveryBootResult:
    """What `on_recovery_boot` may return; what is None stays as it is done by default.

    `chain` is the conversation from now on, and stored as such. If it ends with `partial_assistant`, changed
    or not, the turn goes on from there; calls that have an outcome in it have that outcome, and are not
    run. If it leaves the partial answer out, the turn ends as `skipped`. What is not part of it stays in
    the store, on a branch.

    `recovered_turns` are the messages of `in_flight_users`, or new ones, that get a turn after this one;
    `[]`: none. The first of `in_flight_users` can be among them only if the partial answer is left out: it is
    answered anew then. `before_boot` runs before any of that; if it raises, nothing is dispatched, and it is
    tried again later.
    """

    chain: Sequence[Any] | None = None
    recovered_turns: Sequence[Any] | None = None
    before_boot: Callable[[], Awaitable[None] | None] | None = None
