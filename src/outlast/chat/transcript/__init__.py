"""The transcript: a tree of UI messages, of which one path is the conversation.

* `transcript`: the window of the path in memory, and changes to the tree; `sql`: its rows and statements.
* `shown`: what clients see: the stored path, followed by accepted messages that are not stored yet.

A change is created under `Transcript.changing`, applied in a commit, and visible once that is durable.
"""
