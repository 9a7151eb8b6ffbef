"""One WebSocket connection: parsing what its client sends, and queueing what it receives.

`socket` handles the frames of a client; `requests` and `long_requests` parse them; `connection` is the
queue of frames to a client; `transport` and `batching` write them to the kernel, serialized once and in few
writes; `unread` drops clients that stop reading; `frames` builds the frames of the protocol.

**What it promises.** Sending never waits for a client. A client that falls behind is disconnected and can
resume. Frames of one connection keep their order.

`socket` stands above `room` and `http`; the other modules import nothing of the server but `limits`. Start
with `socket`, then `connection`.
"""
