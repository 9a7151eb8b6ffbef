"""A host runs agents: one event loop, one store.

**What it promises.** At most one live object per address. A call, an alarm, or unfinished work at boot
activates an agent; `on_start` runs once per activation, before anything else reaches the agent. The host
evicts an idle agent, and the next activation finds everything: state is rows, the Python object is a cache.
When an agent's fence no longer holds, the host discards the object, and its work stops.

**Calls interleave.** Calls to one agent run concurrently, each on its caller's task: between two awaits a
method has the agent to itself, across an await it does not. There is no lock around a method.

**Where to start reading.** `address` (names, and how they appear in URLs), then `life` (the host and its
activations), `wakeups` (boot and alarms) and `admin` (the socket for operators). `events` has the events
that a host emits, `causes` why the last process ended, `notices` what an agent reports to its connections.

This package may import `core` and `store`. It knows agents only through the protocol `hosted.Hosted`.
"""
