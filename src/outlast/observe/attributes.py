"""The fields of an event under the names that logs and traces share."""

from __future__ import annotations

from outlast.core.events import Event

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]


def attributes(event: Event) -> Attributes:
    """Return the fields, flat and with plain values, without those that are None.

    A field is prefixed with the first word of its event: `id` of a fiber, `name` of a tool.

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
    found: Attributes = {}
    if event.agent is not None:
        found["outlast.agent"] = event.agent
    about = event.name.partition(":")[0]
    for field, value in event.payload.items():
        if value is not None:
            found[f"outlast.{about}.{field.removeprefix(f'{about}_')}"] = _plain(value)
    return found


def _plain(value: object) -> str | int | float | bool | tuple[str, ...]:
    if isinstance(value, str | int | float | bool):
        return value
    return tuple(map(str, value)) if isinstance(value, tuple) else str(value)
