"""UI messages and chunks as values. Pure: no I/O, no clock, and nothing of the agent.

* `incoming`: what an application may hand in as messages; `results`: what callers get.
* `encoder`, `open_parts`, `chunk_json`: model events become chunks of the AI SDK's UI message stream.
* `reducer`, `tool_part`: chunks become a message, live, in a replay and after a crash alike.
* `partial`: what an interrupted turn had said, folded from its chunks; `rebuild`: a message as chunks.
* `repair`: stored messages that no provider would take; `content`: large values that clients fetch.

Start with `reducer`. May import `core` only.
"""
