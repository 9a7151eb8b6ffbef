"""The chat agent: everything that it is asked goes one durable way, and every answer is a turn.

* `think`: the class that users subclass; `asking`: every way to start a turn.
* `inbox`: what was asked, accepted before anybody is told; `overlap`: what becomes of messages that arrive
  together (pure). SQL in `inbox_rows`.
* `turns`: one after another, each to a durable end; `turn`: the facts of one; `loop`: ask the model, run its
  tools, ask again; `retention`: what is kept for how long.
* `stream`: the chunks of a turn, durable before anybody sees them; `chunks`: from a model's events to chunks;
  `reducer`: from chunks to the message. SQL in `stream_rows`.
* `transcript`: the tree of messages; `messages`: what may be handed in; `history`: from messages to what the
  model is shown. SQL in `message_rows`.
* `model`: the one place that talks to models; `tools`, `output`, `prompt`, `config`: what a turn is given.

**The commits of a turn.** *Accept*: the entry, with its dedupe key. *Claim and apply*: the entry runs, and
its messages stand in the transcript. *Append*: chunks, one row a flush. *Settle*: the answer, the outcome,
the last chunks and the alarm of retention, all at once. What is told to anybody is told after its commit.

This package may import `core`, `store`, `host` and `agent`.
"""
