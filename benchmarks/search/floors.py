"""The engines' own full-text search over one plain table: the best twenty, each with a snippet, as ours."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from benchmarks.search.corpus import Corpus
from benchmarks.search.timing import addresses, timed

if TYPE_CHECKING:
    from benchmarks.meter import Metrics
    from benchmarks.place import Place


async def sqlite(agents: int, messages: int, place: Place, n: int) -> Metrics:
    """FTS5 with its Porter stemmer, ordered by `bm25`."""
    corpus, known = Corpus(), addresses(agents)
    db = sqlite3.connect(place.directory / "floor.db", isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute(
        "create virtual table texts using fts5 (text, agent unindexed, tokenize = 'porter unicode61')"
    )
    db.execute("begin")
    rows = ((text, known[number % agents]) for number, text in enumerate(corpus.texts(messages)))
    db.executemany("insert into texts values (?, ?)", rows)
    db.execute("commit")
    sql = (
        "select rowid, snippet(texts, 0, '**', '**', '…', 32) from texts"
        " where texts match ? and agent = ? order by bm25(texts) limit 20"
    )

    async def search(address: str, query: str) -> object:
        return db.execute(sql, (query, address)).fetchall()

    return await timed(search, known, corpus.queries(n))


async def postgres(agents: int, messages: int, place: Place, n: int) -> Metrics:
    """`tsvector` with the English dictionary and a GIN index, ordered by `ts_rank`."""
    import asyncpg

    corpus, known = Corpus(), addresses(agents)
    connection = await asyncpg.connect(place.postgres)
    await connection.execute(
        "create table texts (id bigint primary key, agent text not null, text text not null, vector tsvector"
        " generated always as (to_tsvector('english', text)) stored)"
    )
    rows = [
        (number, known[number % agents], text) for number, text in enumerate(corpus.texts(messages))
    ]
    await connection.copy_records_to_table("texts", records=rows, columns=["id", "agent", "text"])
    await connection.execute("create index on texts using gin (vector)")
    await connection.execute("create index on texts (agent)")
    await connection.execute("vacuum analyze texts")
    sql = (
        "select id, ts_headline('english', text, $1::text::tsquery) from ("
        " select id, text from texts where vector @@ $1::text::tsquery and agent = $2"
        " order by ts_rank(vector, $1::text::tsquery) desc limit 20) best"
    )

    plain = corpus.queries(n)
    meant = {query: await connection.fetchval(_meant(query), _text(query)) for query in plain}

    async def search(address: str, query: str) -> object:
        return await connection.fetch(sql, meant[query], address)

    try:
        return await timed(search, known, plain)
    finally:
        await connection.close()


def _text(query: str) -> str:
    return query.strip('"').replace("*", ":*")


def _meant(query: str) -> str:
    if query.endswith("*"):
        return "select to_tsquery('english', $1)::text"
    function = "phraseto_tsquery" if query.startswith('"') else "plainto_tsquery"
    return f"select {function}('english', $1)::text"
