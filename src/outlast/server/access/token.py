"""The token that gives access to all agents where there is no `auth`.

It is printed at the start, like Jupyter's. A browser sends it once, in the query of a page, and receives a
cookie in exchange; a program sends it as `Authorization: Bearer`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from urllib.parse import urlencode

from starlette.requests import HTTPConnection

from outlast.server.access.provenance import PORTS, own_authority, own_scheme

VARIABLE = "OUTLAST_TOKEN"
PARAMETER = "token"
LEAST = 16  # characters


def new_token() -> str:
    """Return a random token that is safe in a URL."""
    return secrets.token_urlsafe(24)


class Token:
    """A token that is given, or from the environment, or new."""

    def __init__(self, given: str | None = None) -> None:
        text = given or os.environ.get(VARIABLE) or None
        if text is not None and len(text) < LEAST:
            where = VARIABLE if given is None else "token"
            raise ValueError(
                f"{where} must have at least {LEAST} characters, got {len(text)};"
                " generate one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self.is_new = text is None  # it must be printed
        self.text = text or new_token()
        self._digest = _digest(self.text)
        self._cookie = hashlib.sha256(f"cookie of {self.text}".encode()).hexdigest()

    def link(self, at: str) -> str:
        """Return a URL that contains the token."""
        return f"{at}?{urlencode({PARAMETER: self.text})}"

    def is_sent_by(self, connection: HTTPConnection) -> bool:
        """Return whether a request contains it: in a header, in our cookie, or in the query."""
        scheme, _, bearer = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is(bearer.strip()):
            return True
        cookie = connection.cookies.get(_cookie_name(connection), "")
        return _same(cookie, self._cookie) or self.is_in_query(connection)

    def is_in_query(self, connection: HTTPConnection) -> bool:
        return self._is(connection.query_params.get(PARAMETER, ""))

    def cookie(self, connection: HTTPConnection, path: str) -> str:
        """Return the `Set-Cookie` header that replaces the token for requests below `path`.

        All ports of a machine share cookies, so the port is part of the cookie's name.
        """
        secure = "; Secure" if own_scheme(connection) == "https" else ""
        name = _cookie_name(connection)
        return f"{name}={self._cookie}; Path={path}; HttpOnly; SameSite=Strict{secure}"

    def _is(self, text: str) -> bool:
        return hmac.compare_digest(_digest(text), self._digest)


def _cookie_name(connection: HTTPConnection) -> str:
    where = own_authority(connection.headers)
    port = where.port if where is not None and where.port else PORTS[own_scheme(connection)]
    return f"outlast-{port}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(_digest(one), _digest(other))
