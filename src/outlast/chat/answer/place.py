"""A call before it is run, and the place where it stands: in the message, or inside another call."""

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
    """A call as it stands in the answer of the model, or in a message that goes on."""

    id: str
    name: str
    arguments: Any  # JSON text, or what it says
    approved: bool = False
    step: int = 0
    messages: Sequence[ModelMessage] = ()  # what the model had been sent, and its answer
    is_for_client: bool = False  # the model called a tool of the client, which is gone


class Place(Protocol):
    """Where a call stands, and what is shown of it there before it ends."""

    @property
    def is_inside(self) -> bool:
        """Whether another call makes it: then what comes of it is recorded."""
        ...

    @property
    def riding(self) -> Sequence[Operation]:
        """What is written in the commit of its intent."""
        ...

    def block(self, reason: str) -> CallEnd:
        """`before_tool_call` does not want it to run."""
        ...

    def ask_for_approval(self, id: str, *, for_client: bool) -> CallEnd:
        """The call must wait for an approval."""
        ...

    def wait_for_client(self, id: str) -> CallEnd:
        """The call must wait for somebody else's result."""
        ...

    def show(self, id: str, output: Any) -> None:
        """A result is on its way."""
        ...
