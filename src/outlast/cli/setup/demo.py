"""`outlast demo`: a chat page in the browser, and a server to kill."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.serving.sockets import CannotListen, listen

if TYPE_CHECKING:
    from outlast.demo.settings import DemoSettings

HOST = "127.0.0.1"
PORTS = range(8000, 8050)  # the first free one is used, unless --port is given
OPENER = """
import os, sys, time, urllib.request, webbrowser
address, left = sys.argv[1], 100
while left:
    left -= 1
    try:
        urllib.request.urlopen(address + "/readyz", timeout=5).close()
        break
    except OSError:
        time.sleep(0.2)
webbrowser.open(os.environ['OUTLAST_LINK'])
"""


def demo(
    model: Annotated[
        str | None,
        typer.Option(help="A model instead of the embedded one: openai:gpt-5-mini, …, or local"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port to listen on")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the page in a browser")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="The store to use instead of .outlast/demo.db")
    ] = None,
) -> None:
    """Chat in the browser, kill the server in mid-sentence, and watch the sentence finish.

    It needs no key and no network. With OPENAI_API_KEY, ANTHROPIC_API_KEY or GOOGLE_API_KEY set, or with
    --model, that model answers. --model local runs a real model on this machine: a download of 93 MB, once.
    """
    from outlast.cli.serving.access import keep_token
    from outlast.cli.serving.settings import Settings
    from outlast.cli.serving.supervisor import supervise
    from outlast.cli.serving.worker import USAGE, complain, exit_status
    from outlast.demo.local_model import NAME, LocalModelError
    from outlast.demo.settings import EMBEDDED, LOCAL, DemoSettings, model_for
    from outlast.server.access.token import Token

    wanted = DemoSettings(
        model_for(model, os.environ), Path(".outlast").resolve(), DemoSettings.read().pace
    )
    chosen = free_port() if port is None else port
    wanted.folder.mkdir(parents=True, exist_ok=True)
    address = f"http://{HOST}:{chosen}"
    names = {EMBEDDED: "the embedded model", LOCAL: f"{NAME}, on this machine"}
    who = names.get(wanted.model, wanted.model)
    settings = Settings(
        "outlast.demo.app:app",
        HOST,
        chosen,
        store,
        log_level="warning",
        drain=2.0,
        prints_links=False,
    )

    def serve(wanted: DemoSettings) -> int:
        os.environ.update(wanted.variables())
        keep_token()
        link = Token().link(f"{address}/")
        typer.echo(f"\n  outlast demo, answered by {who}\n\n  {link}\n\n  Press Ctrl-C to stop.\n")
        if not no_browser and has_browser():
            _open(address, link)
        return supervise(settings)

    try:
        with _local_url(wanted) as url:
            raise typer.Exit(exit_status(partial(serve, replace(wanted, url=url))))
    except LocalModelError as error:
        complain(str(error))
        raise typer.Exit(USAGE) from None


@contextlib.contextmanager
def _local_url(wanted: DemoSettings) -> Iterator[str]:
    """Run the local model if it is wanted, and yield its URL; otherwise ""."""
    from outlast.demo.local_model import LocalModel
    from outlast.demo.settings import LOCAL

    if wanted.model != LOCAL:
        yield ""
        return
    with LocalModel(say=lambda text: typer.echo(f"  {text} …")) as local:
        yield local.url


def free_port() -> int:
    """Return the first free port of our range."""
    for port in PORTS:
        with contextlib.suppress(CannotListen):
            for each in listen(HOST, port):
                each.close()
            return port
    with socket.socket() as any_port:
        any_port.bind((HOST, 0))
        return int(any_port.getsockname()[1])


def has_browser() -> bool:
    """Return whether a graphical browser is available: one in the terminal would occupy it."""
    if sys.platform == "darwin":
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _open(address: str, link: str) -> None:
    """Open the page once it is served, in another process: this one forks and must have only one thread."""
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-c", OPENER, address],
            env={**os.environ, "OUTLAST_LINK": link},  # hidden from process listings
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
