"""The runner: one turn after another, each to a durable end.

* `runner`: works through the inbox; `stop`: cancel, reset and clear.
* `response_hook`: calls `on_chat_response` at least once; `retention`: deletes rows of settled turns.

Interrupted turns are resumed by `recovery`, which this package does not import.
"""
