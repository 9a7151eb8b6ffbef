"""Looking inside a store: what is there, and what has become of it. Nothing here writes, but `offline`.

**What it promises.** Looking is safe at any time: beside a running host, at a store whose host has died, and
at conversations that are damaged. A SQLite file is opened read-only and without its lock; PostgreSQL on a
connection of its own whose transactions are read-only.

**Where to start reading.** `reading` (opening a store to look at it), `views` (agents, turns, incidents and
the rest, as plain values), `timeline` (what happened in one turn, in words: pure), `offline` (what operators
may write into a store that no host has open).

This package may import everything below the server.
"""
