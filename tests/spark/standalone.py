"""A standalone Spark cluster whose executors cannot see the driver's environment.

Master and worker are started from the installed ``pyspark``. The worker lives in a mount namespace
of its own in which the repository and the environment of this Python are empty folders.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
START_TIMEOUT_S = 240
RUN_TIMEOUT_S = 600
_POLL_S = 0.1
_SPARK_SCRIPTS = (
    "spark-submit",
    "spark-class",
    "find-spark-home",
    "find_spark_home.py",
    "load-spark-env.sh",
)
_MASTER_READY = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER_READY = re.compile(r"Successfully registered with master")
# Both are small, and neither is reached from outside.
_DAEMON_OPTIONS = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}


def hidden_folders() -> list[Path]:
    """Folders that executors must not see: the source tree and this Python's environment."""
    folders = [ROOT]
    if not Path(sys.prefix).is_relative_to(ROOT):
        folders.append(Path(sys.prefix))
    return folders


def reason_not_to_run() -> str | None:
    """Why no cluster can be shut off from the driver's folder on this machine."""
    if sys.prefix == sys.base_prefix:
        return "this Python is no virtual environment that could be hidden from executors"
    if shutil.which("unshare") is None:
        return "there is no `unshare` to give the worker its own mounts"
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(ROOT)]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"the worker cannot have its own mounts: {done.stderr.strip()}"
    return None


@dataclass(frozen=True)
class Standalone:
    """A running cluster."""

    master: str
    folder: Path

    def worker_log(self) -> str:
        logs = sorted((self.folder / "work").glob("app-*/*/stderr"))
        return "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs[-2:])


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """One master and one worker of two cores, on free ports of loopback."""
    (folder / "spark-home").mkdir(parents=True)
    with _daemon(folder / "master.log", _master_command()) as master_log:
        (url,) = _awaited(master_log, _MASTER_READY)
        with _daemon(folder / "worker.log", _worker_command(folder, url)) as worker_log:
            _awaited(worker_log, _WORKER_READY)
            yield Standalone(url, folder)


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of a user's shell: nothing of Spark is set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
        and name not in {"NAMESRV_ADDR", "VIRTUAL_ENV"}
    }
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def run(command: str, folder: Path, *, log: str) -> str:
    """Run a command of a page in ``folder``; returns its standard output."""
    errors = folder / log
    with errors.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-e", "-c", command],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            _end(process)
    text = out.decode("utf-8", "replace")
    if process.returncode:
        _fail(command, process.returncode, text, errors)
    return text


@contextmanager
def server(command: str, folder: Path, *, log: str, ready: re.Pattern[str]) -> Iterator[str]:
    """Keep a server of a page running in ``folder``; yields the match of ``ready`` in its log."""
    path = folder / log
    shell = ["bash", "-e", "-c", command]
    with _daemon(path, shell, cwd=folder, environment=clean_environment()) as running:
        yield _awaited(running, ready)[0]


def fill(environment: Path, *requirements: str) -> None:
    """The files of ``pip install`` in an empty environment, from the one that runs the tests.

    Files are linked where that can be done, so nothing is fetched and hardly anything written.
    """
    site = next((environment / "lib").glob("python*/site-packages"))
    for found in _closure(requirements):
        if found.metadata["Name"] == "contrail-mq":
            _link_tree(ROOT / "src" / "contrail", site / "contrail")
            _link_tree(ROOT / "src" / "pyspark_rocketmq", site / "pyspark_rocketmq")
        for file in found.files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or "__pycache__" in file.parts or "__editable__" in file.name:
                continue
            if source.is_file():
                _link(source, site / file)
        _make_scripts(found, environment)


def _closure(requirements: tuple[str, ...]) -> list[Distribution]:
    """The distributions that these requirements need, as their own metadata say."""
    found: dict[tuple[str, str], Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        for extra in ("", *sorted(one.extras)):
            if (one.name, extra) in found:
                continue
            found[one.name, extra] = wanted = distribution(one.name)
            for text in wanted.requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return list({one.metadata["Name"]: one for one in found.values()}.values())


def _make_scripts(found: Distribution, environment: Path) -> None:
    for point in found.entry_points:
        if point.group == "console_scripts":
            script = environment / "bin" / point.name
            script.write_text(
                f"#!{environment}/bin/python\nimport sys\nfrom {point.module} import {point.attr}\n"
                f"sys.exit({point.attr}())\n",
                encoding="utf-8",
            )
            script.chmod(0o755)
    if found.metadata["Name"] == "pyspark":
        # Its scripts are no entry points; they find Spark beside the package.
        for name in _SPARK_SCRIPTS:
            beside = Path(sys.executable).parent / name
            if beside.exists():
                _link(beside, environment / "bin" / name)


def _link_tree(source: Path, target: Path) -> None:
    shutil.copytree(
        source, target, copy_function=_link, ignore=shutil.ignore_patterns("__pycache__")
    )


def _link(source: Path | str, target: Path | str) -> None:
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _master_command() -> list[str]:
    program = str(SPARK / "bin" / "spark-class")
    where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    return [program, "org.apache.spark.deploy.master.Master", *where]


def _worker_command(folder: Path, master: str) -> list[str]:
    """The worker sees Spark at another place, and not the driver's environment."""
    home = folder / "spark-home"
    mounts = [f"mount --bind {shlex.quote(str(SPARK))} {shlex.quote(str(home))}"]
    mounts += [f"mount -t tmpfs tmpfs {shlex.quote(str(one))}" for one in hidden_folders()]
    worker = [
        *(str(home / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"),
        *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g"),
        *("--work-dir", str(folder / "work"), master),
    ]
    steps = [*mounts, f"cd {shlex.quote(str(folder))}", f"exec {shlex.join(worker)}"]
    return ["unshare", "-m", "bash", "-e", "-c", "\n".join(steps)]


@dataclass
class _Daemon:
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def _daemon(
    log: Path,
    command: list[str],
    *,
    cwd: Path = Path("/"),
    environment: dict[str, str] | None = None,
) -> Iterator[_Daemon]:
    options = clean_environment(
        **_DAEMON_OPTIONS, SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false"
    )
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment or options,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield _Daemon(process, log)
    finally:
        _end(process)


def _awaited(daemon: _Daemon, ready: re.Pattern[str]) -> tuple[str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        text = daemon.log.read_text(encoding="utf-8", errors="replace")
        found = ready.search(text)
        if found is not None:
            return (found[found.re.groups],)
        assert daemon.process.poll() is None, f"it ended: {text[-4000:]}"
        time.sleep(_POLL_S)
    raise AssertionError(f"it is not ready after {START_TIMEOUT_S} s: {text[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _fail(command: str, code: int, out: str, errors: Path) -> NoReturn:
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line for line in lines if " INFO " not in line]
    pytest.fail(f"{command}\nended with {code}\n{out[-3000:]}\n" + "\n".join(told)[-6000:])
