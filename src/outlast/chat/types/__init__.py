"""The types that users meet: what can be set, what hooks are given, and what they may return.

* `config`: a turn's settings and when it stops; `contexts`: what each hook is given; `recovery`: its
  options.
* `data_parts`: parts of the application's own in an answer; `model_ask`: a recorded request.
* `events`: what a chat agent emits.

May import `message`.
"""
