"""A host runs agents: one event loop, one store.

**What it promises.** At most one live object per address. An agent is activated on demand, by a call, an
alarm, or at boot because it has unfinished work; `on_start` runs once per activation, before anything else
reaches it. It is evicted when nothing has held it for a while, and wakes with nothing lost: state is rows,
the Python object is a cache. When its fence no longer holds, the object is discarded and stops.

**Calls interleave.** Calls to one agent run on the caller's task, side by side: between two awaits an
agent is alone, across an await it is not. There is no lock around a method.

**Where to start reading.** `address` (names, and how they travel in URLs), `activation` (one agent in
memory), `activations` (all of them: how they come and go), `host` (its own life), `boot` and `alarms` (waking
what sleeps), `stub`, `events` (what a host tells), `causes` (why the last process ended).

This package may import `core` and `store`. It knows agents only through `hosted.Hosted`.
"""
