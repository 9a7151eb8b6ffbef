"""The command line: `outlast serve`, `dev`, `chat`, `inspect`, `explain`, `db`, `doctor` and more.

**What lives here.** `main` declares `outlast` and `outlast serve`; `commands` declares the other commands
with their arguments; `serving` is the supervisor and its workers; `load` finds the application or the
agents to serve; `stores` reads and changes stores; `talk` is the chat in the terminal; `setup` starts
projects and checks the machine; `project` holds the files of a new project. `output` prints tables, JSON
and errors, `suggest` proposes names after a typo.

**What it promises.** A command that cannot do its work prints one line that says why and what to do, and
its exit status is not 0. `--json` prints data for programs. Reading a store never changes it.

**Where to start reading.** `main`, then the module of a command in `commands`.

This package may import every other package except `testing`; no other package imports it but `testing`.
Commands import what they need when they run, so that `outlast --help` is fast.
"""
