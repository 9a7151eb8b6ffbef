"""Where everything durable lives: two engines behind one interface.

**What it promises.** A *batch* is the writes of one agent that belong together; it is committed whole or
not at all. Batches of one agent become durable in the order in which they were handed over, and only as a
prefix. Whoever waits for a batch is told after its COMMIT, and cannot cancel it: handed over means it will
be tried. A batch that fails is undone alone; its neighbours in the same transaction are unharmed, and what
was queued behind it for the same agent fails with it.

**How.** Agents hand batches to the one writer of the store. It writes whatever has queued in one
transaction. A batch is *typed operations* (`operations.Statement` with arguments), not SQL text, so that a
group becomes a few set-based statements. In each transaction, and per agent, one statement is fence, order
check and outcome marker: it advances `commit_no` where epoch and owner match.

**Where to start reading.** `operations` (statements, batches, the fence), `grouping` (pure: which
operations can share a statement), `base` (the queue, and what both engines have in common), then the engines,
`sqlite` and `postgres`. A `schema` is numbered migrations: those of the foundation stand in `sql/`, those of
a battery with the battery; `upgrade` (pure) says what a store still needs, and `catalogue` what it has.
`url` opens a store, `copying` copies one.

This package may import `core` and nothing else of outlast. SQL about fibers, storage and so on stands with
their owners; the tables of the foundation themselves stand here, in `sql/`.
"""
