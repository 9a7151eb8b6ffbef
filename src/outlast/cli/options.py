"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="OUTLAST_STORE",
        metavar="URL",
        help="The store: sqlite:///file.db or postgresql://… (default: ./.outlast/store.db)",
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Accept requests from everyone without auth (never do this in public)"
    ),
]
LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


def _known_level(given: str) -> str:
    if given not in LEVELS:
        raise typer.BadParameter(f"the log level must be one of {', '.join(LEVELS)}, got {given!r}")
    return given


LogLevel = Annotated[
    str,
    typer.Option(
        callback=_known_level,
        metavar="LEVEL",
        help="critical, error, warning, info or debug",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=10_000, help="The maximum number of rows")
]
AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="A class, or a whole address (Class/name)")
]
OptionalAgent = Annotated[
    str | None, typer.Argument(metavar="[AGENT", help="A class, or a whole address (Class/name)")
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The agent's name", show_default=False)
]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME]", help="The agent's name", show_default=False)
]
TurnArgument = Annotated[
    str, typer.Argument(metavar="TURN", help="The id of a turn, or the beginning of one")
]
Direct = Annotated[
    bool,
    typer.Option(
        "--direct", help="Write to PostgreSQL even if no host on this machine has it open"
    ),
]
