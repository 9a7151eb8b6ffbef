"""Events as lines of the standard library's `logging`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from outlast.chat.types.events import ToolFinished, TurnFinished
from outlast.core.events import Event, Events, Severity
from outlast.observe.attributes import attributes


def log_events(
    events: Events,
    *,
    level: int = logging.INFO,
    channels: str | Iterable[str] = "*",
) -> Callable[[], None]:
    """Log each event of `channels` to `outlast.events.<channel>`; returns what ends that.

    What failed is logged as an ERROR, what was interrupted or lost as a WARNING, everything else at `level`.
    A tool that failed is a WARNING: the model is told, and the turn goes on.

    Nothing is logged of what was said, of a tool's input or of its output. Texts that your code makes are:
    those of errors, of reasons to cancel, and of idempotency keys.

    Each record carries the fields of its event: `outlast_event`, `outlast_agent`, `outlast_fiber_id`.

    ```python
    import logging
    from outlast import Agent, Host
    from outlast.observe import log_events

    class Greeter(Agent):
        async def greet(self) -> str:
            return f"Hello, {self.name}"

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    host = Host(agents=[Greeter], store="sqlite:///greeter.db")
    log_events(host.events, channels="lifecycle")
    async with host:
        await host.get(Greeter, "bob").greet()
        # INFO outlast.events.lifecycle lifecycle:activated Greeter/bob
    ```
    """
    levels = {"info": level, "warning": logging.WARNING, "error": logging.ERROR}

    def log(event: Event) -> None:
        logger = logging.getLogger(f"outlast.events.{event.channel}")
        at_level = levels[severity(event)]
        if logger.isEnabledFor(at_level):
            extra = {"outlast.event": event.name, **attributes(event)}
            named = {name.replace(".", "_"): value for name, value in extra.items()}  # for formats
            logger.log(at_level, "%s", line(event), extra=named)

    wanted = [channels] if isinstance(channels, str) else channels
    endings = [events.subscribe(each, log) for each in wanted]

    def end() -> None:
        for unsubscribe in endings:
            unsubscribe()

    return end


def line(event: Event) -> str:
    """An event in one line, whatever its fields hold; those that say nothing are left out."""
    words = [event.name]
    if event.agent is not None:
        words.append(event.agent)
    words += [f"{field}={value!r}" for field, value in event.payload.items() if value is not None]
    return " ".join(words)


def severity(event: Event) -> Severity:
    """How loud an event is: for those that tell how something has ended, that depends on how."""
    match event:
        case TurnFinished(status="error"):
            return "error"
        case TurnFinished(status="interrupted") | ToolFinished(outcome="failed" | "unknown"):
            return "warning"
    return event.severity
