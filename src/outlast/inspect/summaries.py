"""Which messages the model sees only as part of a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.host.address import Address
from outlast.inspect.batteries import has_own
from outlast.store.catalogue import Reader, meta_of
from outlast.store.upgrade import version_of

MOST = 20  # summaries, newest first
KEPT_BY = "session"  # the battery that stores them


async def summaries(
    reader: Reader, address: Address, parents: Mapping[str, str | None]
) -> dict[str, int]:
    """Return the number of the newest summary that stands for a message, for those that have one.

    `parents` has the parent of each message, by its id.
    """
    if not has_own(KEPT_BY) or not version_of(KEPT_BY, await meta_of(reader)):
        return {}
    from outlast.session.tables import OVERLAYS

    found = await reader.fetch(OVERLAYS, address.text, MOST)
    return covered(parents, [(number, last) for number, _, last, *_ in found])


def covered(
    parents: Mapping[str, str | None], summaries: Iterable[tuple[int, str]]
) -> dict[str, int]:
    """Return the summaries of messages. Each stands for its last message, and for all before that. Pure.

    ```python
    from outlast.inspect.summaries import covered

    parents = {"a": None, "b": "a", "c": "b", "d": "c"}
    assert covered(parents, [(2, "c"), (1, "a")]) == {"c": 2, "b": 2, "a": 2}
    ```
    """
    made: dict[str, int] = {}
    for number, last in summaries:
        at: str | None = last
        while at is not None and at in parents and at not in made:
            made[at] = number
            at = parents[at]
    return made
