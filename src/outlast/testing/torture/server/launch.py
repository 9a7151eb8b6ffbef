"""`outlast serve`, but for one thing: a worker that has died is replaced at once, however many have before.

The supervisor waits longer and longer when workers die before they have served anything. Torture kills
many of them that early, and would spend most of its time waiting.
"""

from __future__ import annotations

import sys

from outlast.cli.serving import supervisor
from outlast.cli.serving.settings import Settings


def main(arguments: list[str]) -> int:
    """Serve as the settings say, which are JSON."""
    vars(supervisor)["wait_after"] = lambda deaths: 0.0
    return supervisor.supervise(Settings.decode(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
