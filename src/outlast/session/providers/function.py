"""Read-only blocks from a function or a text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from outlast.core.hooks import call_hook


class FunctionProvider:
    """A read-only block whose content a function returns; it may be async.

    ```python
    from outlast.session.providers.function import FunctionProvider

    provider = FunctionProvider(lambda: "It is Thursday.")
    assert await provider.get() == "It is Thursday."
    ```

    A plain function runs on the event loop, as hooks do: one that waits should be async.
    """

    def __init__(self, function: Callable[[], str | Awaitable[str | None] | None]) -> None:
        if not callable(function):
            raise TypeError(f"function must be a function, got {function!r}")
        self._function = function

    async def get(self) -> str | None:
        content: str | None = await call_hook(self._function)
        return content


class TextProvider:
    """A read-only block with a fixed content."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get(self) -> str:
        return self._text
