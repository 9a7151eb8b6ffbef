"""The options of `outlast serve`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

REFUSED = (
    78  # a worker's exit status: nothing can be served with these options, so a retry is pointless
)
NO_MEMORY = 71  # a worker's exit status: out of memory


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of every worker."""

    target: str
    host: str = "127.0.0.1"
    port: int = 8000
    store: str | None = None
    log_level: str = "info"
    workers: int = 1
    drain: float = 10.0  # seconds
    dev: bool = False  # `outlast dev`
    insecure: bool = False  # everyone may connect without auth
    prints_links: bool = True  # print the links with the token; False if the command did so
    watches: bool = False  # a change of a file reloads it, so a broken module can wait for one
    server: str | None = None  # the id that its workers share; None for a single worker

    def encode(self) -> str:
        """Encode them for a worker that is a new process."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


def workers_problem(workers: int, store: object) -> str | None:
    """Return why this many workers cannot share a store, or None."""
    is_postgres = isinstance(store, str) and store.startswith(("postgresql://", "postgres://"))
    if workers == 1 or is_postgres:
        return None
    return (
        f"--workers {workers} requires PostgreSQL, because only one process can open a SQLite file;"
        " omit --workers, or pass --store postgresql://…"
    )
