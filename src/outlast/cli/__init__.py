"""The command line. `outlast serve module:app` serves agents; see `serving`.

This package may import everything; nothing imports it.
"""
