"""Random texts and queries: nothing raises, and the index finds what reading the messages finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from searching import Conversation, conversation, message, searching

from outlast.session.search.search import SearchIndex
from outlast.store.base import Store

LATIN = "owl owls owl's Owl hunting hunted hunt café cafe a b 1 foo_bar x.y ﬁ ½"
OTHERS = "日本語 日本 本 語 ภาษา ไทย 한국어 हिन्दी كِتاب 🦉 --"
WORDS = st.sampled_from([*LATIN.split(), *OTHERS.split(), "日本 語", "\n"])
TEXTS = st.lists(WORDS | st.text(max_size=6), max_size=12).map(" ".join) | st.text(max_size=40)
SYNTAX = st.sampled_from(
    ['"', "-", "*", "'", "(", ")", "\0", ":", "&", "|", "!", "<->", "\\", " OR ", " NOT "]
)
QUERIES = st.lists(WORDS | SYNTAX | st.just(" ") | st.text(max_size=3), min_size=1, max_size=6).map(
    "".join
)
PHRASES = st.lists(WORDS, min_size=1, max_size=3).map(lambda words: f'"{" ".join(words)}"')
PREFIXES = WORDS.map(lambda word: f"{word[:2]}*")
SEARCHES = st.lists(QUERIES | PHRASES | PREFIXES | WORDS, min_size=1, max_size=6)


async def check(store: Store, address: str, texts: list[str], queries: list[str]) -> None:
    talk = Conversation(store, address)
    await talk.add(*(message(f"m{number}", text) for number, text in enumerate(texts)))
    without = SearchIndex(store, address, has_tables=False)
    for query in queries:
        found = await talk.index.search(query)
        assert found == await without.search(query), query
        for hit in found:
            for first, last in hit.snippet.marks:
                assert 0 <= first < last <= len(hit.snippet.text)


async def in_thread(examples: Callable[[Callable[[Awaitable[None]], None]], None]) -> None:
    """Hypothesis is not async: it runs in a thread, and each example on this loop."""
    loop = asyncio.get_running_loop()

    def wait(work: Awaitable[None]) -> None:
        async def awaited() -> None:
            await work

        asyncio.run_coroutine_threadsafe(awaited(), loop).result()

    await asyncio.to_thread(examples, wait)


async def test_the_index_finds_what_reading_the_messages_finds(store_url: str) -> None:
    addresses: Iterator[str] = (f"A/{number}" for number in count())
    async with searching(store_url) as store:

        def examples(wait: Callable[[Awaitable[None]], None]) -> None:
            @settings(max_examples=150, suppress_health_check=list(HealthCheck))
            @given(st.lists(TEXTS, min_size=1, max_size=5), SEARCHES)
            def each(texts: list[str], queries: list[str]) -> None:
                wait(check(store, next(addresses), texts, queries))

            each()

        await in_thread(examples)


async def test_huge_queries_and_texts(store_url: str) -> None:
    async with conversation(store_url, ["owl " * 2_000, "an owl\0with a NUL " + "\ud83d"]) as talk:
        await talk.backfill().run()
        for query in (
            "owl " * 250_000,
            '"' * 1_000_000,
            "x" * 1_000_000,
            "-" * 1_000_000,
            "日" * 1_000_000,
        ):
            assert await talk.ids(query) in (["m1", "m2"], [])
        assert await talk.ids("owl*" * 10_000) == ["m1"], "a phrase of 32 words"
        assert await talk.ids("NUL") == ["m2"]


async def test_a_message_of_a_megabyte_is_found(store_url: str) -> None:
    texts = [
        "日本語を話す" * 5_000 + "東京",
        "x" * 500_000 + " needle",
        "é" * 60 + " " + "wörter " * 40_000,
    ]
    async with conversation(store_url, texts) as talk:
        await talk.backfill().run()
        assert await talk.ids("東京") == ["m1"]
        assert await talk.ids("needle") == ["m2"]
        assert await talk.ids("worter") == ["m3"]
        assert await talk.scanned("東京") == ["m1"]
