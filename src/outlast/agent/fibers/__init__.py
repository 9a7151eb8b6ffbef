"""Fibers: durable units of work with a snapshot that they may replace.

* `fibers`: the running fibers of an agent; `fiber`: one of them; `managed`: fibers with a lasting record.
* `recovery`: fibers whose process is gone; `backoff`: when to try again; `sql`: rows and statements.
"""
