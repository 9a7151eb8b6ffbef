"""The seam between the stored text of an interrupted answer and its continuation. Pure.

* `splice`: holds a continuation back until its relation to the stored text is decided, then passes it on.
* `overlap`, `folding`, `words`, `beginnings`: how the two texts are compared, in any script and in Markdown.
* `instruct`: the instruction to continue, which quotes the end of the stored text; it is never stored.
* `prefilled`: an answer that a provider continued by itself.

Start with `splice`. May import `message`.
"""
