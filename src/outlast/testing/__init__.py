"""For tests, ours and users': virtual time, deaths at every commit, real processes that are really killed.

* `VirtualLoop`, `VirtualClock`, `CountingIds`: an event loop whose time moves only when nothing else can
  happen, a wall clock that follows it, and ids that are the same in every run.
* `crash_sweep`: runs your code once per commit with the host dead at that point, and checks what the next
  host makes of it. Dozens of deaths a second, because a life is an event loop and not a process.
* `Worker`: the same for real: a subprocess and SIGKILL.
* `ScriptedModel`: a model that says what the test tells it to.

The pytest plugin (`plugin`, found by its entry point) has fixtures for the latter two. `death` is where a
host dies; start reading there. This package may see all others, and none of them imports it.
"""

from typing import TYPE_CHECKING, Any

from outlast.testing.death import Death
from outlast.testing.process import Exit, Worker, WorkerFailed
from outlast.testing.sweep import Outcome, SweepMode, SweepReport, crash_sweep
from outlast.testing.virtual import CountingIds, TimeStandsStill, VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from outlast.testing.scripted import ScriptedModel, ScriptedRequest, ScriptExhausted
    from outlast.testing.steps import Failure, Step

__all__ = [
    "CountingIds",
    "Death",
    "Exit",
    "Failure",
    "Outcome",
    "ScriptExhausted",
    "ScriptedModel",
    "ScriptedRequest",
    "Step",
    "SweepMode",
    "SweepReport",
    "TimeStandsStill",
    "VirtualClock",
    "VirtualLoop",
    "Worker",
    "WorkerFailed",
    "crash_sweep",
]

_SCRIPTED = {"Failure", "ScriptExhausted", "ScriptedModel", "ScriptedRequest", "Step"}


def __getattr__(name: str) -> Any:
    """The names that need Pydantic AI, which takes most of a second to load."""
    if name in _SCRIPTED:
        from outlast.testing import scripted

        return getattr(scripted, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
