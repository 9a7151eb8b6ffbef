"""The meaning of SIGHUP: the user's terminal was closed, or an operator requests a reload."""

from __future__ import annotations

import os
import signal
from typing import Literal

Hangup = Literal["reload", "stop", "ignore"]


def hangup_means() -> Hangup:
    """Return what SIGHUP means for this process. Call it before anything handles SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return hangup_action(has_terminal=has_terminal(), is_ignored=is_ignored)


def hangup_action(*, has_terminal: bool, is_ignored: bool) -> Hangup:
    """With a terminal, SIGHUP means that it was closed: stop, unless `nohup` ignores it."""
    if not has_terminal:
        return "reload"
    return "ignore" if is_ignored else "stop"


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal, whatever its stdin and stdout are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def stop_on_hangup() -> None:
    """Treat SIGHUP as SIGTERM, unless `nohup` ignores it: without a supervisor there is nothing to reload."""

    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, stop)
