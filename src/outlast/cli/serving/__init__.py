"""`outlast serve`: a supervisor that keeps the listening socket, and workers that it replaces.

**What it promises.** A connection that is made while no worker runs waits for the next one instead of being
refused. A worker that crashes is replaced at once, with growing delays while it keeps crashing, for as long
as it takes. The next worker receives the cause (`OUTLAST_CAUSE`). If the first start fails, the supervisor
prints one line with the reason and exits with status 2. Stopping and reloading are orderly, and take at
most `--drain` seconds. When the supervisor dies, its workers stop.

**How.** The supervisor never opens the store and runs no code of the application (unless `--preload`). It
has one thread and has done the slow imports, so that it can fork: a worker starts within milliseconds, and
only has to import the user's module. With more threads, and on macOS, a worker is a new process that
inherits the socket.

**Where to start reading.** `settings` (the options), `exits` and `memory` (why a worker ended, and when to
start the next: pure), `processes` (starting one), `supervisor` (the loop), `worker` (what the new process
does), `failures` (why it failed to start), `access` (who may connect), `announce` (what it prints),
`terminal` (what SIGHUP means), `sockets`, `imports`.

It may import `cli.load`, `cli.setup.models` and the server.
"""
