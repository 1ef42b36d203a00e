"""SIGTERM during a job: one line, and an end without the log of Spark's teardown."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from contrail.cli.exits import ExitCode
from contrail.cli.output import complain

# Spark cancels its tasks and removes its temporary folders within a second or two.
_STOP_PATIENCE_S = 15.0
_TERMINATED = threading.Event()


def is_ending() -> bool:
    """Whether SIGTERM has come: a failure now is caused by it."""
    return _TERMINATED.is_set()


def wait_for_the_end() -> None:
    """Keep the main thread from reporting errors while the process ends."""
    threading.Event().wait()


@contextmanager
def quiet_end(before_it: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Make SIGTERM an orderly end with its own exit code; ``before_it`` clears the terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: FrameType | None) -> None:
        if not is_ending():
            _TERMINATED.set()
            # The main thread may wait for an answer of the JVM: another thread calls it.
            threading.Thread(target=_end, args=(before_it,), name="end", daemon=True).start()

    previous = signal.signal(signal.SIGTERM, take)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(before_it: Callable[[], None]) -> None:
    threading.Timer(_STOP_PATIENCE_S, os._exit, [int(ExitCode.TERMINATED)]).start()
    try:
        before_it()
        complain("ended by SIGTERM; the same command with its --checkpoint goes on")
        sys.stderr.flush()
        # Each call that is cut off, on either side, would log a long traceback.
        logging.disable(logging.CRITICAL)
        _stop_spark()
    finally:
        os._exit(int(ExitCode.TERMINATED))


def _stop_spark() -> None:
    """Silence the JVM first: its log from here on is about its own end."""
    pyspark: Any = sys.modules.get("pyspark")
    context = pyspark.SparkContext._active_spark_context if pyspark is not None else None
    if context is None:
        return
    # An error here is ignored: the process ends next and the JVM with it.
    with suppress(Exception):
        context.setLogLevel("OFF")
        # Errors of ending threads are printed beside the log.
        java = context._jvm.java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
        context.stop()
