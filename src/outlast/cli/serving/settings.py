"""What `outlast serve` was asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

REFUSED = (
    78  # a worker's exit status: there is nothing to serve that way, and trying again is no use
)
NO_MEMORY = 71  # a worker's exit status: there was no memory left


@dataclass(frozen=True, slots=True)
class Settings:
    """What every worker is to do."""

    target: str
    host: str = "127.0.0.1"
    port: int = 8000
    store: str | None = None
    log_level: str = "info"
    workers: int = 1
    drain: float = 10.0  # seconds
    dev: bool = False  # somebody is writing it
    insecure: bool = False  # everybody may come in, although there is no auth
    tells_links: bool = True  # that bring the token; False: the command has done so
    watches: bool = False  # a change of a file reloads it: what is broken may wait for that
    server: str | None = None  # what its workers have in common; None: there is one

    def encode(self) -> str:
        """For a worker that is a fresh process."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


def refusal(workers: int, store: object) -> str | None:
    """Why this many workers cannot share a store."""
    is_postgres = isinstance(store, str) and store.startswith(("postgresql://", "postgres://"))
    if workers == 1 or is_postgres:
        return None
    return (
        f"--workers {workers} needs PostgreSQL. SQLite belongs to one process: leave --workers away,"
        f" or give --store postgresql://…"
    )
