"""The command line. `outlast serve module:app` serves agents.

This package may import everything; nothing imports it.
"""
