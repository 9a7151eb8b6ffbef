"""The base class of every agent, and the parts that it is made of.

`Agent` is what a user subclasses; each of its methods is a line or two into the part that owns the matter:

* `unit`: several writes, one commit. Every write of an agent goes through it.
* `storage`: a key-value map per agent.
* `facts`: state and configuration, one value each; `typed`: values of a user's own type.
* `keepalive`: leases that keep the object in memory.
* `fiber` and `fibers`: durable work with a snapshot; `managed`: the ones that are kept and can be looked up;
  `recovery`: what happens to those that a dead process left behind; `backoff`: when to try again (pure).
  Their SQL stands in `fiber_rows`.
* `schedules`: callbacks that are due at a time; `timetable`: when (pure). SQL in `schedule_rows`.
* `admission`: how work that is admitted from inside other durable work is recognised when that runs again.
* `events`: what all of them tell those who listen.

**What it promises.** A fiber's row is durable before its code runs and gone when it has ended; a stash is
durable when it returns; a fiber that died with its process is handed to `on_fiber_recovered` until that
hook has dealt with it. What is written to the store happens exactly once; what code does to the world
outside happens at least once, and again only for the step that was in flight.

This package may import `core`, `store` and `host`.
"""
