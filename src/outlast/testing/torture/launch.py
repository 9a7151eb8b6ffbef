"""`outlast serve`, but for one thing: a worker that has died is replaced at once, however many have before.

The supervisor waits longer and longer when workers die soon after their start. A thousand deaths in twenty
minutes would make it wait for most of them.
"""

from __future__ import annotations

import sys

from outlast.cli.serving import supervisor
from outlast.cli.serving.settings import Settings


def main(arguments: list[str]) -> int:
    """Serve as the settings say, which are JSON."""
    vars(supervisor)["wait_after"] = lambda lives: 0.0
    return supervisor.supervise(Settings.decode(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
