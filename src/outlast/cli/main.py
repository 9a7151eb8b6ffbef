"""The commands of `outlast`."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.commands import db, develop, inspect, operate, setup, torture
from outlast.cli.load.battery_commands import Commands
from outlast.cli.options import Host, Insecure, LogLevel, Port
from outlast.cli.setup.demo import demo

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich's boxes would take longer than everything else
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
        str | None, typer.Option(help="The store to use instead of the App's own")
    ] = None,
    log_level: LogLevel = "info",
    workers: Annotated[
        int,
        typer.Option(min=1, help="Number of worker processes; more than one requires PostgreSQL"),
    ] = 1,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that a stopping worker has to finish its work")
    ] = 10.0,
    preload: Annotated[
        bool, typer.Option("--preload", help="Import the module once, in the supervisor")
    ] = False,
    insecure: Insecure = False,
    no_supervisor: Annotated[
        bool, typer.Option("--no-supervisor", help="Serve in this process; a crash ends it")
    ] = False,
) -> None:
    """Serve agents over WebSocket and HTTP.

    Without auth, it accepts requests from this machine only, and refuses a public --host unless --insecure is
    given. SIGTERM, Ctrl-C and a closed terminal stop it, SIGUSR2 reloads it. Without a terminal, SIGHUP
    reloads it, too. The exit status is 2 if it cannot start.
    """
    from outlast.cli.serving.settings import Settings
    from outlast.cli.serving.supervisor import supervise
    from outlast.cli.serving.worker import exit_status, serve_alone

    settings = Settings(target, host, port, store, log_level, workers, drain, insecure=insecure)
    if no_supervisor:
        raise typer.Exit(exit_status(lambda: serve_alone(settings)))
    raise typer.Exit(exit_status(lambda: supervise(settings, preload=preload)))


app.command()(setup.init)
app.command()(setup.doctor)
app.command()(develop.dev)
app.command()(develop.chat)
app.add_typer(inspect.inspect, name="inspect")
app.command()(inspect.explain)
app.add_typer(operate.incidents, name="incidents")
app.command()(operate.cancel)
app.command()(operate.release)
app.add_typer(db.db, name="db")
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)(torture.torture)


if __name__ == "__main__":
    app()
