"""The seam of an answer whose beginning was handed to the provider as the model's own words. Pure.

Such a model continues in the middle of a word and needs no splicing, with two exceptions.

* **White space at the end.** It is not sent: Anthropic refuses it, and to every model "\\n\\n" at the end
  of a text may be other tokens than the two line ends that it wrote. So the model writes it once more, and
  what is stored already is taken away.
* **An echo.** Mistral's answer begins with what it was handed, and llama.cpp's does unless it is streamed.
  If an answer begins with exactly the text that was sent, it is an echo.

A `PrefillSeam` is used like a `Splicer`.
"""

from __future__ import annotations

from outlast.chat.seam.splice import Kind, Reason, Verdict

_LEAST_ECHO = 16  # characters of a text which no answer begins with twice by chance


def sent_text(stored: str) -> str:
    """Return the stored text as it is sent to the provider."""
    return stored.rstrip()


class PrefillSeam:
    """Joins one continuation to one stored text, of which the provider was handed `sent_text`.

    ```python
    from outlast.chat.seam.prefilled import PrefillSeam

    seam = PrefillSeam("One.\\n")
    assert seam.feed("\\n", now=0) == ""  # it is stored
    assert seam.feed("\\nTwo.", now=9) == "\\nTwo."
    ```

    `echoes`: the provider is known to repeat what it is handed, however short that is.
    """

    def __init__(self, stored: str, *, echoes: bool = False) -> None:
        self.verdict: Verdict | None = None
        self._sent = sent_text(stored)
        self._space = stored[len(self._sent) :]
        self._looks_for_echo = bool(self._sent) and (echoes or len(self._sent) >= _LEAST_ECHO)
        self._echoed = False
        self._held = ""
        self._removed = 0
        self._most = 0
        self._first: float | None = None

    @property
    def due(self) -> None:
        """Always None: nothing has to be shown at a certain time."""
        return

    def feed(self, text: str, now: float) -> str:
        """More of the continuation; returns what may be shown now."""
        if self.verdict is not None:
            return text
        self._first = now if self._first is None else self._first
        self._held += text
        return self._look(now, is_end=False)

    def tick(self, now: float) -> str:
        return ""

    def finish(self, now: float) -> str:
        """The model has ended; returns what may be shown now."""
        return "" if self.verdict is not None else self._look(now, is_end=True)

    def _look(self, now: float, *, is_end: bool) -> str:
        if self._looks_for_echo and self._is_echo_open(is_end):
            return ""
        rest = self._held.lstrip()
        space = self._held[: len(self._held) - len(rest)]
        is_open = self._space.startswith(space) and space != self._space
        if not rest and is_open and not is_end:
            self._most = max(self._most, len(self._held))
            return ""
        return self._decided(now, _without(space, self._space) + rest)

    def _is_echo_open(self, is_end: bool) -> bool:
        """Whether what came so far may be the beginning of an echo. A complete one is taken away."""
        if self._held.startswith(self._sent):
            self._held = self._held[len(self._sent) :]
            self._removed += len(self._sent)
            self._echoed, self._looks_for_echo = True, False
            return False
        self._looks_for_echo = self._sent.startswith(self._held) and not is_end
        return self._looks_for_echo

    def _decided(self, now: float, shown: str) -> str:
        removed = self._removed + len(self._held) - len(shown)
        kind: Kind = "spliced" if removed else "continue"
        reason: Reason = "start_over" if self._echoed else "tail" if removed else "direct"
        self.verdict = Verdict(kind, reason, removed, self._most, now - (self._first or now))
        self._held = ""
        return shown


def _without(space: str, stored: str) -> str:
    """White space, without what is stored of it. Of other white space counts what has more line ends."""
    if space.startswith(stored):
        return space[len(stored) :]
    return space if space.count("\n") > stored.count("\n") else ""
