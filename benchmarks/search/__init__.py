"""Searching conversations: ours beside the engines' own full-text search over a plain table.

The floor stores a message as one row, with the engine's stemmer, and orders by the engine's rank. It cuts no
snippets, and knows nothing of branches, long messages or scripts without spaces.
"""
