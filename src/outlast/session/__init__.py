"""Session: what the model is shown of a conversation, what it remembers, and what can be found again.

A battery: `battery` gives it to chat agents. Start with `builder` (the settings that `configure_session`
makes), `live` (`self.session`) and `part` (the session of one agent in memory).

* `block`, `blocks/`, `providers/`: memory. Labelled parts of the system prompt, which providers fill.
* `prompt`: the system prompt, frozen until it is refreshed.
* `compaction/`, `tokens`, `window`: a conversation that is long, as the model sees it. Nothing is deleted.
* `search/`, `searching`: a full-text index of all messages, the same on both engines.
* `tables`, `sql/`: what is stored.
"""
