"""Requests to models. The only package that uses Pydantic AI's model interface.

* `client`: opens a stream, with retries and a stall timeout; `errors`: failures, classified by remedy.
* `request`, `beginnings`, `files`, `settings`, `output`: build a request that every provider accepts. Pure.
* `continuation`, `prefill`: how a model can continue an interrupted answer.
* `answer`, `call_ids`: the response; `background`: responses that a provider keeps; `refused_tools`: tools
  that a provider rejects.
"""
