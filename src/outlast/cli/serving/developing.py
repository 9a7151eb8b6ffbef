"""What a worker tells: how to get in, and in `outlast dev` what it serves, and what it has recovered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from outlast.cli.serving.settings import Settings
from outlast.host.causes import VARIABLE


def prepare(application: Any, settings: Settings) -> None:
    """Before it is served."""
    from outlast.server.pages.pages import Page

    application.use_inspector()
    is_alone = settings.host in ("127.0.0.1", "localhost", "::1")
    application.page = application.page or Page(dev=is_alone)
    application.host.events.subscribe("chat:recovery:decision", recovered)
    if VARIABLE in os.environ:
        _say("reloaded")
    else:
        tell(served(application, settings))


def tell(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


def links(application: Any, settings: Settings) -> list[str]:
    """The pages, with the token that they take."""
    at, token = where(settings), application.token
    pages = {"chat page": f"{at}/"} if application.page is not None else {}
    if application.has_inspector:
        pages["inspector"] = f"{at}/inspect"
    return [
        f"{name}: {each if token is None else token.link(each)}" for name, each in pages.items()
    ]


def how_to_get_in(application: Any, settings: Settings) -> list[str]:
    """The same, for whoever has started a server that is not `outlast dev`; once."""
    is_told = settings.dev or not settings.tells_links or VARIABLE in os.environ
    return [] if is_told or application.token is None else links(application, settings)


def served(application: Any, settings: Settings) -> list[str]:
    """What is served, and how to talk to it."""
    from outlast.server.routing import kebab

    lines = [f"listening on {settings.host or '*'}, port {settings.port}"]
    at = (
        "" if (settings.host, settings.port) == ("127.0.0.1", 8000) else f" --url {where(settings)}"
    )
    for each in application.agents:
        name = kebab(each.__name__)
        talk = f"   outlast chat {name} NAME{at}" if hasattr(each, "save_messages") else ""
        lines.append(f"{each.__name__}: {where(settings)}/agents/{name}/NAME{talk}")
    return [*lines, *links(application, settings)]


def where(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def recovered(event: Any) -> None:
    """A turn was interrupted, by a reload or by anything else, and this is what becomes of it."""
    from outlast.inspect.words import decided

    by = {"deploy": "the reload", "stalled": "its model", "oom": "a lack of memory"}
    cause = by.get(event.cause, f"a death ({event.cause})")
    what = decided(event.action)
    _say(
        f"{event.agent} was interrupted by {cause} in {event.request_id}. {what}"
        f" (row {event.row}: {event.why}; outlast explain {event.request_id})"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"outlast: {text}\n")
    sys.stderr.flush()
