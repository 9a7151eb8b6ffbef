"""Talking to models. The only package that uses Pydantic AI's model interface.

* `client`: opens a stream, with retries and a limit for silence; `errors`: what can go wrong, by remedy.
* `request`, `beginnings`, `files`, `settings`, `output`: a conversation that every provider takes. Pure.
* `answer`, `call_ids`: what comes back; `background`: answers that a provider keeps; `refused_tools`: tools
  it refuses.
"""
