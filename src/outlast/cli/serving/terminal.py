"""What SIGHUP means: the user's terminal was closed, or an operator asks for a reload."""

from __future__ import annotations

import os
import signal
from typing import Literal

Hangup = Literal["reload", "stop", "ignore"]


def hangup_means() -> Hangup:
    """For this process, as it was started. Call it before anything handles SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return decided(has_terminal=has_terminal(), is_ignored=is_ignored)


def decided(*, has_terminal: bool, is_ignored: bool) -> Hangup:
    """With a terminal, SIGHUP says that it was closed: stop, unless `nohup` asked to live on."""
    if not has_terminal:
        return "reload"
    return "ignore" if is_ignored else "stop"


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, whatever its stdin and stdout are."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def stop_on_hangup() -> None:
    """Without a supervisor there is nothing to reload: SIGHUP is SIGTERM, unless `nohup` ignores it."""

    def stop(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, stop)
