"""What wakes an agent that is not in memory: unfinished work at boot, and alarms.

`boot` finds agents with unfinished work; `boot_order` decides which of them start together and which alone,
so that a crash identifies its cause; `alarms` fires due alarms with one timer per host; `clock_changes`
notices that the wall clock went back, and has agents correct alarms that are too late.

**What it promises.** A crash never consumes an alarm: the row stays until the woken agent moves or removes
it. An agent that hangs delays no other agent. What fails is retried with growing delays.

These modules know agents only by address, and call back into the host. They may import `core`, `store`,
`host.address` and `host.hosted`. Start with `alarms`.
"""
