"""HTTP requests of a client: older messages, and large outputs and files."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

from outlast.client.errors import CallFailed, Refused
from outlast.client.transcript import Messages
from outlast.core import json

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

TIMEOUT = 60.0  # seconds without a byte
TRIES = 3  # attempts of a request that the server asks to retry
LONGEST_WAIT = 60  # seconds between attempts, at most
EARLIER = "x-outlast-earlier"
REFERENCE = "outlast-reference"


class Fetcher:
    """Sends GET requests to one agent, with the headers and the query parameters of its socket."""

    def __init__(
        self, base: str, agent_path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> None:
        self._base = re.sub(r"^ws", "http", base)
        self._agent = f"{self._base}{agent_path}"
        self._query = dict(query)
        self._headers = dict(headers)
        self._http: AsyncClient | None = None

    async def messages(self, before: str | None = None) -> tuple[Messages, bool]:
        """Return the newest messages, or those before one, and whether there are older ones."""
        more = {} if before is None else {"before": before}
        response = await self._get(f"{self._agent}/get-messages", **more)
        found = _decoded(response)
        if not isinstance(found, list):
            raise CallFailed(f"GET get-messages must return a list, got {type(found).__name__}")
        return found, response.headers.get(EARLIER) == "true"

    async def content(self, reference: Mapping[str, Any]) -> Any:
        """Fetch the value of a reference: the JSON value of an output, or the bytes of a file."""
        url = reference.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            return _data_of(url)
        response = await self._get(self._address(url))
        return _decoded(response) if reference.get("type") == REFERENCE else response.content

    def _address(self, url: object) -> str:
        """Return the whole URL. Credentials are sent to the agent's server only."""
        if not isinstance(url, str) or not url.startswith("/") or url.startswith("//"):
            raise ValueError(f"url must be a path on the server of the agent, got {url!r}")
        below = urlsplit(self._base).path  # where the server is mounted
        if below and url.startswith(f"{below}/"):
            return f"{self._base.removesuffix(below)}{url}"
        return f"{self._base}{url}"

    async def _get(self, url: str, **more: str) -> Response:
        import httpx2 as httpx

        if self._http is None:
            self._http = httpx.AsyncClient(headers=self._headers, timeout=TIMEOUT)
        query = urlencode({**self._query, **more})
        separator = "&" if "?" in url else "?"
        try:
            for tries in range(1, TRIES + 1):
                response = await self._http.get(f"{url}{separator}{query}" if query else url)
                wait = _asked_to_wait(response)
                if wait is None or tries == TRIES:
                    break
                await asyncio.sleep(wait)
        except httpx.TransportError as error:
            text = f"GET {url} failed: {error or type(error).__name__}. Try again."
            raise CallFailed(text) from error
        if response.status_code in (401, 403):
            raise Refused(f"the server refuses this client: {response.status_code} for GET {url}")
        if response.status_code != 200:
            raise CallFailed(f"GET {url} must return 200, got {response.status_code}")
        return response

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()


def _asked_to_wait(response: Response) -> int | None:
    """Return the seconds after which the server asks for a retry, or None."""
    given = response.headers.get("retry-after", "")
    if response.status_code != 503 or not given.isdecimal() or len(given) > 9:
        return None
    return int(given) if int(given) <= LONGEST_WAIT else None


def _decoded(response: Response) -> Any:
    try:
        return json.decode(response.text)
    except ValueError:
        raise CallFailed(
            f"GET {response.url} must return JSON, got {response.text[:80]!r}"
        ) from None


def _data_of(url: str) -> bytes:
    """Decode a file that is contained in its URL."""
    head, _, content = url.partition(",")
    raw = unquote_to_bytes(content)
    return b64decode(raw) if head.endswith(";base64") else raw
