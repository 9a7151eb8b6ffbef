"""The stream: the chunks that a turn produced, in order, durable before anybody sees them.

* `stream`: one turn's chunks, written as they come and read by any number of readers at their own pace.
* `reading`: the streams of one agent, open and stored; `sql`: their rows and statements.
"""
