"""What a worker prints: how to reach it, and in `outlast dev` what it serves and what it recovered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from outlast.cli.serving.settings import Settings
from outlast.host.causes import VARIABLE

_CAUSES = {
    "cancelled": "a cancellation",
    "crashed": "a crash",
    "deploy": "the reload",
    "evicted": "its eviction",
    "oom": "a lack of memory",
    "stalled": "its model",
}


def prepare(application: Any, settings: Settings) -> None:
    """Configure the application for `outlast dev`, and print what it serves."""
    from outlast.server.pages.pages import Page

    application.use_inspector()
    is_alone = settings.host in ("127.0.0.1", "localhost", "::1")
    application.page = application.page or Page(dev=is_alone)
    application.host.events.subscribe("chat:recovery:decision", print_recovery)
    if VARIABLE in os.environ:
        _say("reloaded")
    else:
        print_lines(served_lines(application, settings))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


def links(application: Any, settings: Settings) -> list[str]:
    """Return the URLs of the pages, including the token."""
    at, token = base_url(settings), application.token
    pages = {"chat page": f"{at}/"} if application.page is not None else {}
    if application.has_inspector:
        pages["inspector"] = f"{at}/inspect"
    return [
        f"{name}: {each if token is None else token.link(each)}" for name, each in pages.items()
    ]


def access_lines(application: Any, settings: Settings) -> list[str]:
    """Return the same for a server that is not `outlast dev`, once."""
    is_printed = settings.dev or not settings.prints_links or VARIABLE in os.environ
    return [] if is_printed or application.token is None else links(application, settings)


def served_lines(application: Any, settings: Settings) -> list[str]:
    """Return the lines about what is served and how to talk to it."""
    from outlast.server.routing import kebab

    lines = [f"listening on {settings.host or '*'}, port {settings.port}"]
    at = (
        ""
        if (settings.host, settings.port) == ("127.0.0.1", 8000)
        else f" --url {base_url(settings)}"
    )
    for each in application.agents:
        name = kebab(each.__name__)
        talk = f"   outlast chat {name} NAME{at}" if hasattr(each, "save_messages") else ""
        lines.append(f"{each.__name__}: {base_url(settings)}/agents/{name}/NAME{talk}")
    return [*lines, *links(application, settings)]


def base_url(settings: Settings) -> str:
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def print_recovery(event: Any) -> None:
    """Print how a turn that was interrupted, by a reload or otherwise, is recovered."""
    from outlast.inspect.words import decided

    cause = _CAUSES.get(event.cause, "an unknown cause")
    what = decided(event.action)
    _say(
        f"{event.agent} was interrupted by {cause} in {event.request_id}. {what}"
        f" (row {event.row}: {event.why}; outlast explain {event.request_id})"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"outlast: {text}\n")
    sys.stderr.flush()
