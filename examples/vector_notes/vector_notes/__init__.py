"""Notes that an agent keeps, and finds by what they mean: a battery for outlast.

* `battery`: what it is made of, and `HasNotes`, the base class that gives it to an agent.
* `part`: the notes of one agent in memory: tools, prompt, frames, HTTP.
* `tables`: its table and every statement on it. `vectors`: texts as vectors (pure).
* `views`: what the inspector shows. `commands`: `outlast notes`. Both are imported when they are used.
"""

from vector_notes.battery import BATTERY, HasNotes

__all__ = ["BATTERY", "HasNotes"]
