"""Why the previous process ended, as one process reports it to the next."""

from __future__ import annotations

import logging
import os
from typing import Final

logger = logging.getLogger("outlast.host")

CRASHED: Final = "crashed"  # a signal, or an exit status other than 0
OOM: Final = "oom"  # the kernel killed it for its memory use, or it ran out of memory
DEPLOY: Final = "deploy"  # it was asked to stop
UNKNOWN: Final = "unknown"
CAUSES = (CRASHED, OOM, DEPLOY)

VARIABLE = "OUTLAST_CAUSE"  # a supervisor sets it for the process it starts
DIED_AT = "OUTLAST_DIED_AT"  # when the previous process ended, in milliseconds since 1970


def checked(cause: str | None) -> str | None:
    """Validate a cause; None means unknown."""
    if cause is None or cause == UNKNOWN:
        return None
    if cause not in CAUSES:
        raise ValueError(f"cause must be {', '.join(CAUSES)} or {UNKNOWN}, got {cause!r}")
    return cause


def from_environment() -> str | None:
    """Return the cause that the supervisor passed to this process. An unknown word counts as none."""
    given = os.environ.get(VARIABLE) or None
    try:
        return checked(given)
    except ValueError as error:
        logger.warning("ignoring %s: %s", VARIABLE, error)
        return None


def died_at_from_environment() -> int | None:
    """Return when the previous process ended, if the supervisor recorded it."""
    given = os.environ.get(DIED_AT, "")
    return int(given) if given.isdecimal() and len(given) < 16 else None
