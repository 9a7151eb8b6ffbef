"""Context blocks: labelled parts of the system prompt that providers fill, and tools to work with them.

`live` is one block of an agent with its provider, `blocks` all of them, and `tools` what the model can do
with them; `stored` is the default provider. Pure: `render`, `keys`, `loaded`, `unloaded`.

A provider may be slow or fail. The prompt then has one line that says so in place of the block, and the turn
continues.
"""
