"""The environment of the application that is tortured."""

JOURNAL = "OUTLAST_TORTURE_JOURNAL"  # the path of what it writes down
MEMORY = "OUTLAST_TORTURE_MEMORY"  # how it runs out of memory
SABOTAGE = "OUTLAST_TORTURE_SABOTAGE"  # what is broken in it
