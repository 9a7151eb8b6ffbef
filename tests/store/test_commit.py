"""What a commit is: whole, in order, fenced. On both engines."""

from __future__ import annotations

import asyncio

import pytest

from outlast.core.errors import OwnershipLost
from outlast.store import fencing
from outlast.store.operations import Fence
from outlast.store.url import open_store


async def test_a_stale_commit_raises_and_changes_nothing(store_url: str) -> None:
    store = await open_store(store_url)
    first = Fence.after("A/x", "first", None)
    await store.commit(first, [])
    second = Fence.after("A/x", "second", (1, "first", 1))
    await store.commit(second, [])
    with pytest.raises(OwnershipLost, match="A/x: epoch 1"):
        await store.commit(first, [])
    assert await store.fetch(fencing.READ, "A/x") == [(2, "second", 2)]
    await store.close()
    await asyncio.sleep(0)
