"""Access to a served application: which machines may connect, and the token of the command.

The supervisor owns the token and passes it to each worker in its environment, so that an open page keeps
its access when a worker crashes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from outlast.cli.load.load import InvalidTarget
from outlast.cli.serving.settings import Settings
from outlast.host.causes import VARIABLE as CAUSE


def keep_token() -> str:
    """Return the token of this command, from the environment or new, and export it to child processes."""
    from outlast.server.access.token import VARIABLE, Token

    try:
        text = Token().text
    except ValueError as error:
        raise InvalidTarget(str(error)) from None
    os.environ[VARIABLE] = text
    return text


def apply_access(
    settings: Settings, application: Any, sockets: Sequence[socket.socket]
) -> list[str]:
    """Apply `--insecure`; `InvalidTarget` if the server would be open to everyone without it.

    Returns the warnings to print.
    """
    if settings.insecure:
        application.insecure = True
    where = " and ".join(public(sockets))
    if where and not (application.has_auth or application.insecure):
        raise InvalidTarget(
            f"--host {settings.host} opens the agents to other machines without auth; set App(auth=…),"
            f" or pass --insecure if everyone who can reach {where} may use them"
        )
    if where and not application.has_auth and CAUSE not in os.environ:  # printed once
        return [f"no auth is configured: everyone who can reach {where} may use the agents"]
    return []


def public(sockets: Sequence[socket.socket]) -> list[str]:
    """Return the listening addresses that other machines can reach."""
    from outlast.cli.serving.sockets import url
    from outlast.server.access.provenance import is_loopback

    return [url(each) for each in sockets if not is_loopback(str(each.getsockname()[0]))]
