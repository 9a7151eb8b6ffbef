"""The base class of every agent, and the parts that it is made of.

* `agent`: the class that users subclass. Thin: each method leads into the part that owns the matter.
* `part`: one concern of one agent in memory, and the ordered list of them; `battery`: a feature as data.
* `commit`: writes that become durable together, and what follows; `receipts`: work that was done already.
* `fibers`, `schedules`, `state`, `subagents`: the parts of every agent.
* `admission`: durable work that is admitted from inside other durable work; `rpc`, `gateway`: what servers
  call.

May import `core`, `store` and `host`. Start with `commit`, then `part`, then `agent`.
"""
