"""The interface that a host requires of its agents. `Agent` implements it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from outlast.store.operations import Query, Read

if TYPE_CHECKING:
    from outlast.host.life.activation import Activation
    from outlast.store.base import Store


class Hosted(Protocol):
    """An agent, as its host sees it."""

    # Finds the agents with unfinished work. Arguments: the address to continue after, and the page size.
    _unfinished_work: ClassVar[tuple[Query, ...]]
    sub_agents: ClassVar[Sequence[type[Any]]]  # the classes of its sub-agents

    @staticmethod
    def _agents_with_distant_alarms(store: Store, now: int) -> AsyncIterator[str]:
        """Yield the addresses of agents whose alarms may be too late, because the clock was set back."""
        ...

    @classmethod
    def _first_reads(cls, address: str) -> list[Read]:
        """Return the reads that an agent needs to start, so that one round trip fetches all of them."""
        ...

    @classmethod
    def _make(cls, activation: Activation) -> Hosted:
        """Create an object attached to its activation. Must not do I/O."""
        ...

    async def _start(self) -> None:
        """Run the user's `on_start`, then resume unfinished work. Must return soon."""
        ...

    async def _wake(self, source: str) -> None:
        """Handle a due alarm. On return, its row must have been moved or removed."""
        ...

    async def _clock_set_back(self) -> None:
        """Correct alarms that are too late because the clock was set back."""
        ...

    async def _host_stopping(self, cause: str) -> None:
        """The host is about to stop: record the cause for the process that resumes the running work."""
        ...

    def _leave(self, reason: Exception) -> None:
        """Stop all work and keep its rows: this activation is over."""
        ...
