"""A broker's timers in a process that dies at a crash point: see ``test_timer_crashes``.

``python -m tests.fault.timer_child ROOT NOW_MS`` prints each message it has made durable.
"""

from __future__ import annotations

import sys
from pathlib import Path

from contrail.clock import ManualClock
from tests.fault.timer_setup import TimerBroker

ROUNDS = 4


def main(root: str, now_ms: str) -> None:
    clock = ManualClock(int(now_ms))
    broker = TimerBroker(Path(root), clock)
    for round_number in range(ROUNDS):
        for number in range(30):
            key = f"{now_ms}-{round_number}-{number:02d}"
            deliver_ms = clock.now_ms() + 100 + number * 333
            broker.send(key, DELIVER_MS=deliver_ms)
            broker.flush_log()
            print(key, deliver_ms, flush=True)
        broker.advance(700, step_ms=100)
        broker.settle()
        print("#", clock.now_ms(), flush=True)
    broker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
