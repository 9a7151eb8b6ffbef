"""Who is let in, by what the application was given: `auth`, `authorize`, `origins`, `insecure`, `token`.

| without `auth` | |
| --- | --- |
| agents and pages | requests of this machine, unless `insecure` |
| the inspector and what is for development | those of them that bring the token |

With `auth`, `authorize(principal, None, "inspect")` decides about the second row; without `authorize`, nobody
passes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.requests import HTTPConnection

from outlast.host.address import Address
from outlast.server.access import provenance
from outlast.server.access.auth import Auth, Authorize, Check, NotLetIn
from outlast.server.access.token import Token

logger = logging.getLogger("outlast.server")

NOT_LOCAL = (
    "This server has no auth, so it answers requests of its own machine only: set App(auth=…),"
    " or allow everybody with App(insecure=True) or --insecure."
)
NOT_LOCAL_IN_SHORT = "without auth, localhost only"  # a reason of a close: at most 123 bytes
NO_TOKEN = (
    "This needs the token that was printed when the server started: open the link that was printed with it,"
    " or send it as Authorization: Bearer …"
)


class Doors:
    """Of one application."""

    def __init__(
        self,
        auth: Check | Auth | None,
        authorize: Authorize | None,
        origins: Collection[str],
        *,
        insecure: bool = False,
        token: str | None = None,
    ) -> None:
        self._auth = auth if auth is None or isinstance(auth, Auth) else Auth(auth)
        self._authorize = authorize
        self.origins = frozenset([origins] if isinstance(origins, str) else origins)
        self.insecure = insecure  # without auth, everybody is let in
        self.token = Token(token) if self._auth is None else None
        self._has_told_of_scheme = False

    @property
    def has_auth(self) -> bool:
        return self._auth is not None

    @property
    def recheck(self) -> float | None:
        """Seconds after which an open connection is asked about again."""
        return None if self._auth is None else self._auth.recheck

    # --- where from ------------------------------------------------------------------------------

    def is_closed_to(self, connection: HTTPConnection) -> bool:
        """Whether a request comes from where nobody is answered."""
        return not (self.has_auth or self.insecure or provenance.is_local(connection))

    def is_foreign(self, connection: HTTPConnection) -> bool:
        """Whether a browser asks for a page of somebody else, which `origins` does not name."""
        if not provenance.is_foreign(connection, self.origins):
            return False
        if not self._has_told_of_scheme and provenance.differs_in_scheme(connection):
            self._has_told_of_scheme = True
            logger.warning(
                "a page of %s was refused, because this server believes to be %s://%s. If a proxy ends TLS,"
                " let it send X-Forwarded-Proto, or name the page in App(origins=[…]).",
                connection.headers["origin"],
                provenance.own_scheme(connection),
                connection.headers.get("host"),
            )
        return True

    # --- who -------------------------------------------------------------------------------------

    async def known(self, connection: HTTPConnection) -> Any:
        """Who asks; `NotLetIn` if `auth` does not know."""
        principal: Any = True if self._auth is None else await told(self._auth.check, connection)
        if principal is None or principal is False:
            raise NotLetIn(401)
        return principal

    async def principal(self, connection: HTTPConnection, address: Address, action: str) -> Any:
        """Who asks; `NotLetIn` if they may not do this with the agent, and with those it belongs to."""
        principal = await self.known(connection)
        if self._authorize is not None:
            for depth in range(1, len(address.path) + 1):
                level = Address(address.path[:depth])
                if not await told(self._authorize, principal, level, action):
                    raise NotLetIn(403)
        return principal

    async def check_operator(self, connection: HTTPConnection) -> None:
        """`NotLetIn` unless they may see all agents: `authorize` is asked with no address."""
        if provenance.is_of_another_page(connection.headers):
            raise NotLetIn(403, "This is for the page's own requests.")
        principal = await self.known(connection)
        if self.token is not None and not self.token.is_brought_by(connection):
            raise NotLetIn(401, NO_TOKEN)
        if self._authorize is not None:
            allowed = bool(await told(self._authorize, principal, None, "inspect"))
        else:  # somebody who may chat may not look at everybody's chats
            allowed = self._auth is None
        if not allowed:
            raise NotLetIn(403)


async def told(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the application says, plain or async."""
    answer: Any | Awaitable[Any] = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer
