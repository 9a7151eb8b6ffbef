"""The demo: an agent with tools of every kind, and a model that needs neither a key nor the network.

`agent` is the served agent, `model` the embedded model, `script` what that model answers, and `app` the
application that `outlast demo` serves, configured from the environment (`settings`). `local_model` runs a
real model on this machine, for `outlast demo --model local` and for tests.

**What it promises.** It works without a key and offline, and it deletes nothing. It may import every
package below `cli`. Start with `agent`.
"""
