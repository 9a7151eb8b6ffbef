"""The service process behind Restate: `python -m benchmarks.peers.restate_service PORT`."""

from __future__ import annotations

import asyncio
import sys

import hypercorn.asyncio
import hypercorn.config
import restate

from benchmarks.payload import payload

bench = restate.VirtualObject("Bench")


@bench.handler()
async def runs(ctx: restate.ObjectContext, n: int) -> int:
    """Records n results, one after another."""
    for i in range(n):
        await ctx.run_typed("step", lambda i=i: payload(i))
    return n


@bench.handler()
async def empty(ctx: restate.ObjectContext) -> int:
    """Does nothing."""
    return 1


def main() -> None:
    """Serves until killed, over HTTP/2 as Restate's documentation advises."""
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{sys.argv[1]}"]
    config.worker_class = "uvloop"
    config.loglevel = "ERROR"
    config.h2_max_concurrent_streams = 2**31 - 1
    config.keep_alive_max_requests = 2**31 - 1
    config.keep_alive_timeout = 2**31 - 1
    asyncio.run(hypercorn.asyncio.serve(restate.app([bench]), config))


if __name__ == "__main__":
    main()
