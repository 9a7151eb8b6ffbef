"""The runner: one turn after another, each to a durable end.

* `runner`: works through the inbox; `stop`: cancel, reset and clear.
* `response_hook`: `on_chat_response`, at least once; `retention`: how long rows of settled turns are kept.

An interrupted turn is handed to `recovery`, which this package does not know.
"""
