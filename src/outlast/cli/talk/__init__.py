"""`outlast chat`: the conversation in the terminal.

`client` keeps the connection on a thread of its own; `chat` shows answers, asks for approvals, and reads
what the user types.

**What it promises.** Ctrl-C stops the answer, never the connection. An answer that a restart of the server
interrupts resumes. The model's output cannot control the terminal.

It may import `outlast.client`, `cli.output` and `cli.suggest`. Start with `chat.chat`.
"""
