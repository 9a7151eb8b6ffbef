"""One turn: its facts, its beginning, its end, and what others see of it meanwhile.

* `turn`: the facts of a turn, passed along instead of being kept on the agent.
* `claim`: how it begins; `settle` with `settlement`: how it ends. Nothing else ends an entry.
* `state`: the turn that runs, who waits for it, and what clients see; `notices`: what connections are sent.
* `part`: the moments of a turn that other parts may join.
* `pending`: calls that it leaves to the client or to a person; `part_repair`: calls whose outcome is
  unknown.
* `failure`, `telemetry`, `traces`: how errors and events of a turn are reported.
"""
