"""The inspector's endpoints: the views of `outlast.inspect` as JSON, and the actions of operators.

Below `/_outlast/inspect`, if `App(inspector=True)`. `?agent=Class/name` selects an agent by its address.

| request | response |
| --- | --- |
| `GET host` | the host: classes, agents in memory, sockets |
| `GET agents?after=&limit=` | agents, with their activity and number of sockets |
| `GET agent?agent=` | one of them |
| `GET turns`, `submissions`, `incidents`, `sizes` | of one agent, or of all |
| `GET messages`, `fibers`, `schedules`, `ledger` | of one agent |
| `GET search?agent=&q=` | the messages of one agent that match, best first, with marks |
| `GET battery?agent=&name=` | the views of a battery; `&live=1`: the live ones; `&view=&row=`: one row |
| `GET turn?agent=&id=`, `chunks?agent=&id=` | a turn with its timeline; its raw chunks |
| `GET requests?agent=&id=` | the requests that this process sent to its model |
| `POST cancel`, `seal`, `retry` | `{"agent", "id"}`: act on a turn |
| `POST release` | `{"agent"}` |
| `POST fork` | `{"agent", "message", "name"?}`: a new agent, with the conversation up to a message |

Without `auth` it requires the token that is printed at the start (`outlast.server.access.token`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.agent.battery import Battery
from outlast.agent.gateway import batteries as batteries_of_class
from outlast.core import json
from outlast.core.errors import OutlastError, UnknownAgent
from outlast.host.address import Address
from outlast.inspect import battery_views, views
from outlast.inspect.fork import fork
from outlast.inspect.model_requests import ModelRequests
from outlast.inspect.searching import search
from outlast.inspect.values import NotFound, as_json

if TYPE_CHECKING:
    from outlast.server.app import App

MOST = 1000  # rows of one response
BODY = 64 * 1024  # bytes
QUERY = 1000  # characters of a search


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Inspector:
    """The inspector of one application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.model_requests = ModelRequests()
        self._reads: dict[str, Callable[[Request], Awaitable[Any]]] = {
            "host": self._host,
            "agents": self._agents,
            "agent": self._agent,
            "turns": self._turns,
            "submissions": self._submissions,
            "incidents": self._incidents,
            "sizes": self._sizes,
            "messages": self._messages,
            "search": self._search,
            "fibers": self._fibers,
            "schedules": self._schedules,
            "ledger": self._ledger,
            "battery": self._battery,
            "turn": self._turn,
            "chunks": self._chunks,
            "requests": self._requests,
        }
        self._acts: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "cancel": self._cancel,
            "seal": self._seal,
            "retry": self._retry,
            "release": self._release,
            "fork": self._fork,
        }

    async def respond(self, request: Request, what: str) -> Response:
        """Respond to an authorized request; `what` is the path after the prefix."""
        no_store = {"cache-control": "no-store"}
        try:
            if request.method in ("GET", "HEAD") and what in self._reads:
                found = await self._reads[what](request)
            elif request.method == "POST" and what in self._acts:
                found = await self._acts[what](await _body(request))
            elif what in self._reads or what in self._acts:
                raise _Refused(405, f"{what} does not accept {request.method}")
            else:
                raise _Refused(404, f"unknown view {what!r}")
        except _Refused as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status)
        except (NotFound, UnknownAgent, LookupError) as error:
            text = error.args[0] if error.args else "not found"
            return JSONResponse({"error": str(text)}, 404)
        except (OutlastError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        text = json.encode(as_json(found), "view", json.MAX_DEPTH + 20)
        return Response(text, media_type="application/json", headers=no_store)

    # --- views -----------------------------------------------------------------------------------

    async def _host(self, _: Request) -> Any:
        host = self._app.host
        statistics = host.statistics()
        return {
            "classes": list(host.classes),
            "engine": host.store.engine,
            "active": statistics.active,
            "held": statistics.held,
            "booting": statistics.booting,
            "sockets": len(self._app.rooms),
        }

    async def _agents(self, request: Request) -> Any:
        after, limit = request.query_params.get("after", ""), _limit(request, 100)
        found = await views.agents(self._app.host.store, after=after, limit=limit)
        return [self._with_sockets(each) for each in found]

    async def _agent(self, request: Request) -> Any:
        address = _address(request)
        found = self._with_sockets(await views.agent(self._app.host.store, address))
        batteries = [each.name for each in self._batteries(address) if each.views is not None]
        return {**found, "batteries": batteries}

    def _batteries(self, address: Address) -> tuple[Battery, ...]:
        agent_class = self._app.host.classes.get(address.kind)
        return () if agent_class is None else batteries_of_class(agent_class)

    async def _battery(self, request: Request) -> Any:
        """Return the views of a battery as tables, or one row."""
        address, query, store = _address(request), request.query_params, self._app.host.store
        name, row = query.get("name", ""), query.get("row")
        battery = next((each for each in self._batteries(address) if each.name == name), None)
        if battery is None:
            raise _Refused(404, f"{address.kind} has no battery {name!r}")
        if row is not None:
            view = battery_views.find_view(battery, query.get("view", ""))
            return await battery_views.detail(store, view, address, row)
        limit, only_live = _limit(request, battery_views.PAGE), query.get("live") in ("1", "true")
        return await battery_views.tables(store, battery, address, only_live=only_live, limit=limit)

    def _with_sockets(self, view: Any) -> dict[str, Any]:
        sockets = self._app.rooms.count(Address.parse(view.address))
        return {**as_json(view), "sockets": sockets}

    async def _turns(self, request: Request, *, only_submissions: bool = False) -> Any:
        return await views.turns(
            self._app.host.store,
            _maybe_address(request),
            only_open=request.query_params.get("open") in ("1", "true"),
            only_submissions=only_submissions,
            before=_number(request, "before", views.LATEST),
            limit=_limit(request, 50),
        )

    async def _submissions(self, request: Request) -> Any:
        return await self._turns(request, only_submissions=True)

    async def _incidents(self, request: Request) -> Any:
        shows_all = request.query_params.get("all") in ("1", "true")
        found = views.interruptions if shows_all else views.incidents
        return await found(self._app.host.store, _maybe_address(request))

    async def _sizes(self, request: Request) -> Any:
        return await views.sizes(self._app.host.store, _maybe_address(request))

    async def _messages(self, request: Request) -> Any:
        before, limit = _number(request, "before", views.LATEST), _limit(request, 50)
        store = self._app.host.store
        return await views.messages(store, _address(request), before=before, limit=limit)

    async def _search(self, request: Request) -> Any:
        query, limit = request.query_params.get("q", ""), _limit(request, 20)
        if len(query) > QUERY:
            raise _Refused(400, f"q must have at most {QUERY:,} characters, got {len(query):,}")
        return await search(self._app.host.store, _address(request), query, limit=limit)

    async def _fibers(self, request: Request) -> Any:
        store, limit = self._app.host.store, _limit(request, 100)
        return await views.fibers(store, _address(request), limit=limit)

    async def _schedules(self, request: Request) -> Any:
        store, limit = self._app.host.store, _limit(request, 100)
        return await views.schedules(store, _address(request), limit=limit)

    async def _ledger(self, request: Request) -> Any:
        store, limit = self._app.host.store, _limit(request, 100)
        return await views.ledger(store, _address(request), limit=limit)

    async def _turn(self, request: Request) -> Any:
        address, id = await self._which(request)
        return await views.turn(self._app.host.store, address, id, is_hosted=True)

    async def _chunks(self, request: Request) -> Any:
        address, id = await self._which(request)
        return await views.chunks(self._app.host.store, address, id)

    async def _requests(self, request: Request) -> Any:
        address, id = await self._which(request)
        return self.model_requests.of_turn(address.text, id)

    async def _which(self, request: Request) -> tuple[Address, str]:
        id = request.query_params.get("id")
        if not id:
            raise _Refused(400, "id is missing")
        address = _maybe_address(request)
        return (address, id) if address else await views.find_turn(self._app.host.store, id)

    # --- actions ---------------------------------------------------------------------------------

    async def _call(self, body: dict[str, Any], call: str, *arguments: Any) -> Any:
        address = self._known(body)
        async with self._app.host.using(address) as agent:
            if call not in getattr(type(agent), "_for_operators", ()):
                raise _Refused(400, f"{address.kind} is not a chat agent")
            return await getattr(agent, call)(*arguments)

    def _known(self, body: dict[str, Any]) -> Address:
        address = Address.parse(_text(body, "agent"))
        if address.root.kind not in self._app.host.classes:
            raise UnknownAgent(f"this host does not run {address.root.kind}")
        return address

    async def _cancel(self, body: dict[str, Any]) -> Any:
        done = await self._call(body, "cancel_chat", _text(body, "id"), "An operator stopped it.")
        return {"cancelled": done}

    async def _seal(self, body: dict[str, Any]) -> Any:
        return {"sealed": await self._call(body, "seal_incident", _text(body, "id"))}

    async def _retry(self, body: dict[str, Any]) -> Any:
        """Accept the retry now and return; the caller follows the agent to see its answer."""
        id, address = _text(body, "id"), self._known(body)
        rows = await views.turn_rows(self._app.host.store, address, id)
        if rows.entry.ended_at is None or rows.entry.target is None:
            raise NotFound(f"turn {id!r} has not ended, so it cannot be retried")
        retrying = asyncio.ensure_future(self._call(body, "retry_incident", id))
        retrying.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._app.background.add(retrying)
        retrying.add_done_callback(self._app.background.discard)
        return {"retried": True}

    async def _release(self, body: dict[str, Any]) -> Any:
        await self._call(body, "release")
        return {"released": True}

    async def _fork(self, body: dict[str, Any]) -> Any:
        address = self._known(body)
        name = body.get("name")
        if name is None:
            name = f"{address.name}-{self._app.host.ids.new('fork')[-6:]}"
        to = Address((*address.path[:-1], (address.kind, str(name))))
        to = Address.parse(to.text)  # raises for an invalid name
        count = await fork(self._app.host, address, _text(body, "message"), to)
        return {"agent": to.text, "name": to.name, "messages": count}


# --- parameters ----------------------------------------------------------------------------------


def _maybe_address(request: Request) -> Address | None:
    given = request.query_params.get("agent")
    return Address.parse(given) if given else None


def _address(request: Request) -> Address:
    address = _maybe_address(request)
    if address is None:
        raise _Refused(400, "agent is missing; it must be an address like Class/name")
    return address


def _number(request: Request, name: str, otherwise: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return otherwise
    if not given.isdecimal() or len(given) > 18:
        raise _Refused(400, f"{name} must be a number")
    return int(given)


def _limit(request: Request, otherwise: int) -> int:
    return max(1, min(MOST, _number(request, "limit", otherwise)))


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise _Refused(400, f"{name} is missing")
    return value


async def _body(request: Request) -> dict[str, Any]:
    text = b""
    async for piece in request.stream():
        text += piece
        if len(text) > BODY:
            raise _Refused(413, "the request is too large")
    try:
        found = json.decode(text.decode() or "{}")
    except ValueError:
        raise _Refused(400, "the body must be JSON") from None
    if not isinstance(found, dict):
        raise _Refused(400, "the body must be a JSON object")
    return found
