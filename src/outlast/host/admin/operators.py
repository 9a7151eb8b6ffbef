"""What operators may ask of a running host, through its admin socket."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from outlast.core.errors import RpcRefused, UnknownAgent
from outlast.host.address import Address
from outlast.host.admin.socket import AdminSocket, socket_of

if TYPE_CHECKING:
    from outlast.host.life.host import Host

logger = logging.getLogger("outlast.host")


async def operators(host: Host) -> Operators | None:
    """Open the socket. A host without one works all the same."""
    made = Operators(host)
    try:
        await made.socket.open()
    except OSError as error:
        logger.warning("commands cannot reach this host: no admin socket (%s)", error)
        return None
    return made


class Operators:
    """Those of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.socket = AdminSocket(socket_of(host.store.identity), self.handle)

    async def close(self) -> None:
        await self.socket.close()

    async def handle(self, request: dict[str, Any]) -> Any:
        """Do what one line asks for."""
        call, arguments = str(request.get("call")), request.get("arguments", {})
        if call == "hello":
            return self._hello()
        if not isinstance(arguments, dict):
            raise RpcRefused("arguments is an object, by their names")
        address = Address.parse(str(request.get("agent", "")))
        if address.root.kind not in self._host.classes:
            known = ", ".join(self._host.classes)
            raise UnknownAgent(f"this host runs no {address.root.kind}; it runs: {known}")
        async with self._host.using(address) as agent:
            if call not in getattr(type(agent), "_for_operators", ()):
                raise RpcRefused(f"{address.kind} has no {call!r} for operators")
            return await getattr(agent, call)(**arguments)

    def _hello(self) -> dict[str, Any]:
        host = self._host
        statistics = host.statistics()
        return {
            "pid": os.getpid(),
            "classes": list(host.classes),
            "engine": host.store.engine,
            "active": statistics.active,
            "held": statistics.held,
            "booting": statistics.booting,
        }
