"""What an agent keeps: its state and configuration, facts of its parts, and a key-value storage.

* `state`: one value that clients see; `facts`: named values, read at start and free to read afterwards.
* `storage`: a durable map; `typed`: values of a user's own type, kept as JSON.
"""
