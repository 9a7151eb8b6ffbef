"""Errors whose messages clients must not see: they are logged under an id, and clients receive the id."""

from __future__ import annotations

import logging

from outlast.host.life.host import Host

logger = logging.getLogger("outlast.server")


def log_failed_call(host: Host, method: str, error: Exception) -> str:
    """Log a failed call and return the message for its caller."""
    id = host.ids.new("error")
    logger.error("%s failed (%s)", method, id, exc_info=error)
    return f"The call failed. ({id})"
