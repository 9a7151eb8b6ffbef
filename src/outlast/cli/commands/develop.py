"""`outlast dev` and `outlast chat`: serving agents during development, and talking to them."""

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
        float, typer.Option(min=0, help="Seconds that running turns have to finish before a reload")
    ] = 1.0,
    insecure: Insecure = False,
    no_reload: Annotated[bool, typer.Option("--no-reload", help="Do not watch the files")] = False,
) -> None:
    """Serve agents while you write them.

    Adds a chat page and the inspector, and reloads when a file changes.
    A reload in the middle of an answer is an interruption like any other: the answer resumes, and a line
    reports it.
    """
    import signal

    from outlast.cli.models import installed
    from outlast.cli.output import complain
    from outlast.cli.serving import watch as watching
    from outlast.cli.serving.processes import RELOAD
    from outlast.cli.serving.settings import Settings
    from outlast.cli.serving.supervisor import supervise
    from outlast.cli.serving.worker import exit_status

    watcher = None
    signal.signal(RELOAD, signal.SIG_IGN)  # until the supervisor handles it
    if not no_reload:
        paths = watching.watched(target)
        if installed("watchfiles") and all(path.is_dir() for path in paths):
            watcher = watching.start(paths)
        elif not installed("watchfiles"):
            complain(
                "files are not watched because watchfiles is missing: pip install 'uvicorn[standard]'"
            )
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
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The class of the agent")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the agent")] = "default",
    url: Annotated[
        str, typer.Option("--url", envvar="OUTLAST_URL", help="The URL of the server")
    ] = "http://127.0.0.1:8000",
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", help="Send this message, show the answer, and exit"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", help="A header for the server's auth, like 'authorization: Bearer …'"
        ),
    ] = None,
) -> None:
    """Chat with a served agent in the terminal.

    Shows answers as they stream, shows tool calls and asks for approvals, and resumes answers after a
    restart of the server. Piped input is sent line by line.
    """
    from outlast.cli.talk.chat import chat as talk

    pairs = [each.partition(":") for each in header or ()]
    headers = {key.strip(): text.strip() for key, _, text in pairs}
    raise typer.Exit(talk(url, agent, name, message, headers))
