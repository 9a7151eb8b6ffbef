"""The calls that operators can make to a running host through its admin socket."""

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


async def open_admin(host: Host) -> AdminService | None:
    """Open the admin socket, or log why not: a host works without one."""
    service = AdminService(host)
    try:
        await service.socket.open()
    except OSError as error:
        logger.warning(
            "cannot open the admin socket, so commands cannot reach this host: %s", error
        )
        return None
    return service


class AdminService:
    """Handles the requests that arrive on the admin socket of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.socket = AdminSocket(socket_of(host.store.identity), self.handle)

    async def close(self) -> None:
        await self.socket.close()

    async def handle(self, request: dict[str, Any]) -> Any:
        """Handle one request and return its result."""
        call, arguments = str(request.get("call")), request.get("arguments", {})
        if call == "hello":
            return self._hello()
        if not isinstance(arguments, dict):
            raise RpcRefused(f"arguments must be an object (name: value), got {arguments!r}")
        address = Address.parse(str(request.get("agent", "")))
        if address.root.kind not in self._host.classes:
            known = ", ".join(self._host.classes)
            raise UnknownAgent(f"this host does not run {address.root.kind}; it runs {known}")
        async with self._host.using(address) as agent:
            if call not in getattr(type(agent), "_for_operators", ()):
                raise RpcRefused(f"operators cannot call {call!r} of {address.kind}")
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
