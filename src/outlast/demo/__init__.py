"""The demo: an agent with tools of every kind, and a model that needs neither a key nor the network.

`agent` is what is served, `model` the embedded model, `script` what that says, `app` the application that
`outlast demo` serves, put together from the environment (`settings`). `local_model` is a real model on this
machine, for `outlast demo --model local` and for tests.
"""
