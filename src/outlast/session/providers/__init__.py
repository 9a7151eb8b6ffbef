"""Providers of context blocks. What a provider can do decides the kind of its block:

| it has | kind | the model can |
| --- | --- | --- |
| `get()` | readonly | read it in the prompt |
| `get()`, `set(content)` | writable | also replace it or append to it: `set_context` |
| `load(key)`, perhaps `set(key, content, description)` | loadable | load and unload entries: `load_context` |
| `search(query)`, perhaps `set(key, content)` | searchable | search it: `search_context` |

`abilities` finds that out. `function`, `file`, `directory` (on `folder`) and `skills` (on `folder` or
`object_store`) are providers; those that read files do so in a thread (`thread`). Pure: `excerpts`,
`front_matter`, `ranking`.
"""
