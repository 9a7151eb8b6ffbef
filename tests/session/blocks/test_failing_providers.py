"""Providers that hang, raise or return nonsense: their block is left out, and says why."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from block_agents import lone, of, remembering

from outlast.session.blocks.render import rendered
from outlast.session.providers.excerpts import MAX_SHOWN
from support import World


class Provider:
    """Answers with what the function does."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def get(self) -> Any:
        return self._function()


async def hang() -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


async def hang_on() -> str:
    """Ignores its cancellation once."""
    try:
        return await hang()
    except asyncio.CancelledError:
        return await hang()


def fail() -> str:
    raise ValueError("the key is\nwrong " + "x" * 1000)


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def give(value: Any) -> Callable[[], Any]:
    return lambda: value


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def fail_silently() -> None:
    raise Unprintable


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (hang, "TimeoutError: no answer within 5 s"),
        (hang_on, "TimeoutError: no answer within 5 s"),
        (fail, "ValueError: the key is wrong xxx"),
        (fail_silently, "Unprintable: (no message"),
        (cancel_itself, "RuntimeError: the provider was cancelled by its own code"),
        (give(3), "TypeError: get() of the provider of 'docs' must return a str, got int"),
        (
            give(b"bytes"),
            "TypeError: get() of the provider of 'docs' must return a str, got bytes",
        ),
        (
            give({"a": "b"}),
            "TypeError: get() of the provider of 'docs' must return a str, got dict",
        ),
    ],
)
async def test_the_others_are_read_and_the_prompt_says_why(
    function: Callable[[], Any], error: str
) -> None:
    blocks = lone(of("docs", Provider(function)), of("other", "Hello."))
    docs, other = await blocks.read_all()
    assert docs.error is not None
    assert docs.error.startswith(error)
    assert len(docs.error) <= 200
    assert "\n" not in docs.error
    assert (docs.content, docs.tokens, other.content) == ("", 0, "Hello.")
    assert rendered([docs]) == f"[docs could not be read: {docs.error}]"
    assert asyncio.get_running_loop().time() <= 5


@pytest.mark.virtual_time
async def test_providers_are_read_at_the_same_time() -> None:
    await lone(*(of(f"b{n}", Provider(hang)) for n in range(10))).read_all()
    assert asyncio.get_running_loop().time() == 5


async def test_a_failure_is_logged_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [ValueError("a"), ValueError("a"), ValueError("b"), "fine", "fine"]

    def answer() -> str:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return str(given)

    blocks = lone(of("docs", answer))
    caplog.set_level(logging.INFO, "outlast.session")
    for _ in range(5):
        await blocks.read_all()
    assert [record.getMessage() for record in caplog.records] == [
        "Test/t: the context block 'docs' could not be read",
        "Test/t: the context block 'docs' could not be read",
        "Test/t: the context block 'docs' can be read again",
    ]
    assert caplog.records[0].exc_info is not None


async def test_a_huge_content_is_cut_and_blocks_nobody() -> None:
    blocks = lone(of("docs", "word " * 2_000_000, max_tokens=10))
    began = time.process_time()
    block = await blocks.get("docs")
    assert time.process_time() - began < 1
    assert len(block.content) < MAX_SHOWN + 100
    assert block.content.endswith("[9,800,000 more characters are not shown]")
    assert block.tokens >= MAX_SHOWN / 4


async def test_characters_that_no_store_takes_are_replaced() -> None:
    block = await lone(of("docs", "a\0b\ud83dc")).get("docs")
    assert block.content == "a\ufffdb\ufffdc"


async def test_nothing_and_none_are_empty() -> None:
    blocks = await lone(of("a", lambda: None), of("b", "")).read_all()
    assert [(block.content, block.error) for block in blocks] == [("", None), ("", None)]


# --- catalogues ----------------------------------------------------------------------------------


class Catalogue:
    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def get(self) -> Any:
        return self._entries

    def load(self, key: str) -> str | None:
        return None


async def test_a_catalogue_is_listed_with_its_keys() -> None:
    block = await lone(of("docs", Catalogue({"b": "About\nb", "a": None}))).get("docs")
    assert (block.content, block.keys) == ("- b: About b\n- a", ("b", "a"))
    block = await lone(of("docs", Catalogue("my own words"))).get("docs")
    assert (block.content, block.keys) == ("my own words", ())


@pytest.mark.parametrize("entries", [{3: "x"}, {"a": 3}, 7, ["a"]])
async def test_other_catalogues_are_errors(entries: Any) -> None:
    block = await lone(of("docs", Catalogue(entries))).get("docs")
    assert block.error is not None
    assert block.error.startswith("TypeError: get() of the provider of 'docs' must return")


async def test_a_catalogue_is_bounded() -> None:
    many = {f"{n}-{'k' * 5000}": "d" * 5000 for n in range(5000)}
    block = await lone(of("docs", Catalogue(many))).get("docs")
    assert len(block.keys) == 1000
    assert len(block.content) < MAX_SHOWN + 100


# --- init ----------------------------------------------------------------------------------------


class Opened:
    """A provider that is opened before its first use; the first time, that fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def init(self, label: str) -> None:
        self.calls.append(f"init {label}")
        await asyncio.sleep(0)
        if len(self.calls) == 1:
            raise ConnectionError("not yet")

    def get(self) -> str:
        self.calls.append("get")
        return "open"


async def test_init_is_called_once_before_the_first_use() -> None:
    provider = Opened()
    blocks = lone(of("docs", provider))
    assert (await blocks.get("docs")).error == "ConnectionError: not yet"
    both = await asyncio.gather(blocks.get("docs"), blocks.get("docs"))
    assert [block.content for block in both] == ["open", "open"]
    assert provider.calls == ["init docs", "init docs", "get", "get"]


# --- a turn --------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_turn_continues_without_the_block(sqlite_world: World) -> None:
    agent = remembering("Hello.", blocks=[of("docs", Provider(hang)), of("note", "Be kind.")])
    host = await sqlite_world.host(agent)
    turn = await host.get(agent, "r").save_messages("Hi")
    assert turn.status == "completed"
    (request,) = agent.model.requests
    assert "[docs could not be read: TimeoutError: no answer within 5 s]" in request.instructions
    assert "Be kind." in request.instructions
