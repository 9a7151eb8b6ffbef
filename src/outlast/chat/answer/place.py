"""A call before it runs, and its place: in the message, or inside another call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from outlast.chat.tools.outcome import CallEnd
from outlast.store.operations import Operation

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


@dataclass(frozen=True, slots=True)
class Called:
    """A call as the model made it, or as a message contains it that the turn continues."""

    id: str
    name: str
    arguments: Any  # as JSON, or decoded
    approved: bool = False
    step: int = 0
    messages: Sequence[ModelMessage] = ()  # the request to the model, and its response
    is_for_client: bool = False  # a call of a tool whose client has disconnected


class Place(Protocol):
    """Where a call stands, and how it is shown there before it ends."""

    @property
    def is_inside(self) -> bool:
        """Whether it is a nested call: its outcome is recorded in the ledger."""
        ...

    @property
    def riding(self) -> Sequence[Operation]:
        """More operations for the commit of its intent."""
        ...

    def block(self, reason: str) -> CallEnd:
        """Return the end of a call that `before_tool_call` blocked."""
        ...

    def ask_for_approval(self, id: str, *, for_client: bool) -> CallEnd:
        """Let the call wait for an approval, if it can wait here."""
        ...

    def wait_for_client(self, id: str) -> CallEnd:
        """Let the call wait for a result from the client or another service, if it can wait here."""
        ...

    def show(self, id: str, output: Any) -> None:
        """Show a preliminary result."""
        ...
