"""The sockets on which connections wait for a worker."""

from __future__ import annotations

import errno
import os
import socket

BACKLOG = 2048  # connections that may wait


class CannotListen(Exception):
    """The address is unavailable; the message says why."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of `host`."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise CannotListen(f"cannot listen on {host!r}: {error.strerror}") from None
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        made = socket.socket(family, kind, protocol)
        sockets.append(made)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
            made.listen(BACKLOG)
        except OSError as error:
            for each in sockets:
                each.close()
            raise CannotListen(_why(error, host, port)) from None
    return sockets


def url(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use. Stop the process that listens there, or choose another"
            " port with --port."
        )
    if error.errno == errno.EACCES:
        return f"this user may not use port {port} of {host}. Choose one above 1023 with --port."
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"cannot listen on port {port} of {host}: {reason}"
