"""Agents within agents, and a look at every row that a family has: for the tests of sub-agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

from outlast import Agent, FiberContext, Host
from outlast.agent.agent import parts_of
from outlast.host.address import Address, escaped
from outlast.store.operations import BulkStatement, Query
from support import forever, write_alarm

NEVER = 1 << 42  # milliseconds: an alarm that no test lives to see


class Node(Agent):
    """Has sub-agents of its own class, to any depth, and something of everything that is stored."""

    log: ClassVar[list[str]] = []
    starts: ClassVar[list[str]] = []

    async def on_start(self) -> None:
        Node.starts.append(self.name)

    # --- what tests ask of it --------------------------------------------------------------------

    async def put(self, key: str, value: Any = True) -> None:
        await self.storage.put(key, value)

    async def get(self, key: str) -> Any:
        return await self.storage.get(key)

    async def everything(self) -> dict[str, Any]:
        return await self.storage.list()

    async def identity(self) -> int:
        return id(self)

    async def wait(self) -> None:
        await forever()

    async def path(self) -> tuple[tuple[str, str], ...]:
        return self.self_path

    async def set(self, state: Any, config: Any) -> None:
        await self.set_state(state)
        await self.configure(config)

    async def facts(self) -> tuple[Any, Any]:
        return self.state, self.get_config()

    async def break_a_commit(self) -> None:
        """Hand over a batch that no engine can write: the number is too large for its column."""
        await write_alarm(self, "x", 1 << 70)

    # --- work ------------------------------------------------------------------------------------

    async def begin(self, seconds: float = 10, id: str | None = None) -> None:
        """A fiber that notes when it begins, when it ends, and when it is recovered."""
        if id is None:
            await self.run_fiber("work", self.work, seconds)._fiber.accepted
        else:
            await self.start_fiber("work", self.work, seconds, id=id)

    async def work(self, fiber: FiberContext, seconds: float) -> None:
        Node.log.append(f"{self.name} works")
        await asyncio.sleep(seconds)
        await self.storage.put("worked", (await self.storage.get("worked") or 0) + 1)
        Node.log.append(f"{self.name} has worked")

    async def begin_stubborn(self) -> None:
        await self.run_fiber("stubborn", self.stubborn)._fiber.accepted

    async def stubborn(self, fiber: FiberContext) -> None:
        """Ignores that it is cancelled, and writes in every way that there is."""
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        await asyncio.sleep(100)
        for write in (
            lambda: self.storage.put("ghost", True),
            lambda: self.set_state("ghost"),
            lambda: self.schedule(1, self.note, "ghost"),
            lambda: self.start_fiber("ghost", forever),
            lambda: fiber.stash("ghost"),
            lambda: self.sub_agent(Node, "ghost"),
            lambda: self.delete_sub_agent(Node, "kept"),
            self.destroy,
        ):
            try:
                Node.log.append(f"{await write()}")
            except Exception as error:
                Node.log.append(type(error).__name__)

    async def on_fiber_recovered(self, fiber: Any) -> None:
        Node.log.append(f"{self.name} recovers {fiber.name}")
        if fiber.name == "work":
            fiber.resume(self.work)

    async def later(self, seconds: float, note: str = "noted") -> None:
        await self.schedule(seconds, self.note, note)

    async def note(self, text: str) -> None:
        Node.log.append(f"{self.name}: {text}")
        await self.storage.put(text, (await self.storage.get(text) or 0) + 1)

    async def furnish(self) -> None:
        """A row in every table."""
        await self.storage.put("key", "value")
        await self.set("state", "config")
        await self.run_fiber("plain", forever)._fiber.accepted
        await self.start_fiber("managed", forever, id="managed")
        await self.start_fiber("ended", _at_once, id="ended", wait=True)
        await self.start_fiber("scheduler", self._schedule_from_a_fiber, id="scheduler")
        await self.schedule("0 0 1 1 *", self.note, "by cron")
        await self.schedule_every(1 << 28, self.note, "by interval")
        await write_alarm(self, "tea", NEVER)
        await self.sub_agent(Node, "furnishing")

    async def fill(self, table: str, columns: list[tuple[str, str]]) -> None:
        """A row in a table of which nothing is known but its columns and their types."""
        address = parts_of(self).activation.address.text
        values = [f"'{address}'" if kind.upper() == "TEXT" else "1" for _, kind in columns]
        names = ", ".join(f'"{name}"' for name, _ in columns)
        sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)})"
        await parts_of(self).commits.commit([(BulkStatement(f"{table} fill", sql, sql), ())])

    async def _schedule_from_a_fiber(self, fiber: FiberContext) -> None:
        await self.schedule(1 << 28, self.note, "from a fiber")
        await forever()


Node.sub_agents = [Node]


async def _at_once(fiber: FiberContext) -> None: ...


def forget() -> None:
    """Between tests."""
    Node.log, Node.starts = [], []


async def below(stub: Any, *names: str) -> Any:
    """The sub-agent of a sub-agent … under these names."""
    for name in names:
        stub = await stub.sub_agent(Node, name)
    return stub


# --- every row -----------------------------------------------------------------------------------

# Not those of the full-text index, which triggers fill and empty.
_COLUMNS = Query(
    sqlite="""
        SELECT m.name, p.name, p.type FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS p
        WHERE m.type = 'table' AND m.name NOT LIKE 'session_words%' ORDER BY 1, p.cid
    """,
    postgres="""
        SELECT table_name, column_name, data_type FROM information_schema.columns
        WHERE table_schema = current_schema() AND is_generated = 'NEVER' ORDER BY 1, ordinal_position
    """,
)


async def owned_tables(host: Host) -> dict[str, list[tuple[str, str]]]:
    """The tables that hold rows of agents, each with its columns and their types.

    They are found in the database itself, so that none can be forgotten.
    """
    tables: dict[str, list[tuple[str, str]]] = {}
    for table, column, kind in await host.store.fetch(_COLUMNS):
        tables.setdefault(table, []).append((column, kind))
    owned = {table: columns for table, columns in tables.items() if columns[0][0] == "agent"}
    others = {"agents", "meta"}  # an address elsewhere than in the first column: nobody would look
    assert tables.keys() - owned.keys() <= others
    assert len(owned) >= 7
    return owned


async def furnish(host: Host, node: Any) -> None:
    """A row of this agent in every table that there is."""
    await node.furnish()
    text = node._address.text
    rows = await rows_under(host, text)
    for table, columns in (await owned_tables(host)).items():
        if not any(row[0] == text for row in rows.get(table, [])):
            await node.fill(table, columns)


async def rows_under(host: Host, address: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of this agent and of all below it, by table."""
    found = {}
    for table in ("agents", *await owned_tables(host)):
        rows = await host.store.fetch(Query.same(f"SELECT * FROM {table}"))
        mine = [row for row in rows if f"{row[0]}/".startswith(f"{address}/")]
        if mine:
            found[table] = sorted(mine, key=repr)
    return found


async def orphans(host: Host) -> list[str]:
    """The addresses of rows whose agent is not there: unregistered, or below one that is, or rootless."""
    roots = {row[0] for row in await host.store.fetch(Query.same("SELECT root FROM agents"))}
    registered = set(await host.store.fetch(Query.same("SELECT agent, kind, name FROM sub_agents")))
    found = set()
    for table in await owned_tables(host):
        for (text,) in await host.store.fetch(Query.same(f"SELECT DISTINCT agent FROM {table}")):
            at = Address.parse(text)
            is_there = at.root.text in roots
            while at.parent is not None:
                is_there &= (at.parent.text, at.kind, escaped(at.name)) in registered
                at = at.parent
            if not is_there:
                found.add(text)
    return sorted(found)
