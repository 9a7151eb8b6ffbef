"""The ASGI application: agents behind WebSockets and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from outlast.core.errors import HostStopped
from outlast.host import causes
from outlast.host.address import Address
from outlast.host.host import Host
from outlast.server import pages
from outlast.server.activity import Activity
from outlast.server.connection import TRY_AGAIN, Connection
from outlast.server.http import answer
from outlast.server.limits import Limits
from outlast.server.pages import Page
from outlast.server.room import Room, Rooms
from outlast.server.routing import PREFIX, NoSuchAgent, Target, resolve
from outlast.server.socket import Socket

logger = logging.getLogger("outlast.server")

if TYPE_CHECKING:
    from outlast.server.inspecting import Inspector

INSPECTOR = "/_outlast/inspect"
REFUSED = 1008  # the close code after which clients do not come back
FAILED = 1011
GOING_AWAY = 1012  # the server restarts: come back

Auth = Callable[[HTTPConnection], Any]
Authorize = Callable[[Any, Any, str], Any]


class App:
    """Serves agents. An ASGI application, to be run as it is or mounted in another one.

    ```python
    from outlast import App, Think
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    app = App(agents=[Assistant], store="sqlite:///chat.db")
    ```

    `auth` is given each request or handshake and returns who it is, or None to refuse. `authorize` is asked
    whether that principal may do something (`connect`, `request`) with the agent at an address. Browsers of
    other origins than the server's own are refused, unless `origins` names them ("*": all). `ui` serves the
    chat page at `/`: True, or a `Page` that says what is on it.

    `inspector` serves what is in the store, and a page that shows it at `/inspect`, to those whom `authorize`
    lets `inspect` it (it is asked with no address); without `auth`, to this machine alone.
    """

    def __init__(
        self,
        agents: Sequence[type[Any]],
        store: Any = None,
        *,
        auth: Auth | None = None,
        authorize: Authorize | None = None,
        origins: Collection[str] = (),
        prefix: str = PREFIX,
        limits: Limits | None = None,
        inspector: bool = False,
        ui: bool | Page = False,
        **host_options: Any,
    ) -> None:
        self._options = host_options
        self.rooms = Rooms()
        self.limits = limits or Limits()
        self.page: Page | None = ui if isinstance(ui, Page) else Page() if ui else None
        self._activity = Activity()
        self._agents = agents
        self._auth = auth
        self._authorize = authorize
        self._origins = frozenset([origins] if isinstance(origins, str) else origins)
        self._prefix = prefix
        self.background: set[asyncio.Future[Any]] = set()
        self._inspector = _inspector(self) if inspector else None
        self._is_ready = False
        self._leaving = asyncio.Event()
        self._stop_at: float | None = None  # on the loop's clock
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process; `serve` sets it
        self.use_store(store)

    def use_store(self, store: Any) -> None:
        """Store everything there. Before the application starts."""
        self.store = store
        self.host = Host(self._agents, store, **self._options)
        self.host.audience = self.rooms

    @property
    def agents(self) -> Sequence[type[Any]]:
        """The classes that it serves."""
        return self._agents

    def use_inspector(self) -> None:
        """Serve what is in the store, as with `inspector=True`."""
        self._inspector = self._inspector or _inspector(self)

    # --- life ------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """For the application that this one is mounted in: `FastAPI(lifespan=app.lifespan)`."""
        if self.host.cause is None:
            self.host.cause = causes.from_environment()
        self.host.on_upgrade = self.host.on_upgrade or self.on_upgrade
        if self.page is not None and self.page.dev:
            self._activity.attach(self.host)
        if self._inspector is not None:
            self._inspector.asked.attach(self.host.events)
        await self.host.start()
        try:
            self._is_ready = True
            try:
                yield
            finally:
                self._is_ready = False
                self.rooms.each(lambda connection: connection.close(GOING_AWAY, "restarting"))
                await self.leave()
        finally:
            await self.host.stop(self._time_left())

    async def leave(self, within: float | None = None) -> None:
        """The server is about to stop, within so many seconds: before it waits for anything.

        What runs is marked, so that the next process knows why it was interrupted, and readers of event
        streams are let go: they would hold up the server, and resume where they were.
        """
        if self._leaving.is_set():
            return
        self._leaving.set()
        if within is not None:
            self._stop_at = asyncio.get_running_loop().time() + within
        await self.host.mark_interruptions(causes.DEPLOY)

    def _time_left(self) -> float | None:
        """Seconds that running work has; None: what the host says."""
        if self._stop_at is None:
            return None
        left = max(0.0, self._stop_at - asyncio.get_running_loop().time())
        return min(left, self.host._shutdown_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await self._connect(WebSocket(scope, receive, send))
        elif scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            logger.exception("the application could not start, or stop")
            kind = "shutdown" if self._is_ready else "startup"
            await send({"type": f"lifespan.{kind}.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    # --- who may -------------------------------------------------------------------------------

    def _target(self, connection: HTTPConnection) -> Target | None:
        return resolve(_raw_path(connection.scope), self._agents, self._prefix)

    async def _principal(self, connection: HTTPConnection, target: Target, action: str) -> Any:
        """Who it is; None: they may not."""
        principal: Any = True if self._auth is None else await _told(self._auth, connection)
        if principal is None or principal is False:
            return None
        if self._authorize is not None:
            allowed = await _told(self._authorize, principal, target.address, action)
            if not allowed:
                return None
        return principal

    def _is_foreign(self, connection: HTTPConnection) -> bool:
        """Whether a browser asks for a page of somebody else."""
        origin = connection.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return False
        try:
            return urlsplit(origin).netloc != connection.headers.get("host")
        except ValueError:  # it is no URL
            return True

    # --- WebSockets --------------------------------------------------------------------------------

    async def _connect(self, socket: WebSocket) -> None:
        try:
            target = self._target(socket)
        except NoSuchAgent:
            target = None
        if target is None:
            await socket.close()
            return
        refusal: tuple[int, str] | None = None
        principal = None
        if not self._is_ready:
            refusal = TRY_AGAIN, "restarting"
        elif self._is_foreign(socket):
            refusal = REFUSED, "origin not allowed"
        else:
            try:
                principal = await self._principal(socket, target, "connect")
            except Exception:  # it may well work the next time: they may come back
                refusal = FAILED, self._failed("the handshake of", socket)
            else:
                if principal is None:
                    refusal = REFUSED, "unauthorized"
                elif self.rooms.count(target.address) >= self.limits.connections_per_agent:
                    refusal = TRY_AGAIN, "too many connections"
        await socket.accept()
        if refusal is not None:
            await socket.close(*refusal)
            return
        connection = Connection(
            socket,
            socket.query_params.get("_pk") or self.host.ids.new("connection"),
            principal=principal,
            max_buffer=self.limits.buffer,
        )
        await self._serve(socket, connection, target)

    async def _serve(self, socket: WebSocket, connection: Connection, target: Target) -> None:
        room: Room = self.rooms.enter(target.address)
        writing = asyncio.create_task(connection.write(), name="socket")
        served = Socket(self.host, room, connection, self.limits)
        try:
            await ensure(self.host, target.address)
            await served.run(socket)
        except HostStopped:
            connection.close(GOING_AWAY, "restarting")
        except Exception:
            logger.exception("a connection to %s failed", target.address)
            connection.close(FAILED, "internal error")
        finally:
            self.rooms.leave(room, connection)
            connection.close()
            await asyncio.wait({writing}, timeout=2)
            writing.cancel()
            await served.left()

    # --- HTTP ------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if path.endswith("/healthz"):
            return PlainTextResponse("ok")
        if path.endswith("/readyz"):
            ready = self._is_ready
            return PlainTextResponse("ready" if ready else "not ready", 200 if ready else 503)
        below = _raw_path(request.scope)
        if self._inspector is not None and below.startswith(f"{INSPECTOR}/"):
            return await self._inspect(request, below.removeprefix(f"{INSPECTOR}/"))
        has_chat, has_inspector = self.page is not None, self._inspector is not None
        if pages.is_page(below, chat=has_chat, inspector=has_inspector):
            return await self._answer_page(request, self.page or Page(title="outlast"))
        try:
            target = self._target(request)
        except NoSuchAgent:
            return PlainTextResponse("Invalid request", 400)
        if target is None:
            return PlainTextResponse("Not found", 404)
        if self._is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        if request.method == "OPTIONS":
            return self._with_cors(request, Response(status_code=204))
        try:
            response = await self._answer_for(request, target)
        except HostStopped:
            response = JSONResponse({"error": "restarting"}, 503, {"retry-after": "1"})
        except Exception:
            response = JSONResponse({"error": self._failed(request.method, request)}, 500)
        return self._with_cors(request, response)

    async def _answer_page(self, request: Request, page: Page) -> Response:
        """The page itself is for everybody; what it asks, for those who may come in."""
        path = _raw_path(request.scope)
        if request.method == "POST" and self._is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        try:
            if self._auth is not None and not pages.is_public(path):
                principal = await _told(self._auth, request)
                if principal is None or principal is False:
                    return JSONResponse({"error": "unauthorized"}, 401)
            site = pages.Site(
                page,
                self.host,
                self._agents,
                self._prefix,
                self.limits,
                self._activity,
                self._leaving,
                inspector=path == pages.ABOUT and await self._shows_inspector(request),
                chat=self.page is not None,
            )
            return await pages.answer(site, request, path)
        except HostStopped:
            return JSONResponse({"error": "restarting"}, 503, {"retry-after": "1"})
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _answer_for(self, request: Request, target: Target) -> Response:
        principal = await self._principal(request, target, "request")
        if principal is None:
            return JSONResponse({"error": "unauthorized"}, 401)
        request.state.principal = principal
        request.state.leaving = self._leaving
        await ensure(self.host, target.address)
        return await answer(self.host, request, target, self.limits)

    async def _inspect(self, request: Request, what: str) -> Response:
        from outlast.server.inspecting import is_local

        assert self._inspector is not None
        if self._is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        if self._auth is None and not is_local(request):
            text = "without auth, the inspector is for this machine alone"
            return JSONResponse({"error": text}, 403)
        try:
            if not await self._may_inspect(request):
                return JSONResponse({"error": "unauthorized"}, 401)
            return await self._inspector.answer(request, what)
        except HostStopped:
            return JSONResponse({"error": "restarting"}, 503, {"retry-after": "1"})
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _may_inspect(self, request: Request) -> bool:
        """Asked about no agent in particular: whoever may look, may look at all of them."""
        principal: Any = True if self._auth is None else await _told(self._auth, request)
        if principal is None or principal is False:
            return False
        if self._authorize is None:  # somebody who may chat may not look at everybody's chats
            return self._auth is None
        return bool(await _told(self._authorize, principal, None, "inspect"))

    async def _shows_inspector(self, request: Request) -> bool:
        """Whether whoever looks at a page is told that there is an inspector."""
        if self._inspector is None:
            return False
        from outlast.server.inspecting import is_local

        if self._auth is None and not is_local(request):
            return False
        try:
            return await self._may_inspect(request)
        except Exception:  # the page itself is for everybody
            return False

    def _failed(self, what: str, connection: HTTPConnection) -> str:
        """Log the exception that is being handled; what is said of it to those outside."""
        id = self.host.ids.new("error")
        logger.exception("%s %s failed (%s)", what, connection.scope["path"], id)
        return f"internal error ({id})"

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and self._origins:
            response.headers["access-control-allow-origin"] = (
                "*" if "*" in self._origins else origin
            )
            response.headers["access-control-allow-methods"] = "GET, POST, DELETE, HEAD, OPTIONS"
            response.headers["access-control-allow-headers"] = (
                request.headers.get("access-control-request-headers") or "*"
            )
            response.headers["access-control-max-age"] = "86400"
            response.headers["vary"] = "origin"
        return response


def _inspector(app: App) -> Inspector:
    from outlast.server.inspecting import Inspector

    return Inspector(app)


def _raw_path(scope: Scope) -> str:
    """The path below where the application is mounted, still percent-encoded."""
    raw = scope.get("raw_path")
    text = raw.decode("latin-1") if raw else quote(scope["path"])
    text = text.partition("?")[0]
    root = quote(scope.get("root_path", ""))
    return text.removeprefix(root) if root else text


async def ensure(host: Host, address: Address) -> None:
    """Make the sub-agents of an address, level by level: like roots, they are there when they are used."""
    for depth in range(1, len(address.path)):
        kind, name = address.path[depth]
        async with host.using(Address(address.path[:depth])) as parent:
            classes = {each.__name__: each for each in getattr(type(parent), "sub_agents", ())}
            if not await parent.has_sub_agent(classes[kind], name):  # type: ignore[attr-defined]
                await parent.sub_agent(classes[kind], name)  # type: ignore[attr-defined]


async def _told(function: Callable[..., Any], *arguments: Any) -> Any:
    answer: Any | Awaitable[Any] = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer
