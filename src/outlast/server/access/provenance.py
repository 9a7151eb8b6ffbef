"""Where a request comes from: this machine, a proxy, or a page of another origin. Pure.

A page cannot choose the headers that its browser sends: `Host` is the name under which the page reaches the
server (even if an attacker made that name resolve to this machine), `Origin` is the page's own, and no page
can add the headers that proxies add to a handshake. Programs can send any header, so this does not keep
them out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

# Headers that proxies, tunnels and content delivery networks add to a forwarded request.
FORWARDING = frozenset(
    {
        "cdn-loop",
        "fastly-client-ip",
        "fly-client-ip",
        "forwarded",
        "forwarded-for",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-proxyuser-ip",
        "x-real-ip",
        "x-remote-addr",
        "x-remote-ip",
    }
)
FORWARDING_PREFIXES = (
    "cf-",
    "tailscale-",
    "x-appengine-",
    "x-azure-",
    "x-envoy-",
    "x-forwarded-",
    "x-original-",
    "x-vercel-",
)
PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(.+)", re.ASCII)
_FORWARDED_PROTO = re.compile(r"(?:^|[;,])\s*proto=\"?([a-z]+)", re.ASCII | re.IGNORECASE)


class Authority(NamedTuple):
    """The contents of a `Host` header."""

    name: str  # in lower case
    port: int | None


class Origin(NamedTuple):
    """The origin of a page."""

    scheme: str
    name: str
    port: int


def authority(text: str) -> Authority | None:
    """Parse a `Host` header; None if it is invalid."""
    found = _AUTHORITY.fullmatch(text.lower())
    if found is None:
        return None
    port = int(found[2]) if found[2] else None
    return Authority(found[1], port) if port is None or port < 65536 else None


def own_authority(headers: Headers) -> Authority | None:
    """Return the authority that a request is addressed to; None if there are two."""
    given = headers.getlist("host")
    return authority(given[0]) if len(given) == 1 else None


def is_loopback(address: str) -> bool:
    """Return whether an IP address, with or without brackets, is a loopback address."""
    try:
        parsed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool(mapped.is_loopback if mapped is not None else parsed.is_loopback)


def names_this_machine(name: str) -> bool:
    """Return whether a name resolves to this machine everywhere.

    ```python
    from outlast.server.access.provenance import names_this_machine
    assert all(map(names_this_machine, ["localhost", "localhost.", "a.localhost", "127.0.0.1", "[::1]"]))
    assert not any(map(names_this_machine, ["localhost.example", "127.0.0.1.example", "0.0.0.0"]))
    ```
    """
    plain = name.lower().removesuffix(".")
    return plain == "localhost" or plain.endswith(".localhost") or is_loopback(name)


def is_address(name: str) -> bool:
    """Return whether a name is an IP address or localhost, which an attacker cannot redirect."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return names_this_machine(name)
    return True


def is_forwarded(headers: Headers) -> bool:
    """Return whether a request has the headers of a proxy."""
    return any(name in FORWARDING or name.startswith(FORWARDING_PREFIXES) for name in headers)


def is_local(connection: HTTPConnection) -> bool:
    """Return whether a request comes from this machine, is addressed to it, and passed no proxy."""
    meant_for = own_authority(connection.headers)
    client = connection.client
    return (
        meant_for is not None
        and names_this_machine(meant_for.name)
        and client is not None
        and is_loopback(client.host)
        and not is_forwarded(connection.headers)
    )


def own_scheme(connection: HTTPConnection) -> str:
    """Return `http` or `https` as the client sees it: a proxy that terminates TLS sends a header.

    A client can claim anything here. That suffices for comparing origins, which protects browsers: they do
    not let a page add this header, except where the server allowed its origin before.
    """
    headers = connection.headers
    claimed = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    if not claimed and (found := _FORWARDED_PROTO.search(headers.get("forwarded", ""))):
        claimed = found[1].lower()
    schemes = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
    return schemes.get(claimed) or schemes.get(connection.scope.get("scheme", ""), "http")


def origin(text: str) -> Origin | None:
    """Parse an `Origin` header; None if it is invalid or opaque."""
    found = _ORIGIN.fullmatch(text)
    where = authority(found[2]) if found else None
    if found is None or where is None:
        return None
    return Origin(found[1], where.name, where.port or PORTS[found[1]])


def own_origin(connection: HTTPConnection) -> Origin | None:
    """Return the origin of the pages that this server serves to this client."""
    where, scheme = own_authority(connection.headers), own_scheme(connection)
    return None if where is None else Origin(scheme, where.name, where.port or PORTS[scheme])


def is_foreign(connection: HTTPConnection, allowed: Collection[str] = ()) -> bool:
    """Return whether a page of another origin sent this request: scheme, name and port count."""
    given = connection.headers.getlist("origin")
    if not given:
        return False
    if len(given) > 1:
        return True
    if "*" in allowed or given[0] in allowed:
        return False
    page = origin(given[0])
    return page is None or page != own_origin(connection)


def differs_in_scheme(connection: HTTPConnection) -> bool:
    """Return whether a page is foreign by its scheme only: a proxy does not send which scheme it has."""
    page = origin(connection.headers.get("origin", ""))
    where = own_authority(connection.headers)
    if page is None or where is None:
        return False
    port = where.port or PORTS[page.scheme]
    return page.scheme != own_scheme(connection) and page[1:] == (where.name, port)


def is_of_another_page(headers: Headers) -> bool:
    """Return whether a browser reports that another page than the server's own sent the request."""
    return any(
        each not in ("same-origin", "none") for each in headers.getlist("sec-fetch-site") if each
    )
