"""Access control, as configured by `auth`, `authorize`, `origins`, `insecure` and `token`.

| without `auth` | |
| --- | --- |
| agents and pages | requests from this machine, unless `insecure` |
| the inspector and development features | of these, requests that send the token |

With `auth`, `authorize(principal, None, "inspect")` decides the second row; without `authorize`, access is
denied.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from starlette.requests import HTTPConnection

from outlast.core.hooks import call_hook
from outlast.host.address import Address
from outlast.server.access import provenance
from outlast.server.access.auth import AccessDenied, Auth, Authorize, Check
from outlast.server.access.token import Token

logger = logging.getLogger("outlast.server")

NOT_LOCAL = (
    "This server has no auth, so it accepts requests from its own machine only. Set App(auth=…),"
    " or allow everyone with App(insecure=True) or --insecure."
)
NOT_LOCAL_IN_SHORT = "without auth, localhost only"  # a WebSocket close reason: at most 123 bytes
NO_TOKEN = (
    "A token is required. Open the link that the server printed when it started,"
    " or send the token as Authorization: Bearer …"
)


class AccessPolicy:
    """The access policy of one application."""

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
        self.insecure = insecure  # allow everyone when there is no auth
        self.token = Token(token) if self._auth is None else None
        self._has_warned_of_scheme = False

    @property
    def has_auth(self) -> bool:
        return self._auth is not None

    @property
    def recheck(self) -> float | None:
        """Seconds after which the access of an open connection is checked again."""
        return None if self._auth is None else self._auth.recheck

    # --- origin ----------------------------------------------------------------------------------

    def rejects_remote(self, connection: HTTPConnection) -> bool:
        """Return whether a request must come from this machine and does not."""
        return not (self.has_auth or self.insecure or provenance.is_local(connection))

    def is_foreign(self, connection: HTTPConnection) -> bool:
        """Return whether a browser sent this request for a page of an origin that is not allowed."""
        if not provenance.is_foreign(connection, self.origins):
            return False
        if not self._has_warned_of_scheme and provenance.differs_in_scheme(connection):
            self._has_warned_of_scheme = True
            logger.warning(
                "refused a page of %s, because this server's own origin appears to be %s://%s. If a proxy"
                " terminates TLS, have it send X-Forwarded-Proto, or add the page to App(origins=[…]).",
                connection.headers["origin"],
                provenance.own_scheme(connection),
                connection.headers.get("host"),
            )
        return True

    # --- identity --------------------------------------------------------------------------------

    async def authenticate(self, connection: HTTPConnection) -> Any:
        """Return the principal of a request; `AccessDenied` if `auth` returns none."""
        check = None if self._auth is None else self._auth.check
        principal: Any = True if check is None else await call_hook(check, connection)
        if principal is None or principal is False:
            raise AccessDenied(401)
        return principal

    async def authorize(self, connection: HTTPConnection, address: Address, action: str) -> Any:
        """Return the principal; `AccessDenied` unless it may act on the agent and on all its parents."""
        principal = await self.authenticate(connection)
        if self._authorize is not None:
            for depth in range(1, len(address.path) + 1):
                level = Address(address.path[:depth])
                if not await call_hook(self._authorize, principal, level, action):
                    raise AccessDenied(403)
        return principal

    async def check_operator(self, connection: HTTPConnection) -> None:
        """Raise `AccessDenied` unless the principal may see all agents:

        `authorize` is called with no address.
        """
        if provenance.is_of_another_page(connection.headers):
            raise AccessDenied(403, "Only the server's own page may send this request.")
        principal = await self.authenticate(connection)
        if self.token is not None and not self.token.is_sent_by(connection):
            raise AccessDenied(401, NO_TOKEN)
        if self._authorize is not None:
            allowed = bool(await call_hook(self._authorize, principal, None, "inspect"))
        else:  # access to chat does not imply access to all conversations
            allowed = self._auth is None
        if not allowed:
            raise AccessDenied(403)
