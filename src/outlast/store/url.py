"""Opening a store by its URL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from outlast.core.errors import StoreURLError
from outlast.store.base import Store, StoreOptions
from outlast.store.password import without_password
from outlast.store.schema import Schema, checked

if TYPE_CHECKING:
    from outlast.store.sqlite.engine import SqliteOptions

DEFAULT = "sqlite:///.outlast/store.db"


async def open_store(
    url: str | None = None,
    options: StoreOptions | None = None,
    *,
    schemas: Iterable[Schema] = (),
) -> Store:
    """Open the store at `url`, creating or migrating it as needed.

    `sqlite:///path` is relative to the working directory, `sqlite:////path` absolute;
    `?synchronous=normal` omits the fsync of each commit (safe against a killed process, not against a
    power cut), `off` omits every fsync (for tests). `postgresql://user@host/database` accepts the
    parameters of libpq, and `?schema=name` (default `outlast`). Without a URL: `./.outlast/store.db`.
    `schemas` are those of batteries; a `Host` passes the ones that its agents need.
    """
    options = options or StoreOptions()
    known = checked(schemas)
    url = url or DEFAULT
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from outlast.store.sqlite.engine import open_sqlite

        return open_sqlite(_sqlite(url), options, known)
    if scheme in ("postgresql", "postgres"):
        from outlast.store.postgres.engine import open_postgres

        return await open_postgres(url, options, known)
    raise _no_store(url)


def file_of(url: str) -> Path | None:
    """Return the real path of a SQLite URL's file; None for a PostgreSQL URL.

    ```python
    from outlast.store.url import file_of
    assert file_of("sqlite:////srv/chat/store.db").as_posix() == "/srv/chat/store.db"
    assert file_of("postgresql://db/chat") is None
    ```
    """
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        return Path(os.path.realpath(_sqlite(url).path))
    if scheme in ("postgresql", "postgres"):
        return None
    raise _no_store(url)


def identity_of(url: str | None) -> str:
    """Return the same string for every URL of one store: a path, or a URL without secrets."""
    url = url or DEFAULT
    path = file_of(url)
    if path is not None:
        return str(path)
    from outlast.store.postgres import engine as postgres

    return postgres.identity_of(*postgres.parse(url))


def _no_store(url: str) -> StoreURLError:
    return StoreURLError(
        f"{without_password(url)!r} is not a store URL. Use sqlite:///path/to/file.db or"
        f" postgresql://host/database."
    )


def _sqlite(url: str) -> SqliteOptions:
    from outlast.store.sqlite.engine import SqliteOptions

    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not Path(path[1:]).name:
        raise StoreURLError(
            f"{url!r}: write sqlite:///file.db (relative) or sqlite:////folder/file.db (absolute)"
        )
    if parts.fragment or "\0" in path:
        raise StoreURLError(f"{url!r} must not contain # or NUL; write # as %23")
    path = path[1:]
    if path.endswith("/"):
        raise StoreURLError(f"{url!r} must name a file, got a folder: write {url}store.db")
    if path == ":memory:":
        raise StoreURLError("the store must be a file, got :memory:; use sqlite:///file.db")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous = settings.pop("synchronous", "full").lower()
    if settings:
        raise StoreURLError(f"{url!r}: unknown setting {next(iter(settings))!r}; use synchronous")
    if synchronous not in ("full", "normal", "off"):
        raise StoreURLError(
            f"{url!r}: synchronous must be full, normal or off, got {synchronous!r}"
        )
    return SqliteOptions(Path(path), synchronous)  # type: ignore[arg-type]
