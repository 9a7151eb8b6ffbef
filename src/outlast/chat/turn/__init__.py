"""One turn: its facts, its beginning, its end, and what clients and callers see of it.

* `turn`: the facts of a turn, passed as an argument instead of kept on the agent.
* `claim`: how it begins; `settle` with `settlement`: how it ends. Nothing else ends an entry.
* `state`: the running turn, its waiters, and what clients see; `notices`: messages to connections.
* `part`: the moments of a turn that other parts may join.
* `pending`: calls that wait for the client or for an approval; `part_repair`: calls with an unknown outcome.
* `failure`, `telemetry`, `traces`: how errors and events of a turn are reported.
"""
