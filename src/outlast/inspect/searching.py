"""The search of messages in a store: of one agent, or of the agents that were used last.

The index belongs to the session battery. Agents without it are searched, too: their newest messages are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.host.address import Address
from outlast.inspect import rows
from outlast.inspect.batteries import has_own
from outlast.inspect.values import NotFound
from outlast.store.catalogue import Reader, meta_of
from outlast.store.upgrade import version_of

AGENTS = 200  # that one search of all agents reads
NEEDED = "session"  # the battery that can search


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that matches a query. `marks` has the places of what was found in `text`."""

    agent: str
    id: str
    number: int
    role: str
    turn: str | None
    created_at: int
    score: float
    text: str
    marks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search of several agents has found: the agents that were used last come first."""

    messages: Sequence[FoundMessage]
    searched: int  # agents
    is_complete: bool  # False: there are more agents, or more messages match


async def search(
    reader: Reader, address: Address, query: str, *, limit: int = 20
) -> list[FoundMessage]:
    """Return the messages of one agent that match, on all branches, best first."""
    return await _search(reader, address.text, query, limit, await _has_index(reader))


async def search_all(reader: Reader, query: str, *, limit: int = 20) -> Found:
    """Search the agents with the newest messages, one after the other, until there are enough hits."""
    has_index = await _has_index(reader)
    listed = await reader.fetch(rows.LAST_TO_TALK, AGENTS + 1)
    found: list[FoundMessage] = []
    searched = 0
    for agent, _ in listed[:AGENTS]:
        wanted = limit + 1 - len(found)
        found += await _search(reader, agent, query, wanted, has_index)
        searched += 1
        if len(found) > limit:
            break
    is_complete = len(found) <= limit and searched == len(listed)
    return Found(found[:limit], searched, is_complete)


async def _has_index(reader: Reader) -> bool:
    if not has_own(NEEDED):
        raise NotFound(f"the search needs the battery {NEEDED!r}, which is not installed")
    return bool(version_of(NEEDED, await meta_of(reader)))


async def _search(
    reader: Reader, agent: str, query: str, limit: int, has_index: bool
) -> list[FoundMessage]:
    from outlast.session.search import sql
    from outlast.session.search.search import LANGUAGE, SearchIndex

    state = await reader.fetch(sql.STATE, agent) if has_index else []
    language = _language(state[0][0]) if state else LANGUAGE
    index = SearchIndex(reader, agent, language, has_tables=has_index)
    hits = await index.search(query, limit)
    if not hits:
        return []
    ids = [hit.message_id for hit in hits]
    places = await reader.fetch(rows.places(len(ids)), agent, *ids)
    known = {id: (number, turn) for id, number, turn in places}
    return [
        FoundMessage(
            agent=agent,
            id=hit.message_id,
            number=known[hit.message_id][0],
            role=hit.role,
            turn=known[hit.message_id][1],
            created_at=round(hit.created_at.timestamp() * 1000),
            score=hit.score,
            text=hit.snippet.text,
            marks=hit.snippet.marks,
        )
        for hit in hits
        if hit.message_id in known
    ]


def _language(analyser: str) -> str | None:
    """Return the language of an index from the name of its analyser, such as `english.1`."""
    language = analyser.rpartition(".")[0]
    return None if language == "exact" else language
