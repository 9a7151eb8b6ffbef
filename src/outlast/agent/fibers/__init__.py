"""Fibers: durable units of work with a snapshot that they may replace.

* `fibers`: those that run; `fiber`: one of them; `managed`: those that are kept after their end.
* `recovery`: rows that no process runs any more; `backoff`: when to try again. `sql`: rows and statements.
"""
