"""The only source of ids, so that tests can control them."""

from __future__ import annotations

import os
from typing import Protocol


class Ids(Protocol):
    """A source of ids that are unique across processes."""

    def new(self, kind: str) -> str:
        """Return a new id that starts with `kind` ("fiber", "owner")."""
        ...


class RandomIds:
    """Ids of 96 random bits; collisions are improbable enough to ignore."""

    def new(self, kind: str) -> str:
        return f"{kind}_{os.urandom(12).hex()}"
