"""Tools: as users declare them, as a turn is offered them, and what is recorded of each call.

* `declare`: `@tool` and what a call knows of itself; `toolset`: everything that users hand in, as one
  toolset.
* `contribution`: what the parts of an agent add to a turn, merged in a fixed order. Pure.
* `ledger`: which calls have begun and which have an outcome; `idempotency`: calls that their tool named
  with a key.
"""
