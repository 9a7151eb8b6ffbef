"""The response while the store accepts no writes: retry later."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from outlast.core.errors import StoreFailed, StoreFull, StoreReadOnly, StoreUnavailable

NOT_STORED = (StoreFull, StoreReadOnly, StoreUnavailable, StoreFailed)
RETRY_AFTER = 5  # seconds
TEXT = "The server cannot store anything right now. Try again later."


def unavailable() -> Response:
    """Return the response to a request that needed the store."""
    return JSONResponse({"error": TEXT}, 503, {"retry-after": str(RETRY_AFTER)})
