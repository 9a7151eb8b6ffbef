"""What a model sees: the stored conversation, shortened, windowed and converted.

* `view`: the window of one agent's conversation; `history`, `history_parts`: stored messages become model
  messages.
* `shorten`: truncation of long values in old messages; `overflow`: conversations that are still too long.
* `hydration`: conversations that the application stores.
* `prompt`: the system prompt; `content`: results of tools; `tool_prompt`: prompts from tools.
"""
