"""The commands, one module a subject: their arguments here, and what they need is imported when they run."""
