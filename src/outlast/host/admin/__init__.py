"""The admin socket: how commands on the same machine reach a running host.

`socket` has both sides of the protocol and the paths of the sockets; `operators` handles the requests: it
activates the agent and calls a method that its class offers to operators.

**What it promises.** Only the user who runs the host can open the socket. A host works without one, and
most hosts run without: `outlast serve` opens it.

It may import `core` and `host.address`. It is the topmost folder of `host`. Start with `socket`.
"""
