"""A process that forks one victim per order: the victim runs a workload and dies as ordered.

Orders are JSON lines on standard input, answers on standard output. The imports are paid once;
each victim arms the crash points by their environment variables, as a real process would.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from contrail.runtime import crashpoints
from tests.fault.campaigns.workload import FileJournal, Workload, small_config

_PATIENCE_S = 120


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run_victim(order)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _run_victim(order: dict[str, Any]) -> None:
    """Never returns: the process ends here, one way or another."""
    try:
        signal.alarm(_PATIENCE_S)
        os.environ["CONTRAIL_CRASH_AT"] = order["crash_at"]
        os.environ["CONTRAIL_CRASH_TRACE"] = order["trace"]
        importlib.reload(crashpoints)
        with open(order["log"], "a") as log:
            os.dup2(log.fileno(), 2)
        work(order)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def work(order: dict[str, Any]) -> None:
    """The workload an order describes, on a fresh folder or on one a crash left."""
    workload = Workload(
        small_config(Path(order["root"]), order["flush"]),
        FileJournal(Path(order["journal"])),
        seed=order["seed"],
        sequence=order["sequence"],
    )
    workload.run(order["steps"])
    workload.close()


if __name__ == "__main__":
    main()
