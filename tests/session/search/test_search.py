"""A table of queries, with the same answers on both engines, with the index and without."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from searching import Conversation, conversation, message, searching

ENGLISH = [
    "Two owls flew over the barn at night.",  # m1
    "The owl is a bird. Owls hunt, and an owl sleeps by day.",  # m2
    "We met in a café near the old barn; the cafe was closed.",  # m3
    "call foo_bar.baz(1) before 3.14, not foo.bar",  # m4
    "日本語を話す人は東京に住む",  # m5
    "東京タワー",  # m6
    "ภาษาไทยสวยงาม",  # m7
    "हिन्दी भाषा सरल है",  # m8
    "هذا كِتَابٌ جديد",  # m9
    "An emoji 🦉 between words",  # m10
    "한국어를 배우다",  # m11
    "night and barn, far away from any other word that matters here, and then an owl",  # m12
]

QUERIES = {
    # stems, rank
    "owl": ["m2", "m1", "m12"],
    "owls": ["m2", "m1", "m12"],
    "sleeping": ["m2"],
    "hunted": ["m2"],
    "universe": [],
    # all words; in a short text, and close together, first
    "barn night": ["m1", "m12"],
    "barn owl night": ["m1", "m12"],
    "owl bird zebra": [],
    # phrases, exactly
    '"two owls"': ["m1"],
    '"two owl"': [],
    '"owls two"': [],
    '"the owl is a bird"': ["m2"],
    # prefixes
    "ow*": ["m2", "m1", "m12"],
    "barn fl*": ["m1"],
    '"over the ba"*': ["m1"],
    # exclusion
    "owl -night": ["m2"],
    'owl -"at night"': ["m2", "m12"],
    "owl -ni*": ["m2"],
    "-owl": [],
    # accents and case
    "CAFÉ": ["m3"],
    "cafe": ["m3"],
    # code and numbers
    "foo_bar.baz(1)": ["m4"],
    "foo.bar": ["m4"],
    "bar_baz": ["m4"],
    "foo.baz": [],
    "3.14": ["m4"],
    "3.15": [],
    # scripts without spaces
    "日本": ["m5"],
    "日本語": ["m5"],
    "本日": [],
    "東京": ["m6", "m5"],
    "東": ["m6", "m5"],
    "む": ["m5"],
    "東京 日本": ["m5"],
    "ไทย": ["m7"],
    "한국어": ["m11"],
    # other scripts
    "हिन्दी": ["m8"],
    "हिन": [],
    "हिन*": ["m8"],
    "كتاب": ["m9"],
    "كِتَابٌ": ["m9"],
    # neither words nor operators
    "🦉": [],
    "🦉 emoji": ["m10"],
    "owl AND bird": ["m2"],
    "owl OR NEAR(": [],
    '"owl': ["m2", "m1", "m12"],
    "words:owl": [],
    "": [],
    "*": [],
    "\0": [],
    "' OR 1=1 --": [],
}


async def test_queries_have_the_same_answers_on_both_engines(store_url: str) -> None:
    async with conversation(store_url, ENGLISH) as talk:
        found = {query: await talk.ids(query) for query in QUERIES}
        scanned = {query: await talk.scanned(query) for query in QUERIES}
    assert found == QUERIES
    assert scanned == QUERIES


async def test_snippets_and_scores_are_the_same_on_both_engines(store_url: str) -> None:
    async with conversation(store_url, ENGLISH) as talk:
        assert await talk.shown("owl") == {
            "m2": "The [owl] is a bird. [Owls] hunt, and an [owl] sleeps by day.",
            "m1": "Two [owls] flew over the barn at night.",
            "m12": "night and barn, far away from any other word that matters here, and then an [owl]",
        }
        assert await talk.shown("東") == {
            "m6": "[東]京タワー",
            "m5": "日本語を話す人は[東]京に住む",
        }
        assert await talk.shown('"foo bar"') == {
            "m4": "call [foo_bar].baz(1) before 3.14, not [foo.bar]"
        }
        (hit,) = await talk.hits("CAFÉ")
        assert hit.snippet.marked("<", ">") == (
            "We met in a <café> near the old barn; the <cafe> was closed."
        )
        assert hit.role == "user"
        assert hit.created_at == datetime.fromtimestamp(3, UTC)
        assert [hit.score for hit in await talk.hits("owls")] == [1.988251, 1.847963, 1.514109]


async def test_a_german_stemmer(store_url: str) -> None:
    texts = ["Die Häuser am See", "Ein Haus und ein Baum", "running"]
    async with conversation(store_url, texts, "german") as talk:
        assert await talk.ids("Hauses") == ["m1", "m2"]
        assert await talk.ids("Häusern") == ["m1", "m2"]
        assert await talk.ids("run") == []
    async with searching(store_url) as store:
        exact = Conversation(store, "A/y", None)
        await exact.add(message("m1", "owls"), message("m2", "owl"))
        assert await exact.ids("owl") == ["m2"]


async def test_a_conversation_is_searched_by_itself(store_url: str) -> None:
    async with searching(store_url) as store:
        mine, other = Conversation(store), Conversation(store, "A/y")
        await mine.add(message("m1", "an owl"))
        await other.add(message("m1", "a cat"), message("m2", "an owl and a cat"))
        assert await mine.ids("owl") == ["m1"]
        assert await mine.ids("cat") == []
        assert await other.ids("owl") == ["m2"]


async def test_agents_whose_words_begin_alike_are_told_apart(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.session.search.sql.token_of", lambda address: "same")
    async with searching(store_url) as store:
        mine, other = Conversation(store), Conversation(store, "A/y")
        await mine.add(message("m1", "a cat"))
        await other.add(message("m1", "an owl"))
        assert await mine.ids("owl") == []
        assert await other.ids("owl") == ["m1"]


async def test_words_that_stand_close_together_come_first(store_url: str) -> None:
    texts = ["a barn at night, then some more words", "a barn, then some more words at night"]
    async with conversation(store_url, texts) as talk:
        assert await talk.ids("barn night") == ["m1", "m2"], "though the other one is newer"
        assert await talk.ids("barn") == ["m2", "m1"]


async def test_the_newest_are_ranked_and_the_best_returned(store_url: str) -> None:
    texts = ["owl owl owl", *("owl and more" for _ in range(250))]
    async with conversation(store_url, texts) as talk:
        assert await talk.ids("owl", 3) == ["m251", "m250", "m249"]
        assert len(await talk.ids("owl", 1000)) == 100
        assert await talk.ids("owl", 0) == []
        assert (await talk.scanned("owl"))[:3] == ["m251", "m250", "m249"]


async def test_tool_outputs_and_file_names_are_found_but_not_reasoning(store_url: str) -> None:
    parts = [
        {"type": "reasoning", "text": "secret thoughts"},
        {"type": "text", "text": "Here it is."},
        {"type": "file", "filename": "owls_report.pdf", "url": "data:zebra"},
        {"type": "tool-look", "input": {"q": "hidden"}, "output": {"bird": ["barn owl", 42, True]}},
        {"type": "tool-look", "errorText": "the disk exploded"},
        {"type": "dynamic-tool", "toolName": "t", "output": "plain words"},
        {"type": "tool-long", "output": "x " * 20_000 + "unseen"},
        "not a part",
    ]
    async with conversation(store_url) as talk:
        await talk.add({"id": "m1", "role": "assistant", "parts": parts})
        while await talk.backfill().step():
            pass
        for query in ("report", '"barn owl 42"', "bird", "exploded", '"plain words"', "here"):
            assert await talk.ids(query) == ["m1"], query
        for query in ("secret", "zebra", "hidden", "unseen", "true"):
            assert await talk.ids(query) == [], query
        await talk.add({"id": "m2", "role": "user"}, {"id": "m3", "role": "user", "parts": "odd"})
        assert await talk.ids("odd") == []
