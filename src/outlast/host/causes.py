"""Why the process before this one ended, in the words that are handed from one to the next."""

from __future__ import annotations

import logging
import os
from typing import Final

logger = logging.getLogger("outlast.host")

CRASHED: Final = "crashed"  # a signal, or an exit status other than 0
OOM: Final = "oom"  # it was killed for its memory, or had none left
DEPLOY: Final = "deploy"  # somebody asked it to stop
UNKNOWN: Final = "unknown"
CAUSES = (CRASHED, OOM, DEPLOY)

VARIABLE = "OUTLAST_CAUSE"  # how a supervisor tells the process that it starts
DIED_AT = "OUTLAST_DIED_AT"  # when the one before it ended, in milliseconds since 1970


def checked(cause: str | None) -> str | None:
    """A cause that may be handed to a host; None: nobody knows."""
    if cause is None or cause == UNKNOWN:
        return None
    if cause not in CAUSES:
        raise ValueError(f"cause is {', '.join(CAUSES)} or {UNKNOWN}, not {cause!r}")
    return cause


def from_environment() -> str | None:
    """What the supervisor of this process has said. A word that nobody knows is as good as none."""
    told = os.environ.get(VARIABLE) or None
    try:
        return checked(told)
    except ValueError as error:
        logger.warning("%s is ignored: %s", VARIABLE, error)
        return None


def died_at_from_environment() -> int | None:
    """When the process before this one ended, if a supervisor has noted it."""
    noted = os.environ.get(DIED_AT, "")
    return int(noted) if noted.isdecimal() and len(noted) < 16 else None
