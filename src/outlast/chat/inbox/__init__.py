"""The inbox: everything that the agent was asked, in order, accepted durably before the caller hears of it.

* `inbox`: the entries of one agent, and every change of one; `sql`: their rows and statements.
* `origin`: where requests come from, as data; `concurrency`: what becomes of messages that arrive together.

An entry is accepted, claimed by a turn, and ended exactly once. Only `turn.settle` ends one.
"""
