"""Compaction: the beginning of a conversation is replaced by a summary, for the model only."""
