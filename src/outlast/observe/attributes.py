"""The fields of an event under the names that logs and traces share."""

from __future__ import annotations

from outlast.core.events import Event


def attributes(event: Event) -> dict[str, str | int | float | bool]:
    """Flat, with plain values; what is None is left out.

    ```python
    from outlast.agent.events import FiberRunStarted
    from outlast.observe.attributes import attributes

    assert attributes(FiberRunStarted(0, "Agent/alice", "f1", "research", False)) == {
        "outlast.agent": "Agent/alice",
        "outlast.fiber.id": "f1",
        "outlast.fiber.name": "research",
        "outlast.fiber.managed": False,
    }
    ```
    """
    found: dict[str, str | int | float | bool] = {}
    if event.agent is not None:
        found["outlast.agent"] = event.agent
    for field, value in event.payload.items():
        if value is not None:
            name = field.removeprefix(f"{event.channel}_")
            is_plain = isinstance(value, str | int | float | bool)
            found[f"outlast.{event.channel}.{name}"] = value if is_plain else str(value)
    return found
