"""Finding the agents with unfinished work when a host starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

from outlast.core.errors import OutlastError, StoreClosed, StoreError
from outlast.host.address import Address
from outlast.host.hosted import Hosted
from outlast.store.base import Row, Store
from outlast.store.operations import Query

logger = logging.getLogger("outlast.host")

PAGE = 200
FIRST_RETRY = 1.0  # seconds
LAST_RETRY = 300.0


async def unfinished(store: Store, classes: Mapping[str, type[Hosted]]) -> AsyncIterator[Address]:
    """Yield the addresses of agents with unfinished work, of the classes that this host runs."""
    strangers: set[str] = set()
    for query in dict.fromkeys(
        query for kind in classes.values() for query in kind._unfinished_work
    ):
        after = ""
        while rows := await _page(store, query, after):
            for (text,) in rows:
                after = text
                try:
                    address = Address.parse(text)
                except OutlastError as error:
                    logger.error("ignoring unfinished work of %r: %s", text, error)
                    continue
                kind = address.kind
                if kind in classes:
                    yield address
                elif kind not in strangers:
                    strangers.add(kind)
                    logger.warning(
                        "%s has unfinished work, but this host does not run that class", kind
                    )


async def _page(store: Store, query: Query, after: str) -> list[Row]:
    """Return one page; retry while the store is unreadable."""
    delay = FIRST_RETRY
    while True:
        try:
            return await store.fetch(query, after, PAGE)
        except StoreClosed:
            raise
        except StoreError as error:
            logger.error("cannot query unfinished work, will retry: %s", error)
        await asyncio.sleep(delay)
        delay = min(LAST_RETRY, delay * 2)
