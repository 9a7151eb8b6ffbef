"""The admin socket of a host: commands on the same machine use it to reach running agents.

It is a Unix socket that only its owner can open. Requests and responses are JSON, one per line:

    {"call": "seal_incident", "agent": "Assistant/alice", "arguments": {"request_id": "…"}}
    {"ok": true, "value": true}

An agent class lists the methods that operators may call in `_for_operators`. For a SQLite store the socket is
`<file>.sock`, next to the database; each host on PostgreSQL has its own in the user's folder (`folder`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from outlast.core import json
from outlast.core.clock import to_milliseconds
from outlast.core.errors import OutlastError

logger = logging.getLogger("outlast.host")

LONGEST = 100  # bytes of a socket's path; Linux allows 107, macOS 103
LINE = 16 * 1024 * 1024  # bytes of a request or a response
CONNECT_WITHIN = 5.0  # seconds

Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class NoHost(OutlastError):
    """No host on this machine has the store open, or it has no admin socket."""


class AdminRefused(OutlastError):
    """The host rejected the request; the message is the host's."""


# --- paths ---------------------------------------------------------------------------------------


def folder() -> Path:
    """The folder for sockets that do not stand next to a database; only this user can open it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return Path(base) / "outlast"
    return Path(tempfile.gettempdir()) / f"outlast-{os.getuid()}"


def socket_of(identity: str) -> Path:
    """Return the path of the socket of a host on this store; on PostgreSQL, of this process."""
    if identity.startswith("/"):
        path = Path(f"{identity}.sock")
        return path if len(os.fsencode(path)) <= LONGEST else folder() / f"{_digest(identity)}"
    return folder() / f"{_digest(identity)}-{os.getpid()}"


def sockets_of(identity: str) -> list[Path]:
    """Return the paths where hosts of this store may listen on this machine.

    Sockets in a folder that other users can write to are left out: another user may have made them.
    """
    if not identity.startswith("/"):
        found = sorted(folder().glob(f"{_digest(identity)}-*"))
    else:
        found = [socket_of(identity)]
    return [path for path in found if path.parent != folder() or _is_ours(path.parent)]


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(path):
        raise PermissionError(f"{path} must be a folder that only this user can open")


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


# --- the host's side -----------------------------------------------------------------------------


class AdminSocket:
    """Accepts connections until it is closed."""

    def __init__(self, path: Path, handle: Handler) -> None:
        self.path = path
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._inode: int | None = None

    async def open(self) -> None:
        """Listen, replacing the socket of an earlier host: this one holds the store's lock."""
        if self.path.parent == folder():
            _make_folder(self.path.parent)
        # Created under another name, so that nobody else can open it before its mode is set.
        made = self.path.with_name(f".{self.path.name[-40:]}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        self._server = await asyncio.start_unix_server(self._serve, made, limit=LINE)
        try:
            os.chmod(made, 0o600)
            os.replace(made, self.path)
        except OSError:
            self._server.close()
            made.unlink(missing_ok=True)
            raise
        self._inode = self.path.lstat().st_ino

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:  # not the next host's
                self.path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await self._answer(line)
                writer.write(json.encode(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the client is gone, or its request is too long
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.decode(line.decode())
            if not isinstance(request, dict):
                raise ValueError("a request must be a JSON object")
            return {"ok": True, "value": plain(await self._handle(request))}
        except (OutlastError, LookupError, TypeError, ValueError) as error:
            text = str(error.args[0]) if error.args else type(error).__name__
            return {"ok": False, "kind": type(error).__name__, "error": text}
        except Exception as error:
            logger.exception("a request on the admin socket failed")
            return {"ok": False, "kind": type(error).__name__, "error": str(error)}


def plain(value: Any) -> Any:
    """Convert a result to JSON values: dataclasses to objects, times to milliseconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, datetime):
        return to_milliseconds(value, "time")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return plain(getattr(value, "raw", repr(value)))  # a message has its stored form there


# --- the client's side ---------------------------------------------------------------------------


async def ask(paths: Sequence[Path], request: dict[str, Any]) -> Any:
    """Send a request to the first host that listens at one of `paths`; `NoHost` if none does."""
    for path in paths:
        try:
            connecting = asyncio.open_unix_connection(path, limit=LINE)
            reader, writer = await asyncio.wait_for(connecting, CONNECT_WITHIN)
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError):
            continue
        except PermissionError:
            raise AdminRefused(
                f"the host's admin socket {path} belongs to another user; run this as that user"
            ) from None
        try:
            writer.write(json.encode(request).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise AdminRefused(
                "the host ended before it responded; the request may have been carried out"
            )
        answer = json.decode(line.decode())
        if answer.get("ok"):
            return answer.get("value")
        raise AdminRefused(str(answer.get("error")))
    raise NoHost("no host on this machine has this store open, or it was started without --admin")
