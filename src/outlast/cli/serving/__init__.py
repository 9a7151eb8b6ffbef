"""`outlast serve`: a supervisor that keeps the listening socket, and workers that come and go.

**What it promises.** A connection that is made while no worker lives waits for the next one instead of being
refused. A worker that dies is replaced at once, later and later if it goes on dying, and never given up. The
next one is told why (`OUTLAST_CAUSE`). If the first start fails, its reason is one line, and the exit status
is 2. Whoever stops or reloads gets an orderly end within `--drain` seconds.
When the supervisor dies, its workers stop.

**How.** The supervisor never opens the store and runs no code of the application (unless `--preload`). It
has one thread and the slow imports done, so that it can fork: a worker begins within milliseconds, and has
the user's module left to import. Where it has more threads, and on macOS, a worker is a fresh process that
inherits the socket.

**Where to start reading.** `settings` (what was asked for), `deaths` and `memory` (why a worker ended, and
when to start the next: pure), `processes` (how one is started), `supervisor` (the loop), `worker` (what the
new process does), `failures` (why it could not start), `terminal` (what SIGHUP means), `listening`,
`imports`.
"""
