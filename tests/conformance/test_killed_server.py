"""A server that is killed while pages are open: they come back by themselves, with every word once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.browser import Browser, Page, answer, spoken, text_of, words
from conformance.served import serving

LONG = 600  # words of the answer: six seconds


@pytest.mark.parametrize("moment", [3, 25])
def test_pages_come_back_and_agree_after_the_server_was_killed(
    browser: Browser, tmp_path: Path, moment: int
) -> None:
    with serving(tmp_path) as server:
        a, b = (browser.open(server.host, "it", label) for label in "AB")
        a.send(f"say {LONG} words every 10ms", id="u1")
        for page in (a, b):
            page.until_words(moment)
        server.kill()
        for page in (a, b):
            page.until(lambda page=page: page.logged("closed"), "the connection to be lost")
        seen = max((answer(screen["messages"]) for screen in _screens(a, b)), key=len)
        assert moment <= len(seen.split()) < LONG, "it was killed in the middle"
        server.start()

        server.until(lambda: not server.is_answering("it"), "the turn to be over")
        stored = server.messages("it")
        for page in (a, b):
            page.until(
                lambda page=page: (
                    page.has_caught_up
                    and page.is_idle
                    and spoken(page.messages) == spoken(stored)
                    and not _streaming(page.messages)
                ),
                f"what is stored: {spoken(stored)}",
            )
        assert [message["id"] for message in a.messages] == [each["id"] for each in b.messages]
        assert [message["role"] for message in stored] == ["user", "assistant"]
        said = text_of(stored[1])
        assert words(LONG).startswith(said.rstrip())  # each word once, in its place
        assert said.startswith(seen.rstrip())
        assert not _streaming(stored)
        for screen in _screens(a, b):
            assert words(LONG).startswith(answer(screen["messages"]).rstrip())

        b.send("say 3 words", id="u2")
        for page in (a, b):
            page.until(lambda page=page: len(page.messages) == 4, "the next turn")
            page.until_text(words(3))


def _streaming(messages: list[dict[str, Any]]) -> bool:
    return any(part.get("state") == "streaming" for each in messages for part in each["parts"])


def _screens(*pages: Page) -> list[dict[str, Any]]:
    return [screen for page in pages for screen in page.screens if screen["messages"]]
