"""The results of turns, as callers receive them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from outlast.chat.message.reducer import text_of

TurnStatus = Literal["completed", "error", "aborted", "skipped", "interrupted"]
SubmissionStatus = Literal[
    "pending", "running", "completed", "error", "aborted", "skipped", "interrupted"
]


class Message:
    """A message of the transcript: an AI SDK `UIMessage`."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw  # the whole message, including fields and parts unknown to outlast

    @property
    def id(self) -> str:
        return str(self.raw.get("id", ""))

    @property
    def role(self) -> str:
        return str(self.raw.get("role", ""))

    @property
    def parts(self) -> list[dict[str, Any]]:
        parts = self.raw.get("parts")
        return parts if isinstance(parts, list) else []

    @property
    def metadata(self) -> Any:
        return self.raw.get("metadata")

    @property
    def text(self) -> str:
        """The concatenated text parts."""
        return text_of(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<{self.role} message {self.id}: {self.text[:60]!r}>"


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended; reported once that is durable."""

    status: TurnStatus
    message: Message | None = None  # the answer, possibly partial
    error: str | None = None
    output: Any = None  # the answer as the `output` type of the turn, if it has one


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What `save_messages` and `continue_last_turn` return."""

    request_id: str
    status: TurnStatus
    message: Message | None = None
    error: str | None = None
    output: Any = None  # the answer as the `output` type of the turn, if it has one
    accepted: bool = True  # False if it is the result of an existing entry with the same key


@dataclass(frozen=True, slots=True)
class Submission:
    """A stored submission."""

    id: str
    status: SubmissionStatus
    idempotency_key: str | None
    metadata: Any
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    accepted: bool = True  # False if submit_messages found an existing one by id or key
