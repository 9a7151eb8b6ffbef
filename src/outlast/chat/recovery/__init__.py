"""Recovery: a turn whose process is gone is continued, or ended with its partial answer.

* `resume`: resumes an interrupted turn, from the facts to the durable decision and the next attempt.
* `finish`: ends a turn that gets no further attempt.
* `judge`: gathers the facts and calls the hooks; `decision`: the decision table; `budget`: the limits of
  recovery. The latter two are pure.
* `open_calls`: calls that had begun; `chain`, `recovered_turns`: the results of `on_recovery_boot`.
* `boot`: agents that crash during their start; `incidents`: records of interruptions; `sql`: the decisions.
* `upgrade`: handing a turn to a process that runs newer code; `operators`: calls for operators.

Start with `resume`. Nothing below imports this package: the runner finds it as a part.
"""
