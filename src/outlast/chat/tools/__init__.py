"""Tools: how users declare them, which tools a turn has, and the record of each call.

* `declare`: `@tool`, and the facts of a call; `function`: a function as a tool; `toolset`: everything that
  users pass as tools, by source; `clashes`: logs tools that replace others.
* `contribution`: what the parts of an agent add to a turn, merged in a fixed order. Pure.
* `arguments`, `decision`, `watch`, `outcome`: a call's arguments, the decision of `before_tool_call`, the
  wait for the tool, and the outcome.
* `ledger`: which calls have begun, and which have an outcome; `idempotency`: calls with an idempotency key;
  `earlier`: calls of earlier processes.
"""
