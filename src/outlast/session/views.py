"""What the inspector shows of a session. Imported when somebody looks."""

from __future__ import annotations

from outlast.inspect.battery_views import Column, Detail, View
from outlast.session.prompt import PROMPT
from outlast.session.search import sql
from outlast.store.operations import Query

_BLOCK = "CASE WHEN key = '' THEN label ELSE label || '/' || key END"
_TOKENS = "(length({0}) + 3) / 4"  # the session's own estimate also counts words, which SQL cannot

BLOCKS = View(
    title="Context blocks",
    columns=[
        Column("Block", "code"),
        Column("Content"),
        Column("Tokens, about", "number"),
        Column("Written", "time"),
    ],
    query=Query.same(
        f"""
        SELECT {_BLOCK}, content, {_TOKENS.format("content")}, at FROM session_blocks
        WHERE agent = ? ORDER BY label, key LIMIT ?
        """
    ),
    detail=Detail(
        columns=[
            Column("Label", "code"),
            Column("Key", "code"),
            Column("Description"),
            Column("Tokens, about", "number"),
            Column("Written", "time"),
            Column("Content"),
        ],
        query=Query.same(
            f"""
            SELECT label, key, description, {_TOKENS.format("content")}, at, content
            FROM session_blocks WHERE agent = ? AND {_BLOCK} = ?
            """
        ),
    ),
    none="No block is stored. Blocks of other providers, such as files, are not in the store.",
)

SUMMARIES = View(
    title="Summaries",
    columns=[
        Column("No.", "number"),
        Column("Summary"),
        Column("Tokens it stands for", "number"),
        Column("Tokens, about", "number"),
        Column("Written", "time"),
    ],
    query=Query.same(
        f"""
        SELECT number, summary, tokens, {_TOKENS.format("summary")}, at FROM session_overlays
        WHERE agent = ? ORDER BY number DESC LIMIT ?
        """
    ),
    detail=Detail(
        columns=[
            Column("First message", "code"),
            Column("Last message", "code"),
            Column("Tokens it stands for", "number"),
            Column("Tokens, about", "number"),
            Column("Written", "time"),
            Column("Summary"),
        ],
        query=Query.same(
            f"""
            SELECT first, last, tokens, {_TOKENS.format("summary")}, at, summary
            FROM session_overlays WHERE agent = ? AND CAST(number AS TEXT) = ?
            """
        ),
    ),
    none="No message is summarised: the model sees the conversation as it is.",
)


def _prompt(where: str) -> Query:
    def written(text: str) -> str:
        return f"SELECT name, {text}, {_TOKENS.format(text)} FROM facts WHERE agent = ? AND {where}"

    sqlite, postgres = written("json_extract(value, '$.text')"), written("(value::json ->> 'text')")
    return Query(sqlite, Query.same(postgres).postgres)


PROMPTS = View(
    title="Frozen prompt",
    columns=[Column("Fact", "code"), Column("Text"), Column("Tokens, about", "number")],
    query=_prompt(f"name = '{PROMPT}' AND value <> 'null' LIMIT ?"),
    detail=Detail(
        columns=[Column("Fact", "code"), Column("Text"), Column("Tokens, about", "number")],
        query=_prompt("name = ?"),
    ),
    none="No prompt is stored: with_cached_prompt() is off, or there was no turn yet.",
)


def _usage() -> Query:
    counted = ("inputTokens", "cachedInputTokens", "cacheWriteTokens", "outputTokens")

    def written(value: str) -> str:
        values = ", ".join(value.format(name=name) for name in counted)
        return (
            f"SELECT id, turn, {values}, created_at FROM messages"
            " WHERE agent = ? AND role = 'assistant' ORDER BY number DESC LIMIT ?"
        )

    sqlite = written("json_extract(body, '$.metadata.usage.{name}')")
    postgres = written("CAST(body::json #>> '{{metadata,usage,{name}}}' AS bigint)")
    return Query(sqlite, Query.same(postgres).postgres)


USAGE = View(
    title="Tokens of answers",
    columns=[
        Column("Answer", "code"),
        Column("Turn", "turn"),
        Column("Input", "number"),
        Column("From the cache", "number"),
        Column("Into the cache", "number"),
        Column("Output", "number"),
        Column("Stored", "time"),
    ],
    query=_usage(),
    is_live=False,
    none="It has not answered yet.",
)

INDEX = View(
    title="Search index",
    columns=[
        Column("State", "state"),
        Column("Messages", "number"),
        Column("Indexed", "number"),
        Column("Waiting", "number"),
        Column("Analyser", "code"),
    ],
    query=Query.same(
        f"""
        SELECT CASE WHEN known.first <= {sql.ALL} THEN 'done' ELSE 'running' END,
               (SELECT count(*) FROM messages WHERE messages.agent = known.agent),
               (SELECT count(*) FROM session_texts AS texts
                WHERE texts.agent = known.agent AND texts.slice = 0 AND texts.due = 0),
               (SELECT count(*) FROM session_texts AS texts
                WHERE texts.agent = known.agent AND texts.due <> 0),
               known.analyser
        FROM session_indexed AS known WHERE known.agent = ? LIMIT ?
        """
    ),
    is_live=False,
    none="There is no index: with_search() is off. A search reads the newest messages instead.",
)

VIEWS = [PROMPTS, BLOCKS, SUMMARIES, USAGE, INDEX]
