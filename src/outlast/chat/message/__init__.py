"""UI messages and chunks as values. Pure: no I/O, no clock, no agent.

* `incoming`: validation of messages from applications; `results`: the values that callers receive.
* `encoder`, `open_parts`, `chunk_json`: model events become chunks of the AI SDK's UI message stream.
* `reducer`, `tool_part`: chunks become a message, live, in a replay and after a crash alike.
* `partial`: the answer of an interrupted turn, folded from its chunks; `rebuild`: a message as chunks.
* `repair`: stored messages that providers would reject; `content`: large values that clients fetch.

Start with `reducer`. May import `core` only.
"""
