"""``python -m bench.creations BASE``: how long topics take to be created, beside another commit.

Both trees are run in turn as ``contrail dev``, with an empty folder each time; one connection
creates topics, so many requests at a time. Ends with 1 if a row takes more than twice as long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time

from bench.compare_trees import Tree, both_trees
from bench.harness import BenchError
from contrail.protocol.codes import RequestCode
from contrail.wire.caller import Caller

RATIO_MAX = 2.0
_TIMEOUT_MS = 600_000
_STOP_TIMEOUT_S = 60
_START = "import sys; from contrail.cli.app import main; sys.argv[0] = 'contrail'; main()"
_SETTINGS = {
    "defaultTopic": "TBW102",
    "perm": "6",
    "readQueueNums": "4",
    "topicFilterType": "SINGLE_TAG",
    "writeQueueNums": "4",
}


async def created(address: str, count: int, at_a_time: int) -> float:
    """Create this many topics; returns the seconds."""
    caller, gate = Caller(), asyncio.Semaphore(at_a_time)

    async def create(number: int) -> None:
        async with gate:
            fields = {"topic": f"topic-{number:05d}", **_SETTINGS}
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            answer = await caller.call(address, code, fields, timeout_ms=_TIMEOUT_MS)
            if answer.code:
                raise BenchError(f"topic {number}: {answer.code} {answer.remark}")

    began_s = time.perf_counter()
    try:
        await asyncio.gather(*map(create, range(count)))
        return time.perf_counter() - began_s
    finally:
        await caller.close()


def measured(tree: Tree, count: int, at_a_time: int) -> float:
    """The same against servers of one tree."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _START, "dev", "--json", "--folder", folder]
        command += ["--port", "0", "--broker-port", "0", "--log-level", "error"]
        server = subprocess.Popen(
            command,
            env=tree.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["broker"]
            return asyncio.run(created(address, count, at_a_time))
        finally:
            server.terminate()
            server.wait(_STOP_TIMEOUT_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.creations", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[64, 1000])
    options = parser.parse_args()
    worst = 0.0
    base, head = both_trees(options.base)
    for at_a_time in options.at_a_time:
        seconds = {tree.name: measured(tree, options.count, at_a_time) for tree in (base, head)}
        ratio = seconds["head"] / seconds["base"]
        worst = max(worst, ratio)
        print(
            f"{options.count} topics, {at_a_time} at a time: {seconds['base']:.2f} s before, "
            f"{seconds['head']:.2f} s now, {ratio:.2f}x"
        )
    return 1 if worst > RATIO_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
