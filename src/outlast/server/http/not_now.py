"""What clients are told while the store takes no writes: to try again later."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from outlast.core.errors import StoreFailed, StoreFull, StoreReadOnly, StoreUnavailable

NOT_STORED = (StoreFull, StoreReadOnly, StoreUnavailable, StoreFailed)
RETRY_AFTER = 5  # seconds
TEXT = "The server cannot store anything at the moment. Try again later."


def not_now() -> Response:
    """The answer to a request that needed the store."""
    return JSONResponse({"error": TEXT}, 503, {"retry-after": str(RETRY_AFTER)})
