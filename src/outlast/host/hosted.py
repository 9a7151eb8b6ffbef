"""What a host asks of the agents that it runs. The class `Agent` provides it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from outlast.store.operations import Query, Read

if TYPE_CHECKING:
    from outlast.host.life.activation import Activation
    from outlast.store.base import Store


class Hosted(Protocol):
    """An agent, as its host sees it."""

    # Which agents have unfinished work. Arguments: the address after which to go on, and how many.
    _unfinished_work: ClassVar[tuple[Query, ...]]
    sub_agents: ClassVar[Sequence[type[Any]]]  # the classes of its sub-agents

    @staticmethod
    def _sleepers(store: Store, now: int) -> AsyncIterator[str]:
        """The addresses of agents that may have to be set right, since they wait for so long."""
        ...

    @classmethod
    def _first_reads(cls, address: str) -> list[Read]:
        """What an agent wants to read while it starts, so that all of it can be read in one go."""
        ...

    @classmethod
    def _make(cls, activation: Activation) -> Hosted:
        """A new object, attached to its activation. Must not do I/O."""
        ...

    async def _start(self) -> None:
        """Run the user's `on_start`, then take up unfinished work. Must return soon."""
        ...

    async def _wake(self, source: str) -> None:
        """An alarm is due. Its row must have been moved or removed when this returns."""
        ...

    async def _set_right(self) -> None:
        """The clock may have gone back: bring nearer what would wait for too long."""
        ...

    async def _interrupting(self, cause: str) -> None:
        """The host is about to end: note why, for whoever takes up what runs now."""
        ...

    def _leave(self, reason: Exception) -> None:
        """Stop all work and keep its rows: this activation is over."""
        ...
