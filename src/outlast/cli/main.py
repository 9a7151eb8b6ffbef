"""The commands of `outlast`."""

from __future__ import annotations

from typing import Annotated

import typer

from outlast.cli.loading import CannotLoad, load

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Chat agents that outlast the process they run in.",
)


@app.callback()
def main() -> None:
    """Chat agents that outlast the process they run in."""


@app.command()
def serve(
    target: Annotated[str, typer.Argument(help="module:app, file.py:app, or a file with agents")],
    host: Annotated[str, typer.Option(help="The address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on")] = 8000,
    store: Annotated[
        str | None, typer.Option(help="Where everything is stored, instead of what the App says")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="critical, error, warning, info or debug")
    ] = "info",
) -> None:
    """Serve agents over WebSocket and HTTP."""
    import uvicorn

    try:
        application = load(target, store)
    except CannotLoad as error:
        typer.secho(f"outlast: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(2) from None
    uvicorn.run(
        application,
        host=host,
        port=port,
        log_level=log_level,
        ws_max_size=application.limits.frame,
        timeout_graceful_shutdown=10,
    )


if __name__ == "__main__":
    app()
