"""One attempt at an answer: ask the model, run the tools that it calls, ask again.

* `attempt`: an attempt and its retries: too long a conversation, tools that a provider refuses.
* `prepare`: model, prompt, tools and conversation of a turn; `sources`: where its tools come from;
  `loop`: its steps.
* `calls`: the calls of a step; `call`: one of them; `place`: in the message, or inside another call;
  `nested`: the calls that a call makes; `outputs`: what the model is shown of results.
* `usage`: what a turn may spend; `chunk_hook`: `on_chunk`.
"""
