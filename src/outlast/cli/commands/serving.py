"""`outlast dev` and `outlast chat`: serving what is being written, and talking to it."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.options import Host, Insecure, LogLevel, Port, Store


def dev(
    target: Annotated[
        str, typer.Argument(help="file.py, module:app, or a folder with agents")
    ] = "agents/",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    store: Store = None,
    log_level: LogLevel = "warning",
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that running turns have when it reloads")
    ] = 1.0,
    insecure: Insecure = False,
    no_reload: Annotated[bool, typer.Option("--no-reload", help="Do not watch the files")] = False,
) -> None:
    """Serve agents while you write them.

    With a chat page, the inspector, and a reload whenever a file has changed.
    A reload in the middle of an answer is an interruption like any other: the answer goes on, and it is said.
    """
    import signal

    from outlast.cli.load import watch as watching
    from outlast.cli.output import complain
    from outlast.cli.serving.processes import RELOAD
    from outlast.cli.serving.settings import Settings
    from outlast.cli.serving.supervisor import supervise
    from outlast.cli.serving.worker import exit_status
    from outlast.cli.setup.models import installed

    watcher = None
    signal.signal(RELOAD, signal.SIG_IGN)  # until there is something to reload
    if not no_reload:
        paths = watching.watched(target)
        if installed("watchfiles") and all(path.is_dir() for path in paths):
            watcher = watching.start(paths)
        elif not installed("watchfiles"):
            complain("nothing is reloaded without watchfiles: pip install 'uvicorn[standard]'")
    settings = Settings(
        target,
        host,
        port,
        store,
        log_level,
        drain=drain,
        dev=True,
        insecure=insecure,
        watches=watcher is not None,
    )
    code = 1
    try:
        code = exit_status(lambda: supervise(settings))
    finally:
        if watcher is not None and watcher.stdin is not None:
            watcher.stdin.close()
    raise typer.Exit(code)


def chat(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="A class of agents")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which of them")] = "default",
    url: Annotated[
        str, typer.Option("--url", envvar="OUTLAST_URL", help="Where it is served")
    ] = "http://127.0.0.1:8000",
    message: Annotated[
        str | None, typer.Option("--message", "-m", help="Say this, show the answer, and leave")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", help="For the server's auth, as in 'authorization: Bearer …'"
        ),
    ] = None,
) -> None:
    """Talk to an agent that is served, in the terminal.

    Answers are streamed, calls of tools are shown and asked about, and what a restart of the server
    interrupts goes on. What is piped in is said line by line.
    """
    from outlast.cli.talk.chat import chat as talk

    pairs = [each.partition(":") for each in header or ()]
    headers = {key.strip(): text.strip() for key, _, text in pairs}
    raise typer.Exit(talk(url, agent, name, message, headers))
