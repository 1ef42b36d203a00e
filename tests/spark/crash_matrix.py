"""The crash matrix: which process dies, when, under which promise; kills and their judgement.

A cell copies one topic into another, ordered by key, in several micro-batches. In one of them a
process dies. Then the query is restarted from its checkpoint until it ends, and the copy is
compared with the sent messages.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark

from contrail import Message, Producer, ReceivedMessage
from contrail.client.selectors import java_hash_of
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.spark.crash_program import Gate
from tests.spark.stored import stored
from tests.spark.traffic import SEND_TIMEOUT_MS, make_topic, queues_of

ROOT = Path(__file__).parents[2]
SEVERAL_PROCESSES = "local-cluster[2,1,1024]"
ONE_PROCESS = "local[2]"
# A busy machine takes minutes to start three JVMs.
DEADLINE_S = 600
_POLL_S = 0.02
_ZOMBIE = "Z"

# ``both``: driver and broker at once; the query is started again while the broker is away.
VICTIMS = ("driver", "executor", "broker", "both")
MOMENTS = ("read", "write", "commit")
MODES = ("dedupe", "transactional", "none")

ROW_COUNT = 240
ROWS_PER_BATCH = 80
KEY_COUNT = 12
RESTARTS_MAX = 4
# Long enough for a new driver to come to the broker that is away.
AWAY_S = 20


# A driver that can be killed.


class SparkChild:
    """A driver in a session of processes of its own, with all that belongs to it."""

    def __init__(self, master: str, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._answered = 0
        self._log = folder / "log.txt"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.crash_program", master, str(folder)],
                cwd=ROOT,
                env=_environment(folder),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, do: str, **request: object) -> None:
        """Give it work; ``answer`` waits for the end of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        self.wait_until(self._next_answer().exists, "an answer")
        found: dict[str, Any] = json.loads(self._next_answer().read_text())
        self._answered += 1
        return found

    def answers_within(self, patience_s: float) -> bool:
        """Whether the driver has ended the work, well or badly, within the timeout."""
        deadline = time.monotonic() + patience_s
        while not self._next_answer().exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self._next_answer().exists()

    def _next_answer(self) -> Path:
        return self.folder / f"answer-{self._answered}.json"

    def wait_for_halt(self, gate: Gate) -> int:
        """The id of the process that halts at the gate."""

        def is_there() -> bool:
            if self._next_answer().exists():
                raise AssertionError(f"nobody came to {gate}: {self._next_answer().read_text()}")
            return gate.halted_pid() is not None

        self.wait_until(is_there, f"the halt at {gate}")
        pid = gate.halted_pid()
        assert pid is not None
        return pid

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        def came() -> bool:
            if is_so():
                return True
            assert self.is_alive, f"it ended before {what}:\n{self.log_tail()}"
            return False

        eventually(
            came,
            lambda: f"{what}:\n{self.log_tail()}",
            timeout_s=DEADLINE_S,
            pause_s=_POLL_S,
        )

    def wait_until_ended(self, pids: list[int]) -> None:
        """Wait for orphaned workers: they may still send until they end."""
        self.wait_until(lambda: not set(pids) & set(self.processes()), f"the end of {pids}")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def processes(self) -> dict[int, str]:
        """All that belongs to it, by id: the command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state, _, _, session_id, *_ = facts_of(int(path.name))
                if int(session_id) == self._process.pid and state != _ZOMBIE:
                    found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
        return found

    def executors(self) -> list[int]:
        """The JVMs in which tasks run."""
        lines = self.processes().items()
        return sorted(pid for pid, line in lines if "CoarseGrainedExecutorBackend" in line)

    def kill(self) -> None:
        """End everything at once: the driver, its JVM, executors and Python workers."""
        while processes := self.processes():
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(_POLL_S)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "SPARK_HOME": str(_spark_home(folder / "spark-home")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _spark_home(folder: Path) -> Path:
    """The installed Spark at another place: workers leave their files in its home."""
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def facts_of(pid: int) -> list[str]:
    """State, parent, group, session and more of a process; raises ``OSError`` if it is gone."""
    _, _, facts = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    return facts.split()


def parent_of(pid: int) -> int:
    return int(facts_of(pid)[1])


class SparkChildren:
    """At most one driver at a time; a killed driver is replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._master = ""
        self._child: SparkChild | None = None

    def take(self, master: str) -> SparkChild:
        if self._child is not None and (self._master != master or not self._child.is_alive):
            self.end()
        if self._child is None:
            self._count += 1
            self._child = SparkChild(master, self._folder / f"driver-{self._count}")
            self._master = master
        return self._child

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            shutil.rmtree(child.folder, ignore_errors=True)


# The cells.


@dataclass(frozen=True)
class Cell:
    """One crash: ``seed`` 0 is the plain case, others move it about.

    ``restart_on`` is where a query goes on whose driver is gone.
    """

    victim: str
    moment: str
    mode: str
    seed: int = 0
    restart_on: str = ONE_PROCESS

    def __str__(self) -> str:
        return f"{self.victim}-in-{self.moment}-{self.mode}-{self.seed}"


@dataclass(frozen=True)
class Course:
    """When exactly it happens, and how."""

    point: str
    batch_id: int = 1
    row_count: int = 7
    # Between the halt of a process and the kill, and until a broker is back.
    before_s: float = 0.0
    away_s: float = 0.0
    broker: int = 0
    # The part of an executor that dies: all of it, all but the Python worker, or the Python worker
    # alone.
    executor: str = "all"


def course_of(cell: Cell) -> Course:
    points = {"read": ["read"], "write": ["write"], "commit": ["decided", "commit", "committed"]}
    possible = points[cell.moment]
    if cell.mode != "transactional" and cell.moment == "commit":
        # This promise has no decision.
        possible = ["commit", "committed"]
    if cell.seed == 0:
        return Course(possible[0], row_count=0 if cell.moment == "read" else 7)
    chance = random.Random(str(cell))
    return Course(
        point=chance.choice(possible),
        batch_id=chance.randrange(ROW_COUNT // ROWS_PER_BATCH),
        row_count=chance.randrange(ROWS_PER_BATCH // 4),
        before_s=chance.choice([0.0, chance.uniform(0, 0.5)]),
        away_s=chance.choice([0.0, chance.uniform(0, 3)]),
        broker=chance.randrange(2),
        executor=chance.choice(["all", "orphan", "worker"]),
    )


class Copy:
    """One topic being copied into another."""

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, mode: str) -> None:
        self.cluster = cluster
        self.mode = mode
        self.source = make_topic(cluster, f"{name}-from", queues=2)
        self.sink = make_topic(cluster, f"{name}-to", queues=2)
        self.gate = Gate(str(folder / "gate"))
        self._checkpoint = str(folder / "checkpoint")
        send_by_key(cluster, self.source)

    def request(self, gate: Gate) -> dict[str, object]:
        return {
            "namesrv": self.cluster.namesrv,
            "source": self.source,
            "sink": self.sink,
            "checkpoint": self._checkpoint,
            "mode": self.mode,
            "rows_per_batch": ROWS_PER_BATCH,
            "gate": asdict(gate),
        }


def send_by_key(cluster: LocalCluster, topic: str) -> None:
    """Numbered messages; messages of a key are in one queue, in order."""
    queues = queues_of(cluster, topic)
    by_queue: defaultdict[int, list[Message]] = defaultdict(list)
    for number in range(ROW_COUNT):
        key = f"key-{number % KEY_COUNT}"
        place = abs(java_hash_of(key)) % len(queues)
        by_queue[place].append(Message(topic, str(number).encode(), keys=[key]))
    with Producer("crash-matrix", cluster.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for place, messages in by_queue.items():
            producer.send_batch(messages, queue=queues[place])


def run_cell(cell: Cell, cluster: LocalCluster, children: SparkChildren, folder: Path) -> None:
    """Crash, restart until everything is through, and judge."""
    copy = Copy(cluster, str(cell), folder, cell.mode)
    try:
        crash_and_restart(cell, copy, children)
    except BaseException:
        # It may be busy with this cell for long.
        children.end()
        raise
    judge(stored(cluster, copy.sink), copy.mode)


def crash_and_restart(cell: Cell, copy: Copy, children: SparkChildren) -> None:
    course = course_of(cell)
    master = ONE_PROCESS if cell.victim in ("driver", "both") else SEVERAL_PROCESSES
    child = children.take(master)
    broker = copy.cluster.brokers[course.broker]
    orphans: list[int] = []
    with halted(copy, course, child) as halted_pid:
        time.sleep(course.before_s)
        if cell.victim == "both":
            broker.kill()
        if cell.victim in ("driver", "both"):
            child.kill()
        elif cell.victim == "executor":
            kill_executor(child, halted_pid, course.executor)
            if course.executor == "orphan" and cell.moment != "commit":
                orphans.append(halted_pid)
        else:
            broker.kill()
    if cell.victim == "broker":
        time.sleep(course.away_s)
        broker.start()
    if cell.victim == "both":
        begin_without(broker, copy, children.take(cell.restart_on))
    elif cell.victim != "driver":
        # It may have got over it, or have failed: both are fine.
        child.answer()
        child.wait_until_ended(orphans)
    restart(copy, children, cell.restart_on if cell.victim in ("driver", "both") else master)


def begin_without(broker: LocalBroker, copy: Copy, child: SparkChild) -> None:
    """Start the query, and its broker only when the query waits for it or has failed."""
    child.ask("stream", **copy.request(Gate()))
    child.answers_within(AWAY_S)
    broker.start()
    # It waited, or has failed: both are fine.
    child.answer()


@contextmanager
def halted(copy: Copy, course: Course, child: SparkChild) -> Iterator[int]:
    """The copy runs and halts where it is to be hit; afterwards it goes on, if it still can."""
    gate = replace(
        copy.gate, point=course.point, batch_id=course.batch_id, row_count=course.row_count
    )
    gate.close()
    try:
        child.ask("stream", **copy.request(gate))
        yield child.wait_for_halt(gate)
    finally:
        gate.open()


def kill_executor(child: SparkChild, halted_pid: int, what: str) -> None:
    """End the executor whose worker halts, or any when it is the driver that halts."""
    daemon = parent_of(halted_pid)
    jvm = parent_of(daemon)
    if jvm not in child.executors():
        os.kill(child.executors()[0], signal.SIGKILL)
        return
    # Without its parent a worker does not notice that its executor is gone, and works on.
    doomed = {"all": [jvm, daemon, halted_pid], "orphan": [daemon, jvm], "worker": [halted_pid]}
    for pid in doomed[what]:
        os.kill(pid, signal.SIGKILL)


def restart(copy: Copy, children: SparkChildren, master: str) -> None:
    """Start the query from its checkpoint until it ends well."""
    errors: list[str] = []
    while len(errors) < RESTARTS_MAX:
        child = children.take(master)
        child.ask("stream", **copy.request(Gate()))
        error = child.answer()["error"]
        if error is None:
            return
        errors.append(error)
    raise AssertionError("it does not end well:\n" + "\n".join(errors))


# The judge.


def judge(found: list[ReceivedMessage], mode: str) -> None:
    """No message is missing; where promised none comes twice, and the order of each key is kept."""
    numbers = Counter(number_of(message) for message in found)
    missing = sorted(set(range(ROW_COUNT)) - set(numbers))
    assert not missing, f"missing: {missing}"
    assert set(numbers) == set(range(ROW_COUNT)), "rows that nobody sent"
    if mode == "none":
        return
    twice = sorted(number for number, count in numbers.items() if count > 1)
    assert not twice, f"more than once: {twice}"
    judge_order(found)


def judge_order(found: list[ReceivedMessage]) -> None:
    """A key's messages are in one queue in order; in a queue they began in later, if it changed."""
    by_key: defaultdict[str, list[ReceivedMessage]] = defaultdict(list)
    for message in sorted(found, key=number_of):
        by_key[f"key-{number_of(message) % KEY_COUNT}"].append(message)
    for key, messages in by_key.items():
        for one, other in pairwise(messages):
            is_in_order = (
                one.queue_offset < other.queue_offset
                if one.queue == other.queue
                else one.store_timestamp_ms <= other.store_timestamp_ms
            )
            assert is_in_order, f"{key}: {number_of(other)} is before {number_of(one)}"


def number_of(message: ReceivedMessage) -> int:
    text = message.body.decode()
    assert text.startswith("copy of "), text
    return int(text.removeprefix("copy of "))
