"""The chat page and the inspector: their files, and the requests they make besides those to agents.

| request | response |
| --- | --- |
| `GET /` | the page |
| `GET /inspect` | the inspector, if it is on |
| `GET /_outlast/ui/{file}` | the files of the pages |
| `GET /_outlast/page` | the agents, and the options of the page |
| `GET /_outlast/conversations?agent=` | the stored conversations, newest first (dev) |
| `GET /_outlast/search?agent=&q=` | messages that contain a text (dev) |
| `GET /_outlast/activity?agent=&name=` | the activity of the host, as server-sent events (dev) |
| `POST /_outlast/kill?pid=` | kills this process with SIGKILL, if it has this pid (dev) |

*dev*: only where the page runs in development mode (`Page(dev=True)`, `outlast demo`), only for requests
that no foreign page can send, and only for principals that may inspect: see `access.policy`.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from outlast.agent.gateway import batteries
from outlast.core.errors import InvalidName
from outlast.host.address import Address
from outlast.host.life.host import Host
from outlast.server.access.provenance import is_address, own_authority
from outlast.server.limits import Limits
from outlast.server.pages import conversations
from outlast.server.pages.activity import Activity
from outlast.server.public import encode
from outlast.server.routing import kebab

OURS = "/_outlast/"
ABOUT = f"{OURS}page"
KEEP_ALIVE = 15.0  # seconds between comments on an idle stream
INDEX = "index.html"
INSPECT = "inspect"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_DOCUMENTS = {"/": INDEX, f"/{INSPECT}": "inspect.html"}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested first message: a button on the empty page."""

    label: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The chat page of an `App`.

    ```python
    from outlast import App, Think
    from outlast.server import Page, Suggestion
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    page = Page(title="Helpdesk", suggestions=[Suggestion("Opening hours", "When are you open?")])
    app = App(agents=[Assistant], store="sqlite:///chat.db", ui=page)
    ```

    `dev` shows the activity of the server, lists the stored conversations, and offers to kill the server:
    never enable it where strangers can reach it. `browser_tools` are tools that the page itself runs:
    `browser_time`.
    """

    title: str = "outlast"
    intro: str = ""
    suggestions: Sequence[Suggestion] = ()
    browser_tools: Sequence[str] = ()
    dev: bool = False
    demo: bool = False
    inspector: str | None = None  # the URL of another inspector


@dataclass(frozen=True, slots=True)
class Site:
    """The context of a page request."""

    page: Page
    host: Host
    agents: Sequence[type[Any]]
    prefix: str
    limits: Limits
    activity: Activity
    leaving: asyncio.Event
    check: Callable[[], Awaitable[None]]  # raises unless the client may see all agents
    inspector: bool = False  # whether it is on
    chat: bool = True  # whether there is a chat page


def is_page(path: str, *, chat: bool = True, inspector: bool = False) -> bool:
    """Return whether this path, below the mount point, belongs to an enabled page."""
    if inspector and (path == f"/{INSPECT}" or (is_public(path) and path.startswith(OURS))):
        return True
    return chat and (path in ("", "/") or path.startswith(OURS))


def is_document(path: str) -> bool:
    """Return whether a browser opens this path as a page."""
    return path in _DOCUMENTS


def is_public(path: str) -> bool:
    """Return whether this path needs no access: the files, and the options of the page."""
    return path in ("", "/", f"/{INSPECT}", ABOUT) or path.startswith(f"{OURS}ui/")


async def respond(site: Site, request: Request, path: str) -> Response:
    """Respond to a request of a page."""
    if path == "":
        return RedirectResponse(f"{request.scope.get('root_path', '')}/")
    if path in _DOCUMENTS or path.startswith(f"{OURS}ui/"):
        name = _DOCUMENTS.get(path) or path.removeprefix(f"{OURS}ui/")
        return _file(name, request.method)
    handler = _HANDLERS.get((request.method, path.removeprefix(OURS)))
    if handler is None:
        return JSONResponse({"error": "Not found"}, 404)
    is_open, answering = handler
    if not is_open:
        refusal = development_problem(site.page, request)
        if refusal is not None:
            return JSONResponse({"error": refusal}, 403)
        await site.check()
    answered: Response = await answering(site, request)
    return answered


def development_problem(page: Page, request: Request) -> str | None:
    """Return why this request may not use development features, or None if it may."""
    if not page.dev:
        return "This server is not in development mode."
    where = own_authority(request.headers)
    if where is None or not is_address(where.name):
        # A foreign name that resolves to this machine would look like the page's own.
        return "Open the page at an IP address or localhost, not at another name."
    return None


# --- files ---------------------------------------------------------------------------------------


@cache
def _files() -> Mapping[str, bytes]:
    """Return the files of the pages, by name."""
    folder = resources.files("outlast.ui")
    found = {each.name: each for each in folder.iterdir()}
    found |= {f"inspect/{each.name}": each for each in (folder / "inspect").iterdir()}
    return {
        name: each.read_bytes()
        for name, each in found.items()
        if each.is_file() and not name.endswith(".py")
    }


def _file(name: str, method: str) -> Response:
    content = _files().get(name)
    if content is None:
        return JSONResponse({"error": "Not found"}, 404)
    if method not in ("GET", "HEAD"):
        return JSONResponse({"error": "Method not allowed"}, 405)
    suffix = name[name.rfind(".") :]
    kind = TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers=HEADERS)


# --- requests of the page ------------------------------------------------------------------------


async def _about(site: Site, request: Request) -> Response:
    page = site.page
    is_operator = True
    try:
        await site.check()
    except Exception:  # the page itself is public
        is_operator = False
    chats = [each for each in site.agents if hasattr(each, "save_messages")]
    return JSONResponse(
        {
            "title": page.title,
            "intro": page.intro,
            "suggestions": [asdict(each) for each in page.suggestions],
            "browserTools": list(page.browser_tools),
            "agents": [_shown(each) for each in chats],
            "prefix": site.prefix,
            "dev": page.dev and is_operator,
            "demo": page.demo,
            "inspector": page.inspector or (INSPECT if site.inspector and is_operator else None),
            "chat": site.chat,
            "limits": {"message": site.limits.message, "messages": site.limits.messages},
            "pid": os.getpid() if page.dev and is_operator else None,
        },
        headers={"cache-control": "no-store"},
    )


def _shown(agent: type[Any]) -> dict[str, Any]:
    """Return a chat agent for the page."""
    has_session = any(each.name == "session" for each in batteries(agent))
    return {"kind": agent.__name__, "path": kebab(agent.__name__), "hasSession": has_session}


def _kind(site: Site, request: Request) -> str | None:
    """Return the class that a request names in the clients' spelling."""
    wanted = request.query_params.get("agent")
    return next((each.__name__ for each in site.agents if kebab(each.__name__) == wanted), None)


async def _conversations(site: Site, request: Request) -> Response:
    kind = _kind(site, request)
    found = [] if kind is None else await conversations.list_stored(site.host.store, kind)
    return JSONResponse({"conversations": found}, headers={"cache-control": "no-store"})


async def _search(site: Site, request: Request) -> Response:
    kind, text = _kind(site, request), request.query_params.get("q", "").strip()
    found = []
    if kind is not None and text:
        found = await conversations.search(site.host.store, kind, text[:200])
    return JSONResponse({"found": found}, headers={"cache-control": "no-store"})


async def _activity(site: Site, request: Request) -> Response:
    kind, name = _kind(site, request), request.query_params.get("name")
    agent = None
    if kind is not None and name is not None:
        try:
            agent = Address.of(kind, name).text
        except InvalidName:
            return JSONResponse({"error": "No such agent."}, 400)
    return StreamingResponse(
        _events(site, agent),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"},
    )


async def _events(site: Site, agent: str | None) -> AsyncIterator[bytes]:
    """Yield events until the reader disconnects or the server stops."""
    reader = site.activity.follow(agent)
    leaving = asyncio.ensure_future(site.leaving.wait())
    following: asyncio.Future[Any] | None = None
    try:
        yield f": {os.getpid()}\n\n".encode()
        while not leaving.done():
            following = following or asyncio.ensure_future(anext(reader))
            await asyncio.wait(
                {following, leaving}, timeout=KEEP_ALIVE, return_when=asyncio.FIRST_COMPLETED
            )
            if following.done():
                yield f"data: {encode(following.result())}\n\n".encode()
                following = None
            elif not leaving.done():
                yield b": \n\n"
    finally:
        leaving.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await reader.aclose()  # type: ignore[attr-defined]


async def _kill(site: Site, request: Request) -> Response:
    """Kill this process without cleanup or response, which is the point.

    A browser resends an unanswered request to the next process, so the request names the process it means.
    """
    wanted = request.query_params.get("pid")
    if wanted is not None and wanted != str(os.getpid()):
        return JSONResponse({"error": "That process is already gone."}, 409)
    os.kill(os.getpid(), signal.SIGKILL)
    return Response(status_code=204)  # never


_HANDLERS: dict[tuple[str, str], tuple[bool, Callable[[Site, Request], Any]]] = {
    ("GET", "page"): (True, _about),
    ("GET", "conversations"): (False, _conversations),
    ("GET", "search"): (False, _search),
    ("GET", "activity"): (False, _activity),
    ("POST", "kill"): (False, _kill),
}
