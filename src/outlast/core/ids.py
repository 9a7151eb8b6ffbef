"""The one place where ids come from, so that tests can steer them."""

from __future__ import annotations

import os
from typing import Protocol


class Ids(Protocol):
    """A source of ids that are never given out twice, not even by another process."""

    def new(self, kind: str) -> str:
        """A fresh id; `kind` says of what ("fiber", "owner") and leads it."""
        ...


class RandomIds:
    """96 random bits: collisions are not a case worth handling."""

    def new(self, kind: str) -> str:
        return f"{kind}_{os.urandom(12).hex()}"
