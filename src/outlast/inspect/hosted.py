"""Whether a host has a store open, as far as that can be seen from here."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from outlast.host import admin
from outlast.host.admin import AdminRefused, NoHost
from outlast.store.url import DEFAULT, file_of, identity_of


async def is_hosted(url: str | None) -> bool | None:
    """None: it is PostgreSQL, and a host may be anywhere."""
    try:
        await admin.ask(admin.sockets_of(identity_of(url)), {"call": "hello"})
        return True
    except AdminRefused:
        return True
    except NoHost:
        path = file_of(url or DEFAULT)
        return None if path is None else is_locked(path)


def is_locked(path: Path) -> bool | None:
    """Whether the process that has locked a SQLite file last is alive. The lock itself is not touched.

    None: it ran on another machine.
    """
    try:
        about = json.loads(path.with_name(path.name + ".lock").read_text())
        pid, host = int(about["pid"]), about["host"]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
