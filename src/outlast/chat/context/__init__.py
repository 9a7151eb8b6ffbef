"""What a model sees: the stored conversation, shortened, windowed and converted.

* `view`: the window of one agent's conversation; `history`, `history_parts`: stored messages become model
  messages.
* `compaction`: a summary in place of old messages; `shorten`: truncation of long values in old messages.
* `session`: the settings of `configure_session`; `hydration`: conversations that the application stores.
* `prompt`: the system prompt; `content`: results of tools; `tool_prompt`: prompts from tools.
"""
