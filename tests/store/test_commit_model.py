"""Random batches of several agents in few groups, compared with dictionaries. On both engines."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import CLEAR, CREATE, DELETE, INSERT, PUT, UPDATE, fence, settled, stored, write

from outlast.core.errors import CommitFailed, CommitRefused
from outlast.store.base import Store, StoreOptions
from outlast.store.operations import Operation
from outlast.store.url import open_store

Rows = dict[tuple[str, str], str]

STATEMENTS = {"put": PUT, "insert": INSERT, "update": UPDATE, "create": CREATE, "delete": DELETE}

steps = st.tuples(
    st.sampled_from([*STATEMENTS, *STATEMENTS, "clear", "bad value"]),
    st.sampled_from(["", "/child"]),  # a sub-agent writes under its root's fence
    st.sampled_from(["k1", "k2"]),
    st.sampled_from(["1", "2", "3"]),
)
# Each batch: the agent, and what it does. Several ticks, each of which is at least one group.
ticks = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.lists(steps, max_size=4)), max_size=8), max_size=3
)


def operation(root: str, step: tuple[str, str, str, str]) -> Operation:
    name, child, key, value = step
    if name == "clear":
        return CLEAR, (root + child,)
    if name == "bad value":
        return write(PUT, root + child, key, None)
    return write(STATEMENTS[name], root + child, key, value)


def expected(rows: Rows, root: str, batch: list[tuple[str, str, str, str]]) -> object:
    """What the batch does to the model, and how it ends: the rows touched, or an error's type."""
    changed, touched = dict(rows), []
    for name, child, key, value in batch:
        row = (root + child, key)
        is_there = row in changed
        match name:
            case "bad value":
                return CommitFailed
            case "clear":
                mine = [other for other in changed if other[0] == root + child]
                for other in mine:
                    del changed[other]
                touched.append(len(mine))
                continue
            case "create" if is_there:
                return CommitRefused
            case "put" | "create":
                changed[row] = value
                touched.append(1)
                continue
            case "insert" if not is_there:
                changed[row] = value
            case "update" if is_there:
                changed[row] = value
            case "delete":
                changed.pop(row, None)
        touched.append(int(is_there != (name == "insert")))
    rows.clear()
    rows.update(changed)
    return tuple(touched)


async def check(store: Store, example: int, plan: list[list[tuple[int, list[object]]]]) -> None:
    roots = [f"{example}/{agent}" for agent in range(4)]
    fences = [fence(root) for root in roots]
    model: list[Rows] = [{} for _ in roots]
    broken: set[int] = set()
    for tick in plan:
        outcomes, ends = [], []
        for agent, batch in tick:
            if fences[agent].closed is not None:
                continue
            outcomes.append(
                store.submit(fences[agent], [operation(roots[agent], step) for step in batch])
            )
            if agent in broken:
                ends.append(CommitFailed)
            else:
                ends.append(expected(model[agent], roots[agent], batch))
            if ends[-1] is CommitFailed:
                broken.add(agent)
        if outcomes:
            found = await settled(outcomes)
            assert [type(end) if isinstance(end, Exception) else end for end in found] == ends
    for root, rows in zip(roots, model, strict=True):
        for agent_name in (root, root + "/child"):
            assert await stored(store, agent_name) == {
                key: value for (owner, key), value in rows.items() if owner == agent_name
            }


@pytest.mark.parametrize("max_group", [1000, 3])
def test_groups_of_random_batches_do_what_dictionaries_do(store_url: str, max_group: int) -> None:
    numbers = itertools.count()
    with asyncio.Runner() as runner:
        store = runner.run(open_store(store_url, StoreOptions(max_group=max_group)))

        @settings(max_examples=150 if store.engine == "sqlite" else 60)
        @given(ticks)
        def examples(plan: list[list[tuple[int, list[object]]]]) -> None:
            runner.run(check(store, next(numbers), plan))

        examples()
        statistics = store.statistics()
        runner.run(store.close())
    assert statistics.refused
    assert statistics.failed
    assert statistics.largest_group >= 3
