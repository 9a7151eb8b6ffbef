"""The same search without an index: reads messages, newest first, and compares their words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outlast.session.search import sql
from outlast.session.search.rank import Candidate, Matcher
from outlast.session.search.slices import slices
from outlast.session.search.words import Analyser
from outlast.session.search.writes import text_of
from outlast.store.base import Row
from outlast.store.catalogue import Reader

MAX_MESSAGES = 2_000  # that one search reads
MAX_FOUND = 100  # slices that are ranked
PAGE_MESSAGES = 100
PAGE_CHARACTERS = 1_000_000


async def scan(
    reader: Reader,
    address: str,
    matcher: Matcher,
    analyser: Analyser,
    below: int = sql.NOTHING,
    most: int = MAX_MESSAGES,
) -> list[Candidate]:
    """Return the newest slices that match, of the newest messages with a number less than `below`."""
    found: list[Candidate] = []
    while most > 0 and len(found) < MAX_FOUND:
        listed = await reader.fetch(sql.PAGE, address, below, min(most, PAGE_MESSAGES))
        if not listed:
            break
        page = within(listed, PAGE_CHARACTERS)
        below, most = page[-1][0], most - len(page)
        rows = await reader.fetch(sql.messages(len(page)), address, *(id for _, id, _ in page))
        found += await asyncio.to_thread(_matching, rows, matcher, analyser)
    return found[:MAX_FOUND]


def within(listed: Sequence[Row], most: int) -> list[Row]:
    """Return the first rows of (number, id, size) with a total size of at most `most`, but at least one."""
    total = 0
    for count, (_, _, size) in enumerate(listed):
        total += size
        if count and total > most:
            return list(listed[:count])
    return list(listed)


def _matching(rows: Sequence[Row], matcher: Matcher, analyser: Analyser) -> list[Candidate]:
    found: list[Candidate] = []
    for id, number, _, body, _ in sorted(rows, key=lambda row: -row[1]):
        for at, each in reversed(list(enumerate(slices(text_of(body), analyser)))):
            place = (each.start, each.length, each.words, each.stems)
            candidate = Candidate(id, at, number, *place)
            if matcher.score(candidate) is not None:
                found.append(candidate)
    return found
