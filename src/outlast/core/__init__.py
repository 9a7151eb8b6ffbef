"""What everything may use: errors, the clock, ids, JSON, events.

Nothing here knows of stores, hosts or agents, and nothing here does I/O. A module is a concept:

* `errors`: one tree, rooted in `OutlastError`; each message says what happened, to what, and what to do.
* `clock`: wall time in integer milliseconds. Timeouts never use it: they use the event loop's own time.
* `ids`: the one place where ids come from.
* `json`: the one encoder (strict going in) and the one decoder.
* `text`: what can stand in the store as it is: names, keys, error messages.
* `events`: what happened, for those who listen; free when nobody does.
"""
