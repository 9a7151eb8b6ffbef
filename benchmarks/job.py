"""One job in this process: `python -m benchmarks.job WORKLOAD SYSTEM SIZE PLACE`."""

from __future__ import annotations

import json
import sys
import warnings

from benchmarks.catalogue import jobs
from benchmarks.place import Place


def main(workload: str, system: str, size: str, place: str) -> None:
    """Runs the job; what it measured is the last line of standard output."""
    warnings.filterwarnings("ignore")
    [job] = [job for job in jobs() if (job.workload, job.system) == (workload, system)]
    metrics = job.run(Place.from_json(place), int(size))
    print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
