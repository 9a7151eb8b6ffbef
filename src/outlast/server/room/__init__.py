"""All connections of one agent, and the frames that they receive.

`room` is the connections of one agent, and forwards its notices; `chat_room` broadcasts the chunks and the
ends of turns, and lets clients resume; `transcript_sync` sends changed messages; `client_view` limits
messages and chunks to what a client can handle; `public` removes fields that only the server needs;
`replay` builds chunks that are not in a stream.

**What it promises.** Each connection receives each chunk once and in order, also across a resume. The
transcript arrives before the frame that ends a turn.

It may import the connection and the frames of `socket`, `limits` and `routing`. Start with `room`, then
`chat_room`.
"""
