"""What a model is shown: the conversation as it is stored, shortened, windowed and converted.

* `view`: the window of one agent's conversation; `history`, `history_parts`: stored messages become model
  messages.
* `compaction`: a summary in the place of old messages; `shorten`: long values of old messages.
* `session`: what `configure_session` sets; `hydration`: conversations that the application keeps; `prompt`.
"""
