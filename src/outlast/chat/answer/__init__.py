"""One attempt at an answer: ask the model, run the tools that it calls, ask again.

* `attempt`: an attempt and its retries: too long a conversation, tools that a provider refuses.
* `prepare`: model, prompt, tools and conversation of a turn; `loop`: its steps; `calls`: the calls of a
  step.
* `usage`: what a turn may spend; `chunk_hook`: `on_chunk`.
"""
