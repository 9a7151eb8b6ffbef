"""`Auth`: authentication of requests, and its repetition for connections that stay open."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from outlast.core.clock import seconds

Check = Callable[[HTTPConnection], Any]
Authorize = Callable[[Any, Any, str], Any]


class AccessDenied(Exception):
    """`auth` did not identify the client (401), or `authorize` denied the action (403)."""

    def __init__(self, status: int, text: str | None = None) -> None:
        super().__init__(text or ("unauthorized" if status == 401 else "forbidden"))
        self.status = status

    def response(self) -> Response:
        return JSONResponse({"error": str(self)}, self.status)


class Auth:
    """Authenticates requests, and repeats the check for connections that stay open.

    ```python
    from datetime import timedelta

    from outlast import App, Auth, Think
    from outlast.testing import ScriptedModel

    class Assistant(Think):
        model = ScriptedModel("Hello!")

    sessions = {"1234": "alice"}

    def who(connection):
        return sessions.get(connection.cookies.get("session"))

    app = App(agents=[Assistant], store="sqlite:///chat.db", auth=Auth(who, recheck=timedelta(minutes=5)))
    ```

    `check` receives each request or handshake and returns the principal; None refuses. With `recheck`
    (seconds, or a `timedelta`), `check` and `authorize` run again for each WebSocket and event stream that
    has been open for that long, with the request that opened it. If they refuse, the connection is closed;
    its turn continues.
    """

    def __init__(self, check: Check, *, recheck: float | timedelta | None = None) -> None:
        if not callable(check):
            raise TypeError(f"check must be a function that takes a connection, got {check!r}")
        self.check = check
        self.recheck = None if recheck is None else seconds(recheck, "recheck")
        if self.recheck == 0:
            raise ValueError(f"recheck must be more than 0 seconds, got {recheck!r}")
