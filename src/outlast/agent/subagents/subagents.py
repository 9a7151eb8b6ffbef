"""Sub-agents: agents with rows of their own, under the address and the fence of their root.

A parent registers its sub-agents in a table. An unregistered agent cannot be activated, so that a stub of a
deleted sub-agent does not revive it. Removing an agent ends it and all below it, blocks their activation, and
deletes all their rows in one commit: a crash leaves all or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from outlast.agent.events import SubAgentAborted, SubAgentCreated, SubAgentDeleted
from outlast.agent.part import Part, Parts
from outlast.core.clock import to_datetime
from outlast.core.errors import AgentAborted, AgentDestroyed, UnknownAgent
from outlast.host import events as host_events
from outlast.host.address import Address, escaped, unescaped
from outlast.host.life.activation import Activation
from outlast.store.catalogue import owned_tables
from outlast.store.operations import BulkStatement, Operation, Outcome, Query, Statement

A = TypeVar("A")

_REGISTER = Statement.same(
    "sub_agents register",
    "agent text, kind text, name text, number bigint, created_at bigint",
    """
        INSERT INTO sub_agents (agent, kind, name, number, created_at)
        VALUES (:agent, :kind, :name, :number, :created_at)
        ON CONFLICT DO NOTHING
    """,
    key=3,
)
# For a sub-agent that registers itself: its parent, which assigns numbers, may not be in memory.
_REGISTER_LATE = Statement.same(
    "sub_agents register late",
    "agent text, kind text, name text, created_at bigint",
    """
        INSERT INTO sub_agents (agent, kind, name, created_at, number)
        VALUES (:agent, :kind, :name, :created_at,
            coalesce((SELECT max(number) FROM sub_agents s WHERE s.agent = :agent), 0) + 1)
        ON CONFLICT DO NOTHING
    """,
    key=3,
)
_UNREGISTER = Statement.same(
    "sub_agents unregister",
    "agent text, kind text, name text",
    """
        DELETE FROM sub_agents
        WHERE sub_agents.agent = :agent AND sub_agents.kind = :kind AND sub_agents.name = :name
    """,
    key=3,
)
_IS_REGISTERED = Query.same("SELECT 1 FROM sub_agents WHERE agent = ? AND kind = ? AND name = ?")
_LAST_NUMBER = Query.same(
    "SELECT number FROM sub_agents WHERE agent = ? ORDER BY number DESC LIMIT 1"
)
_ALL = Query.same(
    "SELECT kind, name, created_at FROM sub_agents WHERE agent = ? ORDER BY number, created_at",
    bulk=True,
)


@dataclass(frozen=True, slots=True)
class SubAgent:
    """The registration of a sub-agent."""

    class_name: str
    name: str
    created_at: datetime


class SubAgents(Part):
    """The sub-agents of one agent."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._address = parts.activation.address
        self._last_number = 0
        self._numbering = asyncio.Lock()

    async def get(self, agent_class: type[A], name: str) -> A:
        """Return a stub of a sub-agent, which is registered if it is new."""
        address = self._child(agent_class, name)
        stub = self.activation.neighbours.stub(agent_class, address)
        if not await self._is_registered(address):
            number = await self._next_number()
            now = self.activation.clock.now()
            outcome = self.commits.submit([(_REGISTER, (*_key(address), number, now))])
            outcome.add_done_callback(lambda outcome: self._registered(address, outcome))
            if self.commits.current() is None:  # otherwise the end of the block makes it durable
                await outcome
        return stub

    def _registered(self, address: Address, outcome: asyncio.Future[tuple[int, ...]]) -> None:
        if outcome.exception() is None and outcome.result()[:1] != (0,):  # it was new
            self.activation.events.emit(SubAgentCreated, self._address.text, child=address.text)

    def parent(self, agent_class: type[A]) -> A:
        parent = self._address.parent
        if parent is None:
            raise UnknownAgent(f"{self._address} is not a sub-agent, so it has no parent")
        if parent.kind != agent_class.__name__:
            raise UnknownAgent(
                f"the parent of {self._address} is a {parent.kind}, not a {agent_class.__name__}"
            )
        return self.activation.neighbours.stub(agent_class, parent)

    async def has(self, agent_class: type[Any], name: str) -> bool:
        return await self._is_registered(self._child(agent_class, name))

    async def all(self, agent_class: type[Any] | None) -> list[SubAgent]:
        found = await self.activation.store.fetch(_ALL, self._address.text)
        return [
            SubAgent(kind, unescaped(segment), to_datetime(created_at))
            for kind, segment, created_at in found
            if agent_class is None or kind == agent_class.__name__
        ]

    def abort(self, agent_class: type[Any], name: str, reason: str) -> bool:
        address = self._child(agent_class, name)
        aborted = AgentAborted(f"{address} was aborted: {reason}")
        stopped = self.activation.neighbours.abort(address, aborted)
        if stopped:
            self.activation.events.emit(SubAgentAborted, self._address.text, child=address.text)
        return stopped

    async def delete(self, agent_class: type[Any], name: str) -> bool:
        address = self._child(agent_class, name)
        self._no_block("delete_sub_agent")
        return await self._is_registered(address) and await self._remove(address)

    async def destroy(self) -> None:
        """Remove the agent itself; for a sub-agent, the same as its parent's `delete_sub_agent`."""
        self._no_block("destroy")
        if not isinstance(self.activation.ended, AgentDestroyed):  # destroyed by an earlier call
            await self._remove(self._address)

    async def load(self) -> None:
        """Refuse to activate an agent that is not registered.

        If a call may create it, its first commit registers it, and its unregistered ancestors.
        """
        missing = await self.unregistered()
        if not missing:
            self.activation.making = None
        elif not self.activation.may_be_made:
            raise _not_created(missing[0])
        else:
            self.activation.making = _LateRegistration(self, self.activation, missing)

    async def unregistered(self) -> list[Address]:
        """Return this agent and its ancestors, as far as they are not registered."""
        missing = []
        at: Address = self._address
        while at.parent is not None:
            if not await self._is_registered(at):
                missing.append(at)
            at = at.parent
        return missing

    async def _remove(self, address: Address) -> bool:
        """Remove an agent and all below it. False if another call removed it first."""
        activation, parent = self.activation, address.parent
        reason = AgentDestroyed(f"{address} was destroyed")
        async with activation.neighbours.removing(address, reason, by=activation) as removal:
            tables = await owned_tables(activation.store)
            touched = await removal.commit(deletion(address, tables), with_root=parent is None)
        if parent is not None and not touched[-1]:  # it was no longer registered
            return False
        activation.events.emit(host_events.AgentDestroyed, address.text)
        if parent is not None:
            activation.events.emit(SubAgentDeleted, parent.text, child=address.text)
        return True

    def _child(self, agent_class: type[Any], name: str) -> Address:
        return self._address.child(getattr(agent_class, "__name__", str(agent_class)), name)

    async def _is_registered(self, address: Address) -> bool:
        return bool(await self.activation.store.fetch(_IS_REGISTERED, *_key(address)))

    async def _next_number(self) -> int:
        async with self._numbering:  # a sub-agent may have registered itself since the last call
            found = await self.activation.store.fetch(_LAST_NUMBER, self._address.text)
            self._last_number = max(self._last_number, found[0][0] if found else 0) + 1
            return self._last_number

    def _no_block(self, what: str) -> None:
        if self.commits.current() is not None:
            raise RuntimeError(
                f"{what}() must not be called inside a commit() block, because it is a commit of its own;"
                f" call it after the block"
            )


class _LateRegistration:
    """The registration of a sub-agent that is called before its parent created it, in its first commit."""

    def __init__(
        self, sub_agents: SubAgents, activation: Activation, missing: list[Address]
    ) -> None:
        self._sub_agents = sub_agents
        self.activation = activation
        self._missing = missing

    def operations(self) -> list[Operation]:
        now = self.activation.clock.now()
        return [(_REGISTER_LATE, (*_key(each), now)) for each in reversed(self._missing)]

    def written(self, outcome: Outcome) -> None:
        if outcome.exception() is not None or self.activation.making is not self:
            return
        self.activation.making = None
        for address, touched in zip(self._missing, reversed(outcome.result()), strict=False):
            if touched and address.parent is not None:
                event = SubAgentCreated
                self.activation.events.emit(event, address.parent.text, child=address.text)

    async def check(self) -> None:
        missing = await self._sub_agents.unregistered()
        if missing:
            raise _not_created(missing[0])
        self.activation.making = None


def _not_created(address: Address) -> AgentDestroyed:
    return AgentDestroyed(
        f"{address} was deleted, or never created; its parent's sub_agent() creates a new one"
    )


def deletion(address: Address, tables: Mapping[str, str]) -> list[Operation]:
    """Return the operations that delete all rows of an agent and of all below it.

    `tables` maps each table with rows of agents to the column that holds the address.
    """
    text = address.text
    operations: list[Operation] = [
        (_deletion(table, key), (text, f"{text}/", f"{text}0")) for table, key in tables.items()
    ]
    if address.parent is not None:
        operations.append((_UNREGISTER, _key(address)))
    return operations


def _deletion(table: str, key: str) -> BulkStatement:
    def sql(collation: str) -> str:
        at = f'"{key}" COLLATE {collation}'
        # "/" separates the segments of an address, and "0" is the character after it.
        return f'DELETE FROM {table} WHERE "{key}" = ? OR ({at} > ? AND {at} < ?)'

    return BulkStatement(f"{table} delete", sql("BINARY"), Query.same(sql('"C"')).postgres)


def _key(address: Address) -> tuple[str, str, str]:
    """Return the primary key of a registration. The name is escaped: stores do not accept every string."""
    assert address.parent is not None
    return address.parent.text, address.kind, escaped(address.name)
