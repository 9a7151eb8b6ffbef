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
from outlast.core.hooks import call_hook
from outlast.host import causes
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.server.access import recheck
from outlast.server.access.auth import AccessDenied, Auth, Authorize, Check
from outlast.server.access.policy import NOT_LOCAL, NOT_LOCAL_IN_SHORT, AccessPolicy
from outlast.server.access.token import PARAMETER, Token
from outlast.server.http.deadlines import TimedReceive, TooSlow
from outlast.server.http.event_stream import Readers
from outlast.server.http.readiness import Readiness
from outlast.server.http.routes import most_of, respond
from outlast.server.http.unavailable import NOT_STORED, unavailable
from outlast.server.limits import Limits
from outlast.server.pages import pages
from outlast.server.pages.activity import Activity
from outlast.server.pages.pages import Page
from outlast.server.room.room import Room, Rooms
from outlast.server.routing import PREFIX, NoSuchAgent, Target, path_of, resolve
from outlast.server.socket.connection import REFUSED, TRY_AGAIN, Connection
from outlast.server.socket.transport import FrameTransport
from outlast.server.socket.unread import UnreadFrames
from outlast.server.websocket import Socket

logger = logging.getLogger("outlast.server")

if TYPE_CHECKING:
    from outlast.server.pages.inspector import Inspector

INSPECTOR = "/_outlast/inspect"
FAILED = 1011
GOING_AWAY = 1012  # the server restarts: clients reconnect


class App:
    """Serves agents. An ASGI application, to be run on its own or mounted in another one.

    ```python
    from outlast import App, Think
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    app = App(agents=[Assistant], store="sqlite:///chat.db")
    ```

    `auth` receives each request or handshake and returns the principal, or None to refuse (401); an `Auth`
    repeats the check for connections that stay open. `authorize` decides whether that principal may perform
    an action (`connect`, `request`) on the agent at an address (403). Without `auth`, the server accepts
    requests from its own machine only, unless `insecure` allows everyone. Browsers on other origins are
    refused unless `origins` names them ("*": all). `ui` serves the chat page at `/`: True, or a `Page` that
    configures it.

    `inspector` serves the contents of the store, and a page that shows them at `/inspect`, to principals that
    `authorize` allows to `inspect` (called with no address); without `auth`, to clients that send the
    `token`: this one, or `OUTLAST_TOKEN`, or a new one that is logged at the start.
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
        self.unread = UnreadFrames(self.limits)
        self.readers = Readers(self.limits, lambda: len(self.rooms))
        self.page: Page | None = ui if isinstance(ui, Page) else Page() if ui else None
        self._activity = Activity()
        self._agents = agents
        self._policy = AccessPolicy(auth, authorize, origins, insecure=insecure, token=token)
        self._prefix = prefix
        self.background: set[asyncio.Future[Any]] = set()
        self._inspector = _inspector(self) if inspector else None
        self._is_ready = False
        self._readiness = Readiness()
        self._leaving = asyncio.Event()
        self._stop_at: float | None = None  # on the loop's clock
        self.on_upgrade: Callable[[], None] | None = None  # replaces this process; `serve` sets it
        self.on_failed_start: Callable[[Exception], None] | None = None  # called instead of logging
        self.use_store(store)

    def use_store(self, store: Any) -> None:
        """Use this store. Call it before the application starts."""
        self.store = store
        self.host = Host(self._agents, store, **self._options)
        self.host.audience = self.rooms

    @property
    def agents(self) -> Sequence[type[Any]]:
        """The agent classes that the application serves."""
        return self._agents

    @property
    def has_inspector(self) -> bool:
        return self._inspector is not None

    def use_inspector(self) -> None:
        """Serve the contents of the store, as with `inspector=True`."""
        self._inspector = self._inspector or _inspector(self)

    @property
    def has_auth(self) -> bool:
        """Whether `auth` is set."""
        return self._policy.has_auth

    @property
    def insecure(self) -> bool:
        """Whether everyone is allowed, without `auth`."""
        return self._policy.insecure and not self._policy.has_auth

    @insecure.setter
    def insecure(self, is_insecure: bool) -> None:
        self._policy.insecure = is_insecure

    @property
    def token(self) -> Token | None:
        """The token for the inspector and development requests; None if `auth` decides or both are off."""
        is_needed = self._inspector is not None or (self.page is not None and self.page.dev)
        return self._policy.token if is_needed else None

    # --- starting and stopping -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Start and stop with the application that mounts this one: `FastAPI(lifespan=app.lifespan)`."""
        if self.host.cause is None:
            self.host.cause = causes.from_environment()
            self.host.died_at = causes.died_at_from_environment()
        self.host.on_upgrade = self.host.on_upgrade or self.on_upgrade
        if self.page is not None and self.page.dev:
            self._activity.attach(self.host)
        if self._inspector is not None:
            self._inspector.model_requests.attach(self.host.events)
        await self.host.start()
        if self.token is not None and self.token.is_new:  # nothing else prints it
            at = pages.INSPECT if self._inspector is not None else ""
            logger.warning("no auth is configured: open /%s to see all agents", self.token.link(at))
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
        """Prepare to stop within this time, before waiting for anything.

        Running work records why it is interrupted, for the next process. Event streams end, because their
        readers would delay the stop; they resume where they were.
        """
        time_left = None if within is None else seconds(within, "within")
        if self._leaving.is_set():
            return
        self._leaving.set()
        if time_left is not None:
            self._stop_at = asyncio.get_running_loop().time() + time_left
        await self.host.mark_interruptions(causes.DEPLOY)

    def _time_left(self) -> float | None:
        """Seconds that running work may take; None: the host's own timeout."""
        if self._stop_at is None:
            return None
        left = max(0.0, self._stop_at - asyncio.get_running_loop().time())
        return min(left, self.host._shutdown_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._connect(WebSocket(scope, receive, send), send)
        elif scope["type"] == "http":
            timed_receive = TimedReceive(receive, seconds(self.limits.body_within))
            request = Request(scope, timed_receive)
            response = await self._respond(request, timed_receive)
            ask, every = getattr(request.state, "ask_again", None), self._policy.recheck
            if ask is None or every is None or not isinstance(response, StreamingResponse):
                await response(scope, receive, send)
            else:
                refused = recheck.until_refused(ask, every, f"a reader of {scope['path']}")
                await recheck.stream_until(response, scope, receive, send, refused)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        has_started = False
        try:
            async with self.lifespan():
                has_started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            if has_started or self.on_failed_start is None:
                logger.exception("the application failed to %s", "stop" if has_started else "start")
            else:
                self.on_failed_start(error)
            kind = "shutdown" if has_started else "startup"
            message = str(error) if self.on_failed_start is None else ""
            await send({"type": f"lifespan.{kind}.failed", "message": message})
            return
        await send({"type": "lifespan.shutdown.complete"})

    # --- access --------------------------------------------------------------------------------

    def _target(self, connection: HTTPConnection) -> Target | None:
        return resolve(_raw_path(connection.scope), self._agents, self._prefix)

    async def _ask_parents(self, connection: HTTPConnection, target: Target) -> Response | None:
        """Return the response of a parent in place of its sub-agent, or None if the request may proceed."""
        path = target.address.path
        for depth in range(1, len(path)):
            kind: Any = self.host.classes[path[depth - 1][0]]
            if kind.on_before_sub_agent is Agent.on_before_sub_agent:
                continue
            async with self.host.using(Address(path[:depth]), may_make=True) as parent:
                answer = await call_hook(parent.on_before_sub_agent, connection, *path[depth])  # type: ignore[attr-defined]
            if isinstance(answer, Response):
                return answer
            if answer is False:
                raise AccessDenied(403)
            if answer is not None and answer is not True:
                raise TypeError(
                    f"{kind.__name__}.on_before_sub_agent must return None, False or a Response,"
                    f" got {type(answer).__name__}"
                )
        return None

    # --- WebSockets --------------------------------------------------------------------------------

    def _takes_requests(self) -> bool:
        """False while the server starts or stops, and when the store's files are gone."""
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
        elif self._policy.rejects_remote(socket):
            refusal = REFUSED, NOT_LOCAL_IN_SHORT
        elif self._policy.is_foreign(socket):
            refusal = REFUSED, "origin not allowed"
        else:
            try:
                principal = await self._policy.authorize(socket, target.address, "connect")
                if await self._ask_parents(socket, target) is not None:
                    raise AccessDenied(403)
            except AccessDenied as error:
                refusal = REFUSED, str(error)
            except HostStopped:
                refusal = GOING_AWAY, "restarting"
            except Exception:  # a retry may succeed: clients may reconnect
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
            line=FrameTransport(socket, send),
            unread=self.unread,
            principal=principal,
            max_buffer=self.limits.buffer,
        )
        connection.takes_changes = socket.query_params.get("_delta") == "1"
        await self._serve(socket, connection, target)

    def _is_crowded(self, target: Target) -> bool:
        return self.rooms.count(target.address) >= self.limits.connections_per_agent

    def base_of(self, scope: Scope, target: Target) -> str:
        """Return the path under which a client reaches an agent."""
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
            _log_unavailable(
                error, "%s: closing a connection, its client will retry: %s", target.address, error
            )
            connection.close(TRY_AGAIN, "try again")
        except Exception:
            logger.exception("the connection to %s failed", target.address)
            connection.close(FAILED, "internal error")
        finally:
            if rechecks is not None:
                rechecks.cancel()
            self.rooms.leave(room, connection)
            connection.close()
            await asyncio.wait({writing}, timeout=2)
            writing.cancel()
            await served.close()

    def _recheck(
        self, socket: WebSocket, connection: Connection, target: Target
    ) -> asyncio.Task[None] | None:
        """Recheck the access of an open socket periodically, if `auth` asks for it."""
        every = self._policy.recheck
        if every is None:
            return None

        async def ask() -> None:
            connection.principal = await self._policy.authorize(socket, target.address, "connect")

        async def close() -> None:
            why = await recheck.until_refused(ask, every, f"a connection to {target.address}")
            if isinstance(why, AccessDenied):
                connection.refuse(str(why))
            else:  # clients may reconnect, which checks their access anew
                connection.close(FAILED, "internal error")

        return asyncio.create_task(close(), name="recheck")

    # --- HTTP ------------------------------------------------------------------------------------

    async def _respond(self, request: Request, timed_receive: TimedReceive) -> Response:
        below = _raw_path(request.scope)
        if below == "/healthz":
            return PlainTextResponse("ok")
        if below == "/readyz":
            return await self._respond_readiness()
        if self._policy.rejects_remote(request):
            return JSONResponse({"error": NOT_LOCAL}, 403)
        if self._inspector is not None and below.startswith(f"{INSPECTOR}/"):
            inspecting = self._inspect(request, below.removeprefix(f"{INSPECTOR}/"))
            return await self._or_refused(request, inspecting)
        has_chat, has_inspector = self.page is not None, self._inspector is not None
        if pages.is_page(below, chat=has_chat, inspector=has_inspector):
            paging = self._respond_page(request, self.page or Page(title="outlast"))
            return await self._or_refused(request, paging)
        try:
            target = self._target(request)
        except NoSuchAgent:
            return PlainTextResponse("Invalid request", 400)
        if target is None:
            return PlainTextResponse("Not found", 404)
        if self._policy.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        if request.method == "OPTIONS":
            return self._with_cors(request, Response(status_code=204))
        responding = self._respond_for(request, target, timed_receive)
        return self._with_cors(request, await self._or_refused(request, responding))

    async def _or_refused(self, request: Request, responding: Awaitable[Response]) -> Response:
        """Return the response, or an error response for the exception it raised."""
        try:
            return await responding
        except AccessDenied as refused:
            return refused.response()
        except TooSlow as slow:
            return JSONResponse({"error": str(slow)}, 408, {"connection": "close"})
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except HostStopped:
            return JSONResponse({"error": "restarting"}, 503, {"retry-after": "1"})
        except StoreGone:  # the store logged this once
            return JSONResponse({"error": "try again later"}, 503, {"retry-after": "30"})
        except NOT_STORED as error:
            _log_unavailable(
                error,
                "%s %s failed, its client may retry: %s",
                request.method,
                request.scope["path"],
                error,
            )
            return unavailable()
        except Exception:
            return JSONResponse({"error": self._failed(request.method, request)}, 500)

    async def _respond_readiness(self) -> Response:
        problem: str | None = "restarting"
        if self._takes_requests():
            problem = await self._readiness.problem(self.host.store)
        if problem is None:
            return PlainTextResponse("ready")
        return PlainTextResponse(f"not ready: {problem}", 503)

    async def _respond_page(self, request: Request, page: Page) -> Response:
        """Serve the page to everyone, and the data it requests to those who have access."""
        path = _raw_path(request.scope)
        if self.token is not None and pages.is_document(path) and self.token.is_in_query(request):
            return self._with_cookie(request, path, self.token)
        if not pages.is_public(path) and self._policy.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)

        async def check() -> None:
            await self._policy.check_operator(request)
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
        return await pages.respond(site, request, path)

    async def _respond_for(
        self, request: Request, target: Target, timed_receive: TimedReceive
    ) -> Response:
        def ask() -> Any:
            return self._policy.authorize(request, target.address, "request")

        request.state.principal = await ask()
        request.state.ask_again = ask
        request.state.leaving = self._leaving
        # Before the agent is activated, so that a slow upload does not keep it in memory.
        await timed_receive.read_ahead(most_of(target, self.limits))
        response = await self._ask_parents(request, target)
        if response is not None:
            return response
        request.state.readers = self.readers
        request.state.base = self.base_of(request.scope, target)
        return await respond(self.host, request, target, self.limits)

    async def _inspect(self, request: Request, what: str) -> Response:
        assert self._inspector is not None
        if self._policy.is_foreign(request):
            return JSONResponse({"error": "origin not allowed"}, 403)
        await self._policy.check_operator(request)
        return await self._inspector.respond(request, what)

    def _with_cookie(self, request: Request, path: str, token: Token) -> Response:
        """Redirect to the same page without the token in its URL, and set a cookie instead."""
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
        """Log the current exception and return the text for the client."""
        id = self.host.ids.new("error")
        logger.exception("%s %s failed (%s)", what, connection.scope["path"], id)
        return f"internal error ({id})"

    def _with_cors(self, request: Request, response: Response) -> Response:
        origin = request.headers.get("origin")
        if origin is not None and self._policy.origins:
            response.headers["access-control-allow-origin"] = (
                "*" if "*" in self._policy.origins else origin
            )
            response.headers["access-control-allow-methods"] = "GET, POST, DELETE, HEAD, OPTIONS"
            response.headers["access-control-allow-headers"] = (
                request.headers.get("access-control-request-headers") or "*"
            )
            response.headers["access-control-max-age"] = "86400"
            response.headers["vary"] = "origin"
        return response


def _log_unavailable(error: Exception, text: str, *arguments: object) -> None:
    """Log why a client has to retry. An unreachable store is logged by the store itself."""
    level = logging.INFO if isinstance(error, StoreUnavailable) else logging.WARNING
    logger.log(level, text, *arguments)


def _inspector(app: App) -> Inspector:
    from outlast.server.pages.inspector import Inspector

    return Inspector(app)


def _raw_path(scope: Scope) -> str:
    """Return the path below the mount point of the application, still percent-encoded."""
    raw = scope.get("raw_path")
    text = raw.decode("latin-1") if raw else quote(scope["path"])
    text = text.partition("?")[0]
    root = quote(scope.get("root_path", ""))
    return text.removeprefix(root) if root else text
