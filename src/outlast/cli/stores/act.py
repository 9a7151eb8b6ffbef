"""The actions of operators: through the admin socket of the running host, or directly without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from outlast.cli.output import as_json, console, fail
from outlast.cli.stores.find import find_agent
from outlast.core.errors import StoreLocked
from outlast.host.address import Address
from outlast.host.admin import socket as admin
from outlast.host.admin.socket import NoHost
from outlast.inspect import views
from outlast.inspect.offline import Offline, offline
from outlast.inspect.reader import reading
from outlast.store.url import DEFAULT, file_of, identity_of

LATER = "No host has this store open; it takes effect with the next one."


async def ask_host(url: str | None, address: Address, call: str, **arguments: Any) -> Any:
    """Call an operators' method of an agent, through the host on this machine that has the store open."""
    request = {"call": call, "agent": address.text, "arguments": arguments}
    return await admin.ask(admin.sockets_of(identity_of(url)), request)


async def _act(
    url: str | None,
    address: Address,
    call: str,
    arguments: dict[str, Any],
    instead: Callable[[Offline], Awaitable[Any]],
    *,
    direct: bool,
) -> tuple[Any, bool]:
    """Perform a call. Returns its result, and whether a host performed it."""
    try:
        return await ask_host(url, address, call, **arguments), True
    except NoHost:
        if file_of(url or DEFAULT) is None and not direct:
            fail(
                "no host on this machine has this PostgreSQL store open, but one on another machine may: run"
                " this command there. --direct writes anyway; a host that has the agent in memory then"
                " discards it and boots it again."
            )
    try:
        async with offline(url) as writer:
            return await instead(writer), False
    except StoreLocked as error:
        fail(
            f"{error} It has no admin socket: `outlast serve`, `outlast dev` and Host(admin=True)"
            " open one."
        )


async def _find(url: str | None, turn: str) -> tuple[Address, str]:
    async with reading(url) as reader:
        return await views.find_turn(reader, turn)


async def seal(url: str | None, json: bool, direct: bool, turn: str) -> None:
    address, id = await _find(url, turn)
    done, by_host = await _act(
        url,
        address,
        "seal_incident",
        {"request_id": id},
        lambda writer: writer.seal(address, id),
        direct=direct,
    )
    _report(json, address, id, "sealed", done, by_host, f"{id} of {address} has already ended.")


async def cancel(url: str | None, json: bool, direct: bool, turn: str) -> None:
    address, id = await _find(url, turn)
    done, by_host = await _act(
        url,
        address,
        "cancel_chat",
        {"request_id": id},
        lambda writer: writer.cancel(address, id),
        direct=direct,
    )
    _report(json, address, id, "cancelled", done, by_host, f"{id} of {address} has already ended.")


async def release(url: str | None, json: bool, direct: bool, agent: str, name: str | None) -> None:
    async with reading(url) as reader:
        address = await find_agent(reader, agent, name)
    done, by_host = await _act(
        url, address, "release", {}, lambda writer: writer.release(address), direct=direct
    )
    if json:
        as_json({"agent": address.text, "released": True, "by_host": by_host})
    elif done is False:
        console().print(f"{address} was not stuck.")
    else:
        console().print(f"Released {address}." + ("" if by_host else f" {LATER}"))


async def retry(url: str | None, json: bool, direct: bool, turn: str) -> None:
    address, id = await _find(url, turn)
    done, by_host = await _act(
        url,
        address,
        "retry_incident",
        {"request_id": id},
        lambda writer: writer.retry(address, id),
        direct=direct,
    )
    if json:
        as_json({"agent": address.text, "turn": id, "by_host": by_host, "result": done})
        return
    if not by_host:
        console().print(f"Retrying the turn of {address} as {done}. {LATER}")
        return
    status, error = done.get("status"), done.get("error")
    console().print(f"{address} answered again as {done.get('request_id')}: {status}")
    from outlast.chat.message.reducer import text_of

    said = text_of(done["message"]) if done.get("message") else ""
    console().print(error or said, markup=False)
    if status != "completed":
        fail("the new answer did not complete")


def _report(
    json: bool, address: Address, id: str, verb: str, done: bool, by_host: bool, otherwise: str
) -> None:
    if json:
        as_json({"agent": address.text, "turn": id, verb: done, "by_host": by_host})
    elif done:
        console().print(
            f"{verb.capitalize()} {id} of {address}." + ("" if by_host else f" {LATER}")
        )
    if not done:
        fail(otherwise)
