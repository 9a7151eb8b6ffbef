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
    """Log each event of `channels` to `outlast.events.<channel>`. Returns a function that stops it.

    Failures are logged as ERROR, interruptions and losses as WARNING, everything else at `level`. A failed
    tool is a WARNING: the model learns of it, and the turn continues.

    No text of a conversation and no input or output of a tool is logged. Texts from your code are: those of
    errors, reasons to cancel, and idempotency keys.

    Each record has the fields of its event: `outlast_event`, `outlast_agent`, `outlast_fiber_id`.

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
            named = {
                name.replace(".", "_"): value for name, value in extra.items()
            }  # for format strings
            logger.log(at_level, "%s", line(event), extra=named)

    wanted = [channels] if isinstance(channels, str) else channels
    endings = [events.subscribe(each, log) for each in wanted]

    def end() -> None:
        for unsubscribe in endings:
            unsubscribe()

    return end


def line(event: Event) -> str:
    """Return an event as one line, whatever its fields contain; empty fields are left out."""
    words = [event.name]
    if event.agent is not None:
        words.append(event.agent)
    words += [f"{field}={value!r}" for field, value in event.payload.items() if value is not None]
    return " ".join(words)


def severity(event: Event) -> Severity:
    """Return the severity of an event; for one that reports an end, it depends on the outcome."""
    match event:
        case TurnFinished(status="error"):
            return "error"
        case TurnFinished(status="interrupted") | ToolFinished(outcome="failed" | "unknown"):
            return "warning"
    return event.severity
