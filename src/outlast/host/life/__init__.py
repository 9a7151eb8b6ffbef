"""The host itself, and the agents that it has in memory.

**What lives here.** `host` starts and stops, and wakes agents; `activations` keeps at most one live object
per address and evicts or discards it; `activation` is one agent in memory with its fence, tasks and holds;
`family` is a root with its sub-agents, which share one fence; `stub` is the object through which callers
reach an agent.

**What it promises.** Calls reach an agent only after its `on_start` returned. An activation that ended writes
nothing more, and a new one starts after the tasks of the old one unwound. Unfinished work of a discarded
agent is resumed, with growing delays while it keeps failing.

It may import the modules of `host` and `wakeups`. Start with `Host.start`, then `Activations.using`.
"""
