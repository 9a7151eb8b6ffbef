"""What a command may open to other machines, and how those who run it get in.

The token is the supervisor's: it is in the environment of each worker, so that a page that is open stays let
in when its worker dies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from outlast.cli.load.load import NoTarget
from outlast.cli.serving.settings import Settings
from outlast.host.causes import VARIABLE as CAUSE


def keep_token() -> str:
    """The token of this command: that of the environment, or a new one, for all processes it starts."""
    from outlast.server.access.token import VARIABLE, Token

    try:
        text = Token().text
    except ValueError as error:
        raise NoTarget(str(error)) from None
    os.environ[VARIABLE] = text
    return text


def open_doors(settings: Settings, application: Any, sockets: Sequence[socket.socket]) -> list[str]:
    """Let in whom the command line allows; `NoTarget` if that would be everybody, and nobody has said so.

    Returns what to tell about it.
    """
    if settings.insecure:
        application.insecure = True
    where = " and ".join(public(sockets))
    if where and not (application.has_auth or application.insecure):
        raise NoTarget(
            f"--host {settings.host} opens the agents to other machines, and there is no auth: set"
            f" App(auth=…), or give --insecure if everybody who reaches {where} may use them"
        )
    if where and not application.has_auth and CAUSE not in os.environ:  # told once
        return [f"there is no auth: everybody who reaches {where} may use the agents"]
    return []


def public(sockets: Sequence[socket.socket]) -> list[str]:
    """The addresses among those that are listened on that other machines may reach."""
    from outlast.cli.serving.listening import url
    from outlast.server.access.provenance import is_loopback

    return [url(each) for each in sockets if not is_loopback(str(each.getsockname()[0]))]
