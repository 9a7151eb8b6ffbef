"""Whether a host has a store open, as far as this machine can tell."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from outlast.host.admin import socket as admin
from outlast.host.admin.socket import AdminRefused, NoHost
from outlast.store.url import DEFAULT, file_of, identity_of


async def is_hosted(url: str | None) -> bool | None:
    """Return whether a host has the store open; None for PostgreSQL, where a host may be on any machine."""
    try:
        await admin.ask(admin.sockets_of(identity_of(url)), {"call": "hello"})
        return True
    except AdminRefused:
        return True
    except NoHost:
        path = file_of(url or DEFAULT)
        return None if path is None else is_locked(path)


def is_locked(path: Path) -> bool | None:
    """Return whether a process has locked a SQLite file. Does not try the lock: a host may be starting.

    None if the last process that had the lock ran on another machine.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        about = json.loads(lock.read_text())
        pid, host, inode = int(about["pid"]), about["host"], lock.stat().st_ino
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return None
    try:
        locks = Path("/proc/locks").read_text()
    except OSError:  # not Linux: assume that a running process holds it
        return _is_alive(pid)
    return any(
        line.split()[-3].endswith(f":{inode}") for line in locks.splitlines() if "FLOCK" in line
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
