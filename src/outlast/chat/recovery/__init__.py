"""Recovery: a turn whose process is gone is continued, or ended with what it had said.

* `resume`: what happens to an interrupted turn, from the facts to the durable decision and the next
  attempt.
* `finish`: the end of a turn that gets no further attempt.
* `judge`: gathers the facts and asks the hooks; `decision`: the decision table; `budget`: when it is
  enough. Pure.
* `open_calls`: calls that had begun; `chain`, `recovered_turns`: what `on_recovery_boot` makes of a
  conversation.
* `boot`: agents that never come up; `incidents`: what is stored of interruptions; `sql`: the decisions.
* `upgrade`: handing a turn to a process that runs newer code; `operators`: calls for people who run it.

Start with `resume`. Nothing below imports this package: the runner finds it as a part.
"""
