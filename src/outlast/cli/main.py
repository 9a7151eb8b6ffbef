"""The commands of `outlast`."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.commands import inspecting, operating, serving, starting, storing, torturing
from outlast.cli.load.battery_commands import Commands
from outlast.cli.options import Host, Insecure, LogLevel, Port
from outlast.cli.setup.demo import demo

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # boxes around the help would take longer than all the rest
    help="Chat agents that outlast the process they run in.",
)


@app.callback()
def main() -> None:
    """Chat agents that outlast the process they run in."""


app.command()(demo)


@app.command()
def serve(
    target: Annotated[str, typer.Argument(help="module:app, file.py, or a folder with agents")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    store: Annotated[
        str | None, typer.Option(help="Where everything is stored, instead of what the App says")
    ] = None,
    log_level: LogLevel = "info",
    workers: Annotated[
        int, typer.Option(min=1, help="How many processes serve; several need PostgreSQL")
    ] = 1,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds in which a worker that is to stop has stopped")
    ] = 10.0,
    preload: Annotated[
        bool, typer.Option("--preload", help="Import the module once, in the supervisor")
    ] = False,
    insecure: Insecure = False,
    no_supervisor: Annotated[
        bool, typer.Option("--no-supervisor", help="Serve in this process: a death ends it")
    ] = False,
) -> None:
    """Serve agents over WebSocket and HTTP.

    Without auth it answers this machine only, and listens on no public --host, unless --insecure is given.
    SIGTERM, Ctrl-C and a closed terminal stop it, SIGUSR2 reloads it. Without a terminal, SIGHUP reloads it,
    too. The exit status is 2 if it cannot be started.
    """
    from outlast.cli.serving.settings import Settings
    from outlast.cli.serving.supervisor import supervise
    from outlast.cli.serving.worker import alone, exit_status

    settings = Settings(target, host, port, store, log_level, workers, drain, insecure=insecure)
    if no_supervisor:
        raise typer.Exit(exit_status(lambda: alone(settings)))
    raise typer.Exit(exit_status(lambda: supervise(settings, preload=preload)))


app.command()(starting.init)
app.command()(starting.doctor)
app.command()(serving.dev)
app.command()(serving.chat)
app.add_typer(inspecting.inspect, name="inspect")
app.command()(inspecting.explain)
app.add_typer(operating.incidents, name="incidents")
app.command()(operating.cancel)
app.command()(operating.release)
app.add_typer(storing.db, name="db")
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)(torturing.torture)


if __name__ == "__main__":
    app()
