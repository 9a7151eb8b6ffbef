"""Sub-agents: agents with rows of their own, under the address and the fence of their root."""
