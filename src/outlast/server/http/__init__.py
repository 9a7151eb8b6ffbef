"""Agents over plain HTTP, with server-sent events for answers.

`routes` has the endpoints of an agent; `event_stream` streams an answer, resumable by event id;
`paced_response` and `deadlines` bound slow readers and slow senders; `readiness` is the health check;
`unavailable` and `error_ids` are the responses to failures.

**What it promises.** Everything that a client can do over a socket works here, too, with the same limits. A
client that resumes after `Last-Event-ID` misses no chunk and receives none twice.

It may import `room` and the parsers of `socket`. Start with `routes`.
"""
