"""The connections of one agent, and the frames that all of them receive."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from outlast.agent.agent import parts_of
from outlast.agent.gateway import greetings
from outlast.agent.notices import Broadcast, StateChanged
from outlast.agent.state.state import State
from outlast.chat.gateway import chat_of, is_chat
from outlast.host.address import Address
from outlast.host.notices import Lost, Notice
from outlast.server.limits import Limits
from outlast.server.room.chat_room import ChatRoom
from outlast.server.room.client_view import ClientView
from outlast.server.routing import kebab
from outlast.server.socket import frames
from outlast.server.socket.connection import TRY_AGAIN, Connection
from outlast.server.socket.transport import Frame


class Room:
    """All connections to one agent. A room outlives the agent's time in memory."""

    def __init__(self, address: Address, base: str, limits: Limits) -> None:
        self.address = address
        self.limits = limits
        self.view = ClientView(base, limits)
        self.connections: list[Connection] = []
        self.has_ignored_messages = False  # logged that a client's messages were ignored
        self.visits = 0  # connections that entered, including those that receive nothing yet
        self.chat = ChatRoom(self)

    def join(self, connection: Connection, agent: Any) -> None:
        """Send a new connection the current situation, without an await, so that it misses nothing."""
        state = parts_of(agent)[State].text()
        kind, follows = kebab(self.address.kind), state is not None
        limits = self.limits.shown()
        connection.send(frames.identity(self.address.name, kind, limits, state_follows=follows))
        if state is not None:
            connection.send(frames.state(state))
        connection.send(frames.mcp_servers())
        for text in greetings(agent):
            connection.send(text)
        self.connections.append(connection)
        if is_chat(agent):
            self.chat.join(connection, chat_of(agent))

    def leave(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self.chat.leave(connection)

    def send(self, text: str, *, without: Collection[Connection] = ()) -> None:
        frame = Frame(text)
        for connection in tuple(self.connections):
            if connection not in without:
                connection.send(frame)

    def send_away(self, code: int) -> None:
        """Close all connections: the agent left this host. Clients reconnect and resume."""
        for connection in tuple(self.connections):
            connection.close(code, "try again")

    def hear(self, notice: Notice) -> None:
        """Handle a notice of the agent."""
        if isinstance(notice, StateChanged):
            others = [each for each in self.connections if each is notice.source]
            self.send(frames.state(notice.state), without=others)
        elif isinstance(notice, Broadcast):
            out = [each for each in self.connections if each.id in notice.without]
            self.send(notice.text, without=out)
        elif isinstance(notice, Lost):
            self.send_away(TRY_AGAIN)
        else:
            self.chat.hear(notice)


class Rooms:
    """The rooms of one host that have connections."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rooms: dict[Address, Room] = {}

    def hear(self, address: Address, notice: Notice) -> None:
        room = self._rooms.get(address)
        if room is not None:
            room.hear(notice)

    def enter(self, address: Address, base: str) -> Room:
        """Return the room of an agent, which this client reaches under the path `base`."""
        room = self._rooms.get(address)
        if room is None:
            room = self._rooms[address] = Room(address, base, self._limits)
        room.visits += 1
        return room

    def leave(self, room: Room, connection: Connection) -> None:
        room.leave(connection)
        room.visits -= 1
        if not room.visits and self._rooms.get(room.address) is room:
            del self._rooms[room.address]

    def __len__(self) -> int:
        return sum(map(self.count, self._rooms))

    def count(self, address: Address) -> int:
        room = self._rooms.get(address)
        return 0 if room is None else sum(not each.is_closing for each in room.connections)

    def each(self, do: Callable[[Connection], None]) -> None:
        for room in tuple(self._rooms.values()):
            for connection in tuple(room.connections):
                do(connection)
