"""Durable storage: two engines, SQLite and PostgreSQL, behind one interface.

**Promises.** A *batch* is the writes of one agent that belong together; it is committed whole or not at all.
Batches of one agent become durable in the order of submission, and only as a prefix. The outcome of a batch
is reported after its COMMIT. A submitted batch cannot be cancelled. A batch that fails is rolled back alone:
other agents' batches in the same transaction are unaffected, and batches of the same agent queued behind it
fail with it.

**How it works.** Agents submit batches to the store's only writer, which writes all queued batches in one
transaction. A batch consists of *typed operations* (`operations.Statement` with arguments) instead of SQL
text, so that a group becomes a few set-based statements. In each transaction, one statement per agent is
fence, order check and outcome marker: it advances `commit_no` where epoch and owner match.

**Where to start reading.** `operations` (statements, batches, the fence), `grouping` (pure: which
operations can share a statement), `base` (the queue, and the common part of the engines), then the engines,
`sqlite` and `postgres`. A `schema` is a series of numbered migrations: the foundation's are in `sql/`, a
battery's are in the battery; `upgrade` (pure) computes the missing steps, `catalogue` reads which tables
exist. `url` opens a store, `copier` copies one.

This package may import `core` and no other package of outlast. Statements about fibers, storage and so on are
in the modules that own those tables; the tables of the foundation are defined here, in `sql/`.
"""
