"""Where a job works: its empty directory, its empty database, and the servers it may use."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter


@dataclass(frozen=True)
class Place:
    """What the runner hands to a job's process."""

    directory: Path
    """Empty, removed after the job."""
    shared: Path
    """Kept for the whole run, for what is costly to build."""
    postgres: str = ""
    """URI of an empty database; empty text if the job needs none."""
    postmaster: int = 0
    """Process id of PostgreSQL's parent process; 0 if the job needs none."""
    restate: str = ""
    """Path of the Restate server; empty text if the job needs none."""

    def meter(self, *others: int) -> Meter:
        """A meter that counts PostgreSQL's processes too, if this job uses it."""
        return Meter((*others, self.postmaster) if self.postmaster else others)

    def to_json(self) -> str:
        """For the command line of the job's process."""
        return json.dumps(asdict(self), default=str)

    @staticmethod
    def from_json(text: str) -> Place:
        """The other way."""
        fields: dict[str, Any] = json.loads(text)
        directory, shared = Path(fields.pop("directory")), Path(fields.pop("shared"))
        return Place(directory, shared, **fields)
