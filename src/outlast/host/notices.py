"""What those who are connected to an agent are told. The host passes it on to whoever serves them."""

from __future__ import annotations

from typing import Protocol

from outlast.host.address import Address


class Notice:
    """Something about an agent that its connections are told. The kinds stand with their owners."""

    __slots__ = ()


class Lost(Notice):
    """The agent was lost here: to another host, or with commits that the store has lost."""

    __slots__ = ()


class Audience(Protocol):
    """Who serves the connections. Called at once, on the event loop; it must not raise."""

    def hear(self, address: Address, notice: Notice) -> None: ...
