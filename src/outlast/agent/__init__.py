"""The base class of every agent, and the parts that it is made of.

* `agent`: the class that users subclass. Each method delegates to the part that implements it.
* `part`: one concern of one agent in memory, and the ordered list of parts; `battery`: a feature as data.
* `commit`: writes that become durable together, and their effects; `receipts`: a record of completed work.
* `fibers`, `schedules`, `state`, `subagents`: the parts of every agent.
* `admission`: durable work started by other durable work; `distant_alarms`: alarms after a clock change.
* `rpc`, `gateway`, `notices`: the interface to servers; `keepalive`: leases; `events`: the events of agents.

May import `core`, `store` and `host`. Start with `commit`, then `part`, then `agent`.
"""
