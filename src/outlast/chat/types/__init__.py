"""The types of the public API: settings, and the arguments and results of hooks.

* `config`: settings and stop conditions of a turn; `contexts`: the arguments of hooks.
* `recovery`, `continuation`: settings for interrupted turns.
* `data_parts`: the application's own parts in an answer; `model_ask`: a recorded request.
* `events`: the events of a chat agent.

May import `message`.
"""
