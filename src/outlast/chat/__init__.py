"""The chat agent: every request takes one durable path, and every answer is a turn.

A message travels through the packages in this order, and each imports only those before it:

    message → types → inbox → transcript → stream → model → context → tools → turn → answer → run → recovery

* `message`: UI messages and chunks as values. Pure: what may be handed in, how chunks become a message, how
  a damaged message is repaired.
* `types`: what users set and what hooks are given: `TurnConfig`, contexts, recovery options, events.
* `inbox`: every request in order, accepted durably before its caller hears of it.
* `transcript`: the tree of messages, of which one path is the conversation.
* `stream`: the chunks of a turn, durable before anybody sees them.
* `model`: the one place that talks to models, through Pydantic AI.
* `context`: what a model is shown of a conversation: history, window, compaction, prompt.
* `tools`: declared, offered, and recorded in the ledger before and after each call.
* `turn`: one turn: its facts, how it begins (`claim`), how it ends (`settle`), what others see of it
  (`state`).
* `answer`: one attempt at an answer: prepare, ask the model, run its tools, ask again.
* `run`: the runner, which takes one turn after another; stopping; what follows a turn's end.
* `recovery`: a turn whose process is gone: find out, decide, continue or end it.

On top stand `think` (the class that users subclass), `hooks` (what they override), `admission` (every way
to start a turn) and `gateway` (what a server asks).

**Parts.** A chat agent is a list of parts (`outlast.agent.part`), in `think`. Durable moments (accepted,
claimed, settled, cleared, expired) are loops over them: each part adds its writes and its effects to one
commit.

**The commits of a turn.** *Accept*: the entry, with its dedupe key. *Claim*: the entry runs, and its
messages stand in the transcript. *Append*: chunks, one row a flush. *Intent* and *outcome* of each tool
call. *Settle*: the answer, the outcome, the last chunks and what parts add. Nobody is shown anything before
its commit is durable.

This package may import `core`, `store`, `host` and `agent`.
"""
