"""An event loop for tests with real sockets that wait for a timeout: they move its clock on."""

from __future__ import annotations

import asyncio


class SkippingLoop(asyncio.SelectorEventLoop):
    """Real time, and whatever `skip` adds. What is due by then runs in the next turn of the loop."""

    def __init__(self) -> None:
        self._skipped = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


def skip(seconds: float) -> None:
    """Move the clock of the running loop on; the test is marked with `skipped_time`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skip(seconds)
