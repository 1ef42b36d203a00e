"""Named points of the code where a test may kill the process, as a power cut would.

``CONTRAIL_CRASH_AT=name:n`` kills the process with SIGKILL at the nth passage of ``name``;
``CONTRAIL_CRASH_TRACE=path`` appends each name passed for the first time to a file, so that a
campaign can learn which points a workload reaches. Unarmed, a passage is one global read.
"""

from __future__ import annotations

import os
import signal

_AT = os.environ.get("CONTRAIL_CRASH_AT", "")
_TRACE = os.environ.get("CONTRAIL_CRASH_TRACE", "")
_armed_name, _, _armed_count = _AT.partition(":")
_countdown = int(_armed_count or "1") if _AT else 0
_seen: set[str] = set()

ARMED = bool(_AT or _TRACE)


def crashpoint(name: str) -> None:
    """Mark a crash point; the process dies here if ``CONTRAIL_CRASH_AT`` names this passage."""
    if ARMED:
        _passed(name)


def _passed(name: str) -> None:
    global _countdown
    if _TRACE and name not in _seen:
        _seen.add(name)
        with open(_TRACE, "a", encoding="utf-8") as trace:
            trace.write(name + "\n")
    if name == _armed_name:
        _countdown -= 1
        if _countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)
