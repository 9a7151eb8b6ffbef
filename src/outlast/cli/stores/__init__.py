"""Commands that read or change a store.

`show` prints the views of `outlast.inspect`; `find` resolves the names of agents and turns; `act` performs
the actions of operators; `stores` measures, vacuums, backs up and copies.

**What it promises.** `show` opens a store read-only, next to a running host. `act` goes through the running
host where there is one, so that only one process writes for an agent.

It may import `cli.output` and `cli.suggest`. Start with `show`.
"""
