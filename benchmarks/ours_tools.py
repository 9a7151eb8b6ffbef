"""What a tool call costs beside the tool's own work: checked, in the ledger, run, stored and shown.

The rest of a step (the model that says which tool it wants, what a browser is shown of that, the next
request) is there too when the model calls a tool that does not exist: the difference is the call.
"""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.catalogue import Job
from benchmarks.drive import in_loop
from benchmarks.ours_chat import host

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place

STEPS = 5  # with calls
AT_ONCE = 10  # calls in a step


@cache
def chat_class(calls: int, effect: str, wanted: str) -> Any:
    """An agent whose model makes so many calls in each of `STEPS` steps. It has the tool `note`."""
    from outlast import Think, tool
    from outlast.testing import ScriptedModel, Step

    async def note(n: int) -> int:
        """Note a number."""
        return n

    noted = tool(effect=effect)(note)  # type: ignore[call-overload]

    def answer(messages: Any) -> Step:
        asked = sum(message.kind == "response" for message in messages)
        if asked >= STEPS:
            return Step.text("Done.")
        step = Step.call(wanted, {"n": 0})
        for n in range(1, calls):
            step = step + Step.call(wanted, {"n": n})
        return step

    class Chat(Think):
        model = ScriptedModel.answering(answer)

        def get_tools(self) -> Any:
            return [noted]

    Chat.__name__ = f"Chat{wanted.title()}"  # agents are told apart by it
    return Chat


async def cpu_of_call(place: Place, n: int, calls: int, effect: str) -> float:
    """Microseconds of CPU for each call: n turns with calls that are run beside n without, in turns."""
    run, refused = chat_class(calls, effect, "note"), chat_class(calls, effect, "nothing")
    spent: dict[Any, list[float]] = {run: [], refused: []}
    async with host(place, "normal", run, refused) as opened:
        for i in range(n):
            for chat, times in spent.items():
                agent = opened.get(chat, f"{calls}-{i}")
                await agent.get_messages()
                with place.meter() as meter:
                    result = await agent.save_messages("Note.")
                assert result.status == "completed", result.error
                times.append(meter.cpu)
    return (median(spent[run]) - median(spent[refused])) / (STEPS * calls) * 1e6


async def calls(effect: str, place: Place, n: int) -> Metrics:
    """W3x: of several in a step, and of one alone in its step, which shares its commits with nobody."""
    several = await cpu_of_call(place, n, AT_ONCE, effect)
    return {"cpu_us": several, "alone_us": await cpu_of_call(place, n, 1, effect)}


JOBS = [
    Job("w3x", f"ours-{effect}", f"outlast, effect={effect!r}", effect, in_loop(calls, effect), 100)
    for effect in ("once", "read")
]
