"""The origins of requests, as data: how each is treated. Batteries add their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.agent.battery import InboxOrigin

AUTO = "auto"  # a turn that continues by itself
SUBMISSION = "submission"

ORIGINS = (
    InboxOrigin(name="save"),
    InboxOrigin(name="chat"),
    InboxOrigin(name="continue"),
    InboxOrigin(name="recovery"),
    InboxOrigin(name="add"),
    InboxOrigin(name=SUBMISSION, is_listed=True, keeps_messages=False),
    InboxOrigin(name=AUTO, goes_first=True, is_held=False),
)
_UNKNOWN = InboxOrigin(name="unknown")  # of a battery that is no longer installed


class Origins:
    """The origins of one agent class."""

    def __init__(self, more: Iterable[InboxOrigin] = ()) -> None:
        known: dict[str, InboxOrigin] = {}
        for origin in (*ORIGINS, *more):
            if known.setdefault(origin.name, origin) is not origin:
                raise TypeError(f"two inbox origins are named {origin.name!r}; rename one")
        self._known: Mapping[str, InboxOrigin] = known

    def __getitem__(self, name: str) -> InboxOrigin:
        return self._known.get(name, _UNKNOWN)

    @property
    def listed(self) -> tuple[str, ...]:
        """The names of the origins whose entries are kept until they are deleted."""
        return tuple(origin.name for origin in self._known.values() if origin.is_listed)
