"""The foundation that every package may use: errors, the clock, ids, JSON, events.

Nothing here knows about stores, hosts or agents, and nothing here does I/O. It imports no other package of
outlast. Each module is one concept:

* `errors`: one tree, rooted in `OutlastError`; each message says what happened, to what, and what to do.
* `clock`: wall time in integer milliseconds. Timeouts use the event loop's time instead.
* `ids`: the only source of ids.
* `json`: the only encoder (it accepts strict JSON values) and the only decoder.
* `text`: which strings the store accepts unchanged: names, keys, error messages.
* `events`: typed events for subscribers. Emitting costs nothing when there is no subscriber.
* `hooks`: calling user code that may be `async def` or plain; `loading`: importing objects that data names.
* `abort`: ending a wait from outside, or when it takes too long.
* `tracing`: the current OpenTelemetry span, without importing OpenTelemetry.

Start with `errors` and `events`.
"""
