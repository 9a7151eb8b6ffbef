"""Full-text search of an agent's conversation, with the same answers on SQLite and PostgreSQL.

The engines only keep lists of words; what a word is (`words`), what a query means (`query`), which messages
match it how well (`rank`) and what is shown of them (`snippet`) is decided here. `writes` has the operations
that index messages in the commit that stores them, `backfill` indexes the rest in the background, and `scan`
finds the same without an index. `search.SearchIndex` is the way in.
"""
