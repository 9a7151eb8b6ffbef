"""The ASGI application: agents behind WebSockets and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from outlast.agent.agent import Agent
from outlast.core.clock import seconds
from outlast.core.errors import HostStopped, StoreGone, StoreUnavailable
from outlast.host import causes
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.server.access import rechecking
from outlast.server.access.auth import Auth, Authorize, Check, NotLetIn
from outlast.server.access.doors import NOT_LOCAL, NOT_LOCAL_IN_SHORT, Doors, told
from outlast.server.access.token import PARAMETER, Token
from outlast.server.http.arriving import Arriving, TooSlow
from outlast.server.http.event_stream import Readers
from outlast.server.http.not_now import NOT_STORED, not_now
from outlast.server.http.readiness import Readiness
from outlast.server.http.routes import answer, most_of
from outlast.server.limits import Limits
from outlast.server.pages import pages
from outlast.server.pages.activity import Activity
from outlast.server.pages.pages import Page
from outlast.server.room.room import Room, Rooms
from outlast.server.routing import PREFIX, NoSuchAgent, Target, path_of, resolve
from outlast.server.socket.connection import REFUSED, TRY_AGAIN, Connection
from outlast.server.socket.line import Line
from outlast.server.socket.socket import Socket
from outlast.server.socket.unread import Unread

logger = logging.getLogger("outlast.server")

if TYPE_CHECKING:
    from outlast.server.pages.inspector import Inspector

INSPECTOR = "/_outlast/inspect"
FAILED = 1011
GOING_AWAY = 1012  # the server restarts: come back


class App:
    """Serves agents. An ASGI application, to be run as it is or mounted in another one.

    ```python
    from outlast import App, Think
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    app = App(agents=[Assistant], store="sqlite:///chat.db")
    ```

    `auth` is given each request or handshake and returns who it is, or None to refuse (401); an `Auth` asks
    again for connections that stay open. `authorize` is asked whether that principal may do something
    (`connect`, `request`) with the agent at an address (403). Without `auth`, only requests of this machine
    are answered, unless `insecure` lets everybody in. Browsers of other origins than the server's own are
    refused, unless `origins` names them ("*": all). `ui` serves the chat page at `/`: True, or a `Page` that
    says what is on it.

    `inspector` serves what is in the store, and a page that shows it at `/inspect`, to those whom `authorize`
    lets `inspect` it (it is asked with no address); without `auth`, to those who bring the `token`: this one,
    or that of `OUTLAST_TOKEN`, or a new one, which is logged at the start.
    """

    def __init__(
        self,
        agents: Sequence[type[Any]],
        store: Any = None,
        *,
        auth: Check | Auth | None = None,
        authorize: Authorize | None = None,
        origins: Collection[str] = (),
        insecure: bool = False,
        token: str | None = None,
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
        self._doors = Doors(auth, authorize, origins, insecure=insecure, token=token)
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

    @property
    def has_inspector(self) -> bool:
        return self._inspector is not None

    def use_inspector(self) -> None:
        """Serve what is in the store, as with `inspector=True`."""
        self._inspector = self._inspector or _inspector(self)

    @property
    def has_auth(self) -> bool:
        """Whether it knows who asks."""
        return self._doors.has_auth

    @property
    def insecure(self) -> bool:
        """Whether everybody is let in, without `auth`."""
        return self._doors.insecure and not self._doors.has_auth

    @insecure.setter
    def insecure(self, is_insecure: bool) -> None:
        self._doors.insecure = is_insecure

    @property
    def token(self) -> Token | None:
        """What the inspector takes, and requests for development; None: `auth` decides, or they are off."""
        is_needed = self._inspector is not None or (self.page is not None and self.page.dev)
        return self._doors.token if is_needed else None

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
        if self.token is not None and self.token.is_new:  # nobody else tells it
            at = pages.INSPECT if self._inspector is not None else ""
            logger.warning("there is no auth: to see everything, open /%s", self.token.link(at))
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

    async def leave(self, within: float | timedelta | None = None) -> None:
        """The server is about to stop, within this time: before it waits for anything.

        What runs is marked, so that the next process knows why it was interrupted, and readers of event
        streams are let go: they would hold up the server, and resume where they were.
        """
        time_left = None if within is None else seconds(within, "within")
        if self._leaving.is_set():
            return
        self._leaving.set()
        if time_left is not None:
            self._stop_at = asyncio.get_running_loop().time() + time_left
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
            arriving = Arriving(receive, seconds(self.limits.body_within))
            request = Request(scope, arriving)
            response = await self._answer(request, arriving)
            ask, every = getattr(request.state, "ask_again", None), self._doors.recheck
            if ask is None or every is None or not isinstance(response, StreamingResponse):
                await response(scope, receive, send)
            else:
                going = rechecking.refused(ask, every, f"a reader of {scope['path']}")
                await rechecking.stream(response, scope, receive, send, going)

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

    async def _by_parents(self, connection: HTTPConnection, target: Target) -> Response | None:
        """What the agents above a sub-agent answer in its place; None: it may be asked."""
        path = target.address.path
        for depth in range(1, len(path)):
            kind: Any = self.host.classes[path[depth - 1][0]]
            if kind.on_before_sub_agent is Agent.on_before_sub_agent:
                continue
            async with self.host.using(Address(path[:depth]), may_make=True) as parent:
                answer = await told(parent.on_before_sub_agent, connection, *path[depth])  # type: ignore[attr-defined]
            if isinstance(answer, Response):
                return answer
            if answer is False:
                raise NotLetIn(403)
            if answer is not None and answer is not True:
                raise TypeError(
                    f"{kind.__name__}.on_before_sub_agent must return None, False or a Response,"
                    f" got {type(answer).__name__}"
                )
        return None

    # --- WebSockets --------------------------------------------------------------------------------

    def _takes_requests(self) -> bool:
        """Not while it starts or stops, nor when nothing can be stored any more."""
        return self._is_ready and self.host.store.is_in_place()

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
        if not self._takes_requests():
            refusal = TRY_AGAIN, "restarting"
        elif self._doors.is_closed_to(socket):
            refusal = REFUSED, NOT_LOCAL_IN_SHORT
        elif self._doors.is_foreign(socket):
            refusal = REFUSED, "origin not allowed"
        else:
            try:
                principal = await self._doors.principal(socket, target.address, "connect")
                if await self._by_parents(socket, target) is not None:
                    raise NotLetIn(403)
            except NotLetIn as error:
                refusal = REFUSED, str(error)
            except HostStopped:
                refusal = GOING_AWAY, "restarting"
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
        rechecks = self._recheck(socket, connection, target)
        served = Socket(self.host, room, connection, self.limits)
        try:
            await served.run(socket)
        except HostStopped:
            connection.close(GOING_AWAY, "restarting")
        except NOT_STORED as error:
            _tell(error, "%s: a connection has to wait: %s", target.address, error)
            connection.close(TRY_AGAIN, "try again")
        except Exception:
            logger.exception("a connection to %s failed", target.address)
            connection.close(FAILED, "internal error")
        finally:
            if rechecks is not None:
                rechecks.cancel()
            self.rooms.leave(room, connection)
            connection.close()
            await asyncio.wait({writing}, timeout=2)
            writing.cancel()
            await served.left()

    def _recheck(
        self, socket: WebSocket, connection: Connection, target: Target
    ) -> asyncio.Task[None] | None:
        """Ask about an open socket again and again, if that was wished for."""
        every = self._doors.recheck
        if every is None:
            return None

        async def ask() -> None:
            connection.principal = await self._doors.principal(socket, target.address, "connect")

        async def close() -> None:
            why = await rechecking.refused(ask, every, f"a connection to {target.address}")
            if isinstance(why, NotLetIn):
                connection.refuse(str(why))
            else:  # they may come back, and are asked about as they come in
                connection.close(FAILED, "internal error")

        return asyncio.create_task(close(), name="recheck")

    # --- HTTP ------------------------------------------------------------------------------------

    async def _answer(self, request: Request, arriving: Arriving) -> Response:
        below = _raw_path(request.scope)
        if below == "/healthz":
            return PlainTextResponse("ok")
        if below == "/readyz":
            return await self._answer_readiness()
        if self._doors.is_closed_to(request):
            return JSONResponse({"error": NOT_LOCAL}, 403)
        if self._inspector is not None and below.startswith(f"{INSPECTOR}/"):
            inspecting = self._inspect(request, below.removeprefix(f"{INSPECTOR}/"))
            return await self._or_refused(request, inspecting)
        has_chat, has_inspector = self.page is not None, self._inspector is not None
        if pages.is_page(below, chat=has_chat, inspector=has_inspector):
            paging = self._answer_page(request, self.page or Page(title="outlast"))
            return await self._or_refused(request, paging)
        try:
            target = self._target(request)
        except NoSuchAgent:
            return PlainTextResponse("Invalid request", 400)
        if target is None:
            return PlainTextResponse("Not found", 404)
        if self._doors.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        if request.method == "OPTIONS":
            return self._with_cors(request, Response(status_code=204))
        answering = self._answer_for(request, target, arriving)
        return self._with_cors(request, await self._or_refused(request, answering))

    async def _or_refused(self, request: Request, answering: Awaitable[Response]) -> Response:
        """The answer, or why there is none."""
        try:
            return await answering
        except NotLetIn as refused:
            return refused.response()
        except TooSlow as slow:
            return JSONResponse({"error": str(slow)}, 408, {"connection": "close"})
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except HostStopped:
            return JSONResponse({"error": "restarting"}, 503, {"retry-after": "1"})
        except StoreGone:  # the store has said so, once
            return JSONResponse({"error": "try again later"}, 503, {"retry-after": "30"})
        except NOT_STORED as error:
            _tell(error, "%s %s has to wait: %s", request.method, request.scope["path"], error)
            return not_now()
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _answer_readiness(self) -> Response:
        problem: str | None = "restarting"
        if self._takes_requests():
            problem = await self._readiness.problem(self.host.store)
        if problem is None:
            return PlainTextResponse("ready")
        return PlainTextResponse(f"not ready: {problem}", 503)

    async def _answer_page(self, request: Request, page: Page) -> Response:
        """The page itself is for everybody; what it asks, for those who may come in."""
        path = _raw_path(request.scope)
        if self.token is not None and pages.is_document(path) and self.token.is_in_query(request):
            return self._with_cookie(request, path, self.token)
        if not pages.is_public(path) and self._doors.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)

        async def check() -> None:
            await self._doors.check_operator(request)
            request.state.ask_again = check

        site = pages.Site(
            page,
            self.host,
            self._agents,
            self._prefix,
            self.limits,
            self._activity,
            self._leaving,
            check,
            inspector=self._inspector is not None,
            chat=self.page is not None,
        )
        return await pages.answer(site, request, path)

    async def _answer_for(self, request: Request, target: Target, arriving: Arriving) -> Response:
        def ask() -> Any:
            return self._doors.principal(request, target.address, "request")

        request.state.principal = await ask()
        request.state.ask_again = ask
        request.state.leaving = self._leaving
        # Before the agent is held: a slow upload does not keep it in memory.
        await arriving.read_ahead(most_of(target, self.limits))
        answered = await self._by_parents(request, target)
        if answered is not None:
            return answered
        request.state.readers = self.readers
        request.state.base = self.base_of(request.scope, target)
        return await answer(self.host, request, target, self.limits)

    async def _inspect(self, request: Request, what: str) -> Response:
        assert self._inspector is not None
        if self._doors.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        await self._doors.check_operator(request)
        return await self._inspector.answer(request, what)

    def _with_cookie(self, request: Request, path: str, token: Token) -> Response:
        """The same page, without the token in its address."""
        root = quote(request.scope.get("root_path", ""))
        left = [each for each in request.query_params.multi_items() if each[0] != PARAMETER]
        query = f"?{urlencode(left)}" if left else ""
        headers = {
            **pages.HEADERS,
            "location": f"{root}{path}{query}",
            "set-cookie": token.cookie(request, f"{root}{pages.OURS}"),
            "cache-control": "no-store",
        }
        return Response(status_code=303, headers=headers)

    def _failed(self, what: str, connection: HTTPConnection) -> str:
        """Log the exception that is being handled; what is said of it to those outside."""
        id = self.host.ids.new("error")
        logger.exception("%s %s failed (%s)", what, connection.scope["path"], id)
        return f"internal error ({id})"

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and self._doors.origins:
            response.headers["access-control-allow-origin"] = (
                "*" if "*" in self._doors.origins else origin
            )
            response.headers["access-control-allow-methods"] = "GET, POST, DELETE, HEAD, OPTIONS"
            response.headers["access-control-allow-headers"] = (
                request.headers.get("access-control-request-headers") or "*"
            )
            response.headers["access-control-max-age"] = "86400"
            response.headers["vary"] = "origin"
        return response


def _tell(error: Exception, text: str, *arguments: object) -> None:
    """Log why somebody has to wait; a store that does not answer has said so itself."""
    level = logging.INFO if isinstance(error, StoreUnavailable) else logging.WARNING
    logger.log(level, text, *arguments)


def _inspector(app: App) -> Inspector:
    from outlast.server.pages.inspector import Inspector

    return Inspector(app)


def _raw_path(scope: Scope) -> str:
    """The path below where the application is mounted, still percent-encoded."""
    raw = scope.get("raw_path")
    text = raw.decode("latin-1") if raw else quote(scope["path"])
    text = text.partition("?")[0]
    root = quote(scope.get("root_path", ""))
    return text.removeprefix(root) if root else text
