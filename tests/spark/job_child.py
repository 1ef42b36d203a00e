"""Runs one pipeline job in a process of its own, which a test may kill.

``python -m tests.spark.job_child JOB SETTINGS`` with the settings as JSON; the session is small.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from contrail.testing import eventually

# Generous: a busy machine needs minutes to start a second Spark.
DEADLINE_S = 600
_SETTINGS = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


def job(name: str, settings: Mapping[str, object]) -> list[str]:
    """The command that runs a job as a program would."""
    return [sys.executable, "-m", "tests.spark.job_child", name, json.dumps(dict(settings))]


def cli(*arguments: str) -> list[str]:
    """The command that runs a job as a person would."""
    conf = [part for pair in _SETTINGS.items() for part in ("--conf", "=".join(pair))]
    return [sys.executable, "-m", "contrail.cli", "pipeline", *arguments, *conf]


def start(command: list[str], log: Path, crash_at: str = "") -> int:
    """Start a command in a session of processes of its own; the id of its process."""
    with log.open("wb") as file:
        child = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CONTRAIL_CRASH_AT": crash_at},
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid


def wait_until(pid: int, is_so: Callable[[], bool], log: Path) -> None:
    """Wait for something while the child lives; it does not outlive a failure."""

    def tail() -> str:
        return log.read_text()[-4000:]

    def came() -> bool:
        if is_so():
            return True
        code = _children[pid].poll()
        assert code is None, f"the job ended with {code}:\n{tail()}"
        return False

    try:
        eventually(came, tail, timeout_s=DEADLINE_S, pause_s=0.2)
    except BaseException:
        kill(pid)
        raise


def kill(pid: int) -> None:
    """Kill the driver, its Spark and its workers at once."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _children.pop(pid).wait()


def crashed(command: list[str], log: Path, crash_at: str) -> None:
    """Run a command until it dies at the given point."""
    pid = start(command, log, crash_at)
    try:
        code = _children[pid].wait(DEADLINE_S)
    finally:
        # Its Spark and its workers may need a moment to see that the driver is gone.
        kill(pid)
    text = log.read_text()[-4000:]
    assert code == -signal.SIGKILL, f"{crash_at} was not reached, it ended with {code}:\n{text}"


_children: dict[int, subprocess.Popen[bytes]] = {}


def main() -> None:
    from contrail.pipeline.jobs.session import open_session

    name, settings = sys.argv[1], json.loads(sys.argv[2])
    module = import_module(f"contrail.pipeline.jobs.{name}")
    made = getattr(module, f"{name.capitalize()}Settings")(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in settings.items()
        }
    )
    print(getattr(module, name)(made, spark=open_session(name, master="local[2]", conf=_SETTINGS)))


if __name__ == "__main__":
    main()
