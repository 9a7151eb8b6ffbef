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

from outlast.core.errors import HostStopped, StoreUnavailable
from outlast.host import causes
from outlast.host.address import Address
from outlast.host.host import Host
from outlast.server import pages
from outlast.server.activity import Activity
from outlast.server.connection import TRY_AGAIN, Connection
from outlast.server.event_stream import Readers
from outlast.server.http import answer
from outlast.server.limits import Limits
from outlast.server.line import Line
from outlast.server.pages import Page
from outlast.server.readiness import Readiness
from outlast.server.room import Room, Rooms
from outlast.server.routing import PREFIX, NoSuchAgent, Target, path_of, resolve
from outlast.server.socket import Socket
from outlast.server.unread import Unread

logger = logging.getLogger("outlast.server")

if TYPE_CHECKING:
    from outlast.server.inspecting import Inspector

INSPECTOR = "/_outlast/inspect"
REFUSED = 1008  # the close code after which clients do not come back
FAILED = 1011
GOING_AWAY = 1012  # the server restarts: come back

Auth = Callable[[HTTPConnection], Any]
Authorize = Callable[[Any, Any, str], Any]


class NotLetIn(Exception):
    """`auth` does not know who asks (401), or `authorize` does not allow it (403)."""

    def __init__(self, status: int) -> None:
        super().__init__("unauthorized" if status == 401 else "forbidden")
        self.status = status

    def response(self) -> Response:
        return JSONResponse({"error": str(self)}, self.status)


class App:
    """Serves agents. An ASGI application, to be run as it is or mounted in another one.

    ```python
    from outlast import App, Think
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    app = App(agents=[Assistant], store="sqlite:///chat.db")
    ```

    `auth` is given each request or handshake and returns who it is, or None to refuse (401). `authorize` is
    asked whether that principal may do something (`connect`, `request`) with the agent at an address (403).
    Browsers of other origins than the server's own are refused, unless `origins` names them ("*": all). `ui`
    serves the chat page at `/`: True, or a `Page` that says what is on it.

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
        self.limits = limits or Limits()
        self.rooms = Rooms(self.limits)
        self.unread = Unread(self.limits)
        self.readers = Readers(self.limits, lambda: len(self.rooms))
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
        self._readiness = Readiness()
        self._leaving = asyncio.Event()
        self._stop_at: float | None = None  # on the loop's clock
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process; `serve` sets it
        self.on_failed_start: Callable[[Exception], None] | None = None  # instead of the log
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
            self.host.died_at = causes.died_at_from_environment()
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
            self.unread.close()

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
            await self._connect(WebSocket(scope, receive, send), send)
        elif scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        has_started = False
        try:
            async with self.lifespan():
                has_started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            if has_started or self.on_failed_start is None:
                logger.exception("the application could not %s", "stop" if has_started else "start")
            else:
                self.on_failed_start(error)
            kind = "shutdown" if has_started else "startup"
            message = str(error) if self.on_failed_start is None else ""
            await send({"type": f"lifespan.{kind}.failed", "message": message})
            return
        await send({"type": "lifespan.shutdown.complete"})

    # --- who may -------------------------------------------------------------------------------

    def _target(self, connection: HTTPConnection) -> Target | None:
        return resolve(_raw_path(connection.scope), self._agents, self._prefix)

    async def _known(self, connection: HTTPConnection) -> Any:
        """Who asks; `NotLetIn` if `auth` does not know."""
        principal: Any = True if self._auth is None else await _told(self._auth, connection)
        if principal is None or principal is False:
            raise NotLetIn(401)
        return principal

    async def _principal(self, connection: HTTPConnection, target: Target, action: str) -> Any:
        """Who asks; `NotLetIn` if they may not do this with the agent, and with those it belongs to."""
        principal = await self._known(connection)
        path = target.address.path
        levels = [Address(path[:depth]) for depth in range(1, len(path) + 1)]
        if self._authorize is not None:
            for address in levels:
                if not await _told(self._authorize, principal, address, action):
                    raise NotLetIn(403)
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

    async def _connect(self, socket: WebSocket, send: Send) -> None:
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
            except NotLetIn as error:
                refusal = REFUSED, str(error)
            except Exception:  # it may well work the next time: they may come back
                refusal = FAILED, self._failed("the handshake of", socket)
            else:
                if self.readers.is_full or self._is_crowded(target):
                    refusal = TRY_AGAIN, "too many connections"
        await socket.accept()
        if refusal is not None:
            await socket.close(*refusal)
            return
        connection = Connection(
            socket,
            socket.query_params.get("_pk") or self.host.ids.new("connection"),
            line=Line(socket, send),
            unread=self.unread,
            principal=principal,
            max_buffer=self.limits.buffer,
        )
        connection.takes_changes = socket.query_params.get("_delta") == "1"
        await self._serve(socket, connection, target)

    def _is_crowded(self, target: Target) -> bool:
        return self.rooms.count(target.address) >= self.limits.connections_per_agent

    def base_of(self, scope: Scope, target: Target) -> str:
        """The path under which a client reaches an agent."""
        return f"{quote(scope.get('root_path', ''))}{path_of(target.address, self._prefix)}"

    async def _serve(self, socket: WebSocket, connection: Connection, target: Target) -> None:
        room: Room = self.rooms.enter(target.address, self.base_of(socket.scope, target))
        writing = asyncio.create_task(connection.write(), name="socket")
        served = Socket(self.host, room, connection, self.limits)
        try:
            await ensure(self.host, target.address)
            await served.run(socket)
        except HostStopped:
            connection.close(GOING_AWAY, "restarting")
        except StoreUnavailable as error:  # which the store has told already
            logger.info("a connection to %s waits for the store: %s", target.address, error)
            connection.close(TRY_AGAIN, "try again")
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
        below = _raw_path(request.scope)
        if below == "/healthz":
            return PlainTextResponse("ok")
        if below == "/readyz":
            return await self._answer_readiness()
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
        except NotLetIn as refused:
            response = refused.response()
        except HostStopped:
            response = _later("restarting")
        except StoreUnavailable:
            response = _later("try again")
        except Exception:
            response = JSONResponse({"error": self._failed(request.method, request)}, 500)
        return self._with_cors(request, response)

    async def _answer_readiness(self) -> Response:
        problem = await self._readiness.problem(self.host.store) if self._is_ready else "restarting"
        if problem is None:
            return PlainTextResponse("ready")
        return PlainTextResponse(f"not ready: {problem}", 503)

    async def _answer_page(self, request: Request, page: Page) -> Response:
        """The page itself is for everybody; what it asks, for those who may come in."""
        path = _raw_path(request.scope)
        if request.method == "POST" and self._is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        try:
            if not pages.is_public(path):
                principal = await self._known(request)
                if (
                    self._authorize is not None
                ):  # like the inspector, this is about everybody's chats
                    await self._check_inspect(principal)
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
        except NotLetIn as refused:
            return refused.response()
        except HostStopped:
            return _later("restarting")
        except StoreUnavailable:
            return _later("try again")
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _answer_for(self, request: Request, target: Target) -> Response:
        request.state.principal = await self._principal(request, target, "request")
        request.state.leaving = self._leaving
        await ensure(self.host, target.address)
        request.state.readers = self.readers
        request.state.base = self.base_of(request.scope, target)
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
            await self._check_inspect(await self._known(request))
            return await self._inspector.answer(request, what)
        except NotLetIn as refused:
            return refused.response()
        except HostStopped:
            return _later("restarting")
        except StoreUnavailable:
            return _later("try again")
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _check_inspect(self, principal: Any) -> None:
        """`NotLetIn` unless they may see all agents: `authorize` is asked with no address."""
        if self._authorize is None:  # somebody who may chat may not look at everybody's chats
            allowed = self._auth is None
        else:
            allowed = bool(await _told(self._authorize, principal, None, "inspect"))
        if not allowed:
            raise NotLetIn(403)

    async def _shows_inspector(self, request: Request) -> bool:
        """Whether whoever looks at a page is told that there is an inspector."""
        if self._inspector is None:
            return False
        from outlast.server.inspecting import is_local

        if self._auth is None and not is_local(request):
            return False
        try:
            await self._check_inspect(await self._known(request))
        except Exception:  # the page itself is for everybody
            return False
        return True

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


def _later(why: str) -> Response:
    """The answer to somebody who is to ask again soon."""
    return JSONResponse({"error": why}, 503, {"retry-after": "1"})


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
