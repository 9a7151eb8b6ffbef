"""One attempt at an answer: ask the model, run the tools that it calls, ask again.

* `attempt`: an attempt and its retries, for an overlong conversation or tools that the provider refuses.
* `prepare`: model, prompt, tools and conversation of a turn; `sources`: where its tools come from;
  `loop`: its steps; `continued_text`: the rest of an interrupted text.
* `calls`: the calls of a step; `call`: one call; `place`: whether it is in the message or inside another
  call; `nested`: the calls that a call makes; `offer`: the tools of a step; `outputs`: results for the model.
* `usage`: the usage limits of a turn; `chunk_hook`: calls `on_chunk`.
"""
