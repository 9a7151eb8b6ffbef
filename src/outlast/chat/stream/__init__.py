"""The stream: the chunks of a turn, in order, durable before any client sees them.

* `stream`: the chunks of one turn, written as they arrive and read by any number of readers.
* `streams`: the streams of one agent, open and stored; `sql`: their rows and statements.
"""
