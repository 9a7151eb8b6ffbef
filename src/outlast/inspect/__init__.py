"""Reading a store: agents, turns, incidents, and what happened to them. Only `offline` and `fork` write.

**What it promises.** Reading is safe at any time: next to a running host, after its process died, and with
damaged conversations. A SQLite file is opened read-only and without its lock; PostgreSQL on a separate
connection whose transactions are read-only.

**Where to start reading.** `reader` (opening a store), `views` (agents, turns, incidents and the rest, as
plain values), `timeline` (the history of one turn: pure) with its texts in `words`, `batteries` and
`battery_views` (tables of batteries), `offline` (what operators may write to a store that no host has
open).

This package may import every package below the server.
"""
