"""Notices: what an agent reports to its connections. The host forwards them to the server."""

from __future__ import annotations

from typing import Protocol

from outlast.host.address import Address


class Notice:
    """Base class of the notices of an agent. The subclasses stand with their owners."""

    __slots__ = ()


class Lost(Notice):
    """This host lost the agent: another one owns it, or the store lost commits."""

    __slots__ = ()


class Audience(Protocol):
    """The receiver of notices: it serves the connections. Called on the event loop; must not raise."""

    def hear(self, address: Address, notice: Notice) -> None: ...
