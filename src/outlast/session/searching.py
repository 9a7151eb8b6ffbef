"""The search of a conversation for the model, and for clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from outlast.chat.tools.declare import tool
from outlast.session.search.search import MAX_HITS, SearchHit

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

FOR_MODEL = 10  # hits
MAX_QUERY = 10_000  # characters
_LIMIT = re.compile("[0-9]{1,9}")
NOTHING = "No earlier message matches."


class Searching(Protocol):
    async def search(self, query: str, limit: int) -> list[SearchHit]: ...


def search_tool(session: Searching) -> Any:
    """Return the tool with which the model finds earlier messages."""

    @tool(effect="read")
    async def session_search(query: str) -> str:
        """Search the earlier messages of this conversation, also those that are only summarised now.

        Args:
            query: Words that must all occur; "quoted words" one behind the other; pre* as a prefix.
        """
        hits = await session.search(query[:MAX_QUERY], FOR_MODEL)
        return "\n\n".join(map(_told, hits)) or NOTHING

    return session_search


def _told(hit: SearchHit) -> str:
    return f"[{hit.role}, {hit.created_at:%Y-%m-%d %H:%M}] {hit.snippet.marked()}"


async def search_response(session: Searching, request: Request) -> Response | None:
    """Answer `GET …/search?q=words&limit=20` with JSON."""
    from starlette.responses import JSONResponse

    if request.method not in ("GET", "HEAD"):
        return None
    query, limit = request.query_params.get("q", ""), request.query_params.get("limit", "20")
    if len(query) > MAX_QUERY:
        return _refused(f"q must have at most {MAX_QUERY:,} characters, got {len(query):,}")
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= MAX_HITS:
        return _refused(f"limit must be a number from 1 to {MAX_HITS}, got {limit[:100]!r}")
    return JSONResponse({"hits": as_json(await session.search(query, int(limit)))})


def _refused(error: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": error}, 400)


def as_json(hits: Sequence[SearchHit]) -> list[dict[str, Any]]:
    """Return hits for clients."""
    return [
        {
            "messageId": hit.message_id,
            "role": hit.role,
            "createdAt": hit.created_at.isoformat(),
            "score": hit.score,
            "snippet": asdict(hit.snippet),
        }
        for hit in hits
    ]
