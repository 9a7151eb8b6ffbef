"""PostgreSQL behind a real PgBouncer: what works, and what is told of what does not."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from rows import PATIENCE, fence, opened, other_connection, put, stored

from outlast.core.errors import StoreURLError
from outlast.store.url import open_store

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
OURS = "search_path, enable_seqscan, enable_hashjoin, enable_mergejoin, jit, lock_timeout"
ALIVE = "tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count"

pytestmark = pytest.mark.skipif(
    PGBOUNCER is None, reason="NOT TESTED: there is no pgbouncer here; script/pgbouncer installs it"
)


@asynccontextmanager
async def bouncer(
    postgres_url: str, folder: Path, mode: str, ignored: str = f"{OURS}, {ALIVE}"
) -> AsyncIterator[str]:
    """The URL of the same store through a PgBouncer."""
    assert PGBOUNCER is not None
    query = parse_qs(urlsplit(postgres_url).query)
    behind, schema = query["host"][0], query["schema"][0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings, users = folder / "pgbouncer.ini", folder / "users.txt"
    users.write_text(f'"postgres" ""\n"{schema}" ""\n')
    settings.write_text(f"""
[databases]
postgres = host={behind} dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
ignore_startup_parameters = {ignored}
""")
    owner = pwd.getpwuid(os.stat(behind).st_uid).pw_name
    for each in (folder, *folder.parents):  # it does not run as root, and has to read its settings
        if each.stat().st_uid == os.getuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o055)
    process = await asyncio.create_subprocess_exec(
        PGBOUNCER,
        *(["-u", owner] if os.getuid() == 0 else []),
        str(settings),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while b"process up" not in (line := await process.stderr.readline()):
                assert line, "PgBouncer did not start"
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&schema={schema}"
    finally:
        process.kill()
        await process.wait()


async def schema_of_the_role(postgres_url: str) -> str:
    """A user whose sessions are in the schema of the test, whatever the connection asks for."""
    name = urlsplit(postgres_url).query.rpartition("schema=")[2]
    async with other_connection(postgres_url) as other:
        await other.execute(f"""
            CREATE ROLE {name} LOGIN SUPERUSER;
            ALTER ROLE {name} SET search_path = {name}
        """)
    return name


async def test_settings_that_a_pooler_refuses_are_told(postgres_url: str, tmp_path: Path) -> None:
    async with bouncer(postgres_url, tmp_path, "session", "extra_float_digits") as url:
        with pytest.raises(StoreURLError, match="a pooler rejects the settings of the session"):
            await open_store(url)


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_schema_that_a_pooler_ignores_is_told(
    postgres_url: str, tmp_path: Path, mode: str
) -> None:
    async with bouncer(postgres_url, tmp_path, mode) as url:
        with pytest.raises(StoreURLError, match="must be in the schema"):
            await open_store(url)


async def test_a_pooler_by_session_is_as_good_as_the_server(
    postgres_url: str, tmp_path: Path
) -> None:
    name = await schema_of_the_role(postgres_url)
    async with bouncer(postgres_url, tmp_path, "session") as url:
        async with opened(url.replace("//postgres@", f"//{name}@")) as store:
            mine = fence()
            for n in range(3):
                assert await store.commit(mine, [put("A/x", str(n))]) == (1,)
                await asyncio.gather(*(stored(store) for _ in range(4)))
            assert await stored(store) == {"0": "v", "1": "v", "2": "v"}


async def test_a_pooler_by_transaction_is_refused_with_the_reason(
    postgres_url: str, tmp_path: Path
) -> None:
    name = await schema_of_the_role(postgres_url)
    async with bouncer(postgres_url, tmp_path, "transaction") as url:
        for _ in range(3):  # also once it has server connections to choose from
            with pytest.raises(StoreURLError, match="gives each transaction another session"):
                await open_store(url.replace("//postgres@", f"//{name}@"))
