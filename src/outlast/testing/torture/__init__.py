"""The torture of a chat server: users talk to agents, the server is killed again and again.

`python -m outlast.testing.torture` (or `script/torture`) runs it. The parts, from the inside out:

* `plan`: what a turn is to say and to do. The user's message carries it: every word can be accounted for.
* `served`: the application, whose model carries plans out and whose tools write down what they do.
* `requests`: whether a request to a model is one that a provider would take. Pure.
* `serving`: `outlast serve` and the ways to kill it; `memory`: the limit under which it runs out of memory.
* `watching`: clients that write down every chunk; `driving`: what the users do.
* `rows`: what stands in the store, read from outside.
* `checks`: what must hold. Pure: journals and rows in, violations out.
* `run`: all of it together; `report`: the table and the trace.
* `sabotage`: ways to break outlast, which must be found.
"""
