"""The chat agent: every request takes one durable path, and every answer is a turn.

A message travels through the packages in this order, and each imports only those before it:

    message → seam → types → inbox → transcript → stream → model → context → tools → turn → answer → run
    → recovery

* `message`: UI messages and chunks as values. Pure: validation, reducing chunks to a message, repair.
* `seam`: how a continued answer is joined to its stored text. Pure.
* `types`: settings, and the arguments of hooks: `TurnConfig`, contexts, recovery options, events.
* `inbox`: every request in order, accepted durably before its caller gets a reply.
* `transcript`: the tree of messages, of which one path is the conversation.
* `stream`: the chunks of a turn, durable before any client sees them.
* `model`: the only package that calls models, through Pydantic AI.
* `context`: what a model sees of a conversation: history, window, compaction, prompt.
* `tools`: declared, offered, and recorded in the ledger before and after each call.
* `turn`: one turn: its facts, its beginning (`claim`), its end (`settle`), its state for others (`state`).
* `answer`: one attempt at an answer: prepare, ask the model, run its tools, ask again.
* `run`: the runner, which runs one turn after another; stopping; work after a turn's end.
* `recovery`: a turn whose process is gone: gather the facts, decide, continue or end it.

On top are `think` (the class that users subclass), `hooks` (what they override), `admission` (the entry
points) and `gateway` (the interface for servers).

**Parts.** A chat agent is a list of parts (`outlast.agent.part`), in `think`. Durable moments (accepted,
claimed, settled, cleared, expired) are loops over them: each part adds its writes and its effects to one
commit.

**The commits of a turn.** *Accept*: the entry, with its idempotency key. *Claim*: the entry runs, and its
messages are in the transcript. *Append*: chunks, one row per flush. *Intent* and *outcome* of each tool call.
*Settle*: the answer, the outcome, the last chunks and additions of parts. Clients see nothing before its
commit is durable.

This package may import `core`, `store`, `host` and `agent`.
"""
