"""Errors whose text is for nobody outside: the log has them, under an id that the caller is told."""

from __future__ import annotations

import logging

from outlast.host.life.host import Host

logger = logging.getLogger("outlast.server")


def failed_call(host: Host, method: str, error: Exception) -> str:
    """What the caller of a method that has raised is told."""
    id = host.ids.new("error")
    logger.error("%s failed (%s)", method, id, exc_info=error)
    return f"The call failed. ({id})"
