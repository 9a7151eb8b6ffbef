"""The stored values of an agent: its state and configuration, facts of its parts, a key-value storage.

* `state`: one value that clients see; `facts`: named values, read at start and then held in memory.
* `storage`: a durable map; `typed`: values of user-defined types, stored as JSON.
"""
