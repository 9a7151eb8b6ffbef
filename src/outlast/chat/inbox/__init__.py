"""The inbox: all requests to the agent, in order, accepted durably before the caller gets a reply.

* `inbox`: the entries of one agent, and every change of an entry; `sql`: their rows and statements.
* `origin`: the sources of requests, as data; `concurrency`: policies for messages that arrive together.

An entry is accepted, claimed by a turn, and ended exactly once. Only `turn.settle` ends one.
"""
