"""Executors that are processes of their own: rows over all of them, tasks again, executors lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from contrail.testing import LocalCluster
from tests.spark.crash_matrix import SEVERAL_PROCESSES, SparkChild, kill_executor
from tests.spark.crash_program import Gate
from tests.spark.stored import stored
from tests.spark.traffic import make_topic, orders, send_rows

# Three JVMs are to start on a busy machine.
pytestmark = pytest.mark.timeout(1200)

ROW_COUNT = 2_000
TASKS = 4


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkChild]:
    running = SparkChild(SEVERAL_PROCESSES, tmp_path_factory.mktemp("driver") / "driver")
    yield running
    running.kill()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Callable[..., Gate]]:
    """Makes gates, which are all open after the test."""
    made: list[Gate] = []

    def make(point: str = "", row_count: int = 0, fails: bool = False) -> Gate:
        folder = str(tmp_path / f"gate-{len(made)}")
        made.append(Gate(folder, point, row_count=row_count, fails=fails))
        made[-1].close()
        return made[-1]

    yield make
    for one in made:
        one.open()


def write(
    child: SparkChild, cluster: LocalCluster, topic: str, mode: str, gate: Gate
) -> Callable[[], None]:
    """Begin to write; the returned function waits for the end."""
    child.ask(
        "write",
        namesrv=cluster.namesrv,
        topic=make_topic(cluster, topic),
        row_count=ROW_COUNT,
        tasks=TASKS,
        options={"idempotence": mode} | ({} if mode == "none" else {"writeId": topic}),
        gate=asdict(gate),
    )

    def finish() -> None:
        assert child.answer()["error"] is None

    return finish


def numbers(cluster: LocalCluster, topic: str) -> list[int]:
    return sorted(int(message.body) for message in stored(cluster, topic))


def attempts(gate: Gate, what: str) -> set[tuple[int, int]]:
    """Partition and attempt number of each task that began."""
    return {(partition, attempt) for kind, partition, attempt, _ in gate.tasks() if kind == what}


def executors_used(gate: Gate) -> int:
    return len({parent for *_, parent in gate.tasks()})


@pytest.mark.proves("spark.shown.processes")
def test_a_read_runs_on_all_executors(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate]
) -> None:
    topic = make_topic(cluster, "read-by-two")
    landed = send_rows(cluster, orders(topic, ROW_COUNT))
    open_gate = gate()
    child.ask("read", namesrv=cluster.namesrv, topic=topic, gate=asdict(open_gate))
    answer = child.answer()
    assert answer["error"] is None
    assert sorted(map(tuple, answer["rows"])) == sorted(
        (queue.queue_id, at, body.decode()) for queue, at, body in landed
    )
    assert executors_used(open_gate) == len(child.executors()) == 2


@pytest.mark.parametrize("mode", ["none", "dedupe", "transactional"])
def test_a_write_runs_on_all_executors(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate], mode: str
) -> None:
    open_gate = gate()
    write(child, cluster, f"written-by-two-{mode}", mode, open_gate)()
    assert numbers(cluster, f"written-by-two-{mode}") == list(range(ROW_COUNT))
    assert attempts(open_gate, "write") == {(partition, 0) for partition in range(TASKS)}
    assert executors_used(open_gate) == 2


@pytest.mark.proves("spark.shown.processes")
@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_task_that_failed_once_runs_again_and_repeats_no_row(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate], mode: str
) -> None:
    failing = gate("write", row_count=300, fails=True)
    write(child, cluster, f"failed-once-{mode}", mode, failing)()
    assert numbers(cluster, f"failed-once-{mode}") == list(range(ROW_COUNT))
    assert {attempt for _, attempt in attempts(failing, "write")} == {0, 1}


def test_without_idempotence_the_rows_of_a_failed_task_are_all_there(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate]
) -> None:
    failing = gate("write", row_count=300, fails=True)
    write(child, cluster, "failed-plainly", "none", failing)()
    assert set(numbers(cluster, "failed-plainly")) == set(range(ROW_COUNT))
    assert {attempt for _, attempt in attempts(failing, "write")} == {0, 1}


@pytest.mark.proves("spark.shown.processes")
@pytest.mark.parametrize("what", ["all", "orphan"])
@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_an_executor_lost_in_a_write_costs_no_row_and_repeats_none(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate], mode: str, what: str
) -> None:
    topic = f"lost-in-write-{mode}-{what}"
    closed = gate("write", row_count=300)
    finish = write(child, cluster, topic, mode, closed)
    worker = child.wait_for_halt(closed)
    kill_executor(child, worker, what)
    # A worker that is left behind sends the rest of its rows beside the one that took over.
    closed.open()
    finish()
    child.wait_until_ended([worker])
    assert numbers(cluster, topic) == list(range(ROW_COUNT))
    assert max(attempt for _, attempt in attempts(closed, "write")) >= 1


def test_an_executor_lost_in_a_read_costs_no_row(
    child: SparkChild, cluster: LocalCluster, gate: Callable[..., Gate]
) -> None:
    topic = make_topic(cluster, "lost-in-read")
    send_rows(cluster, orders(topic, ROW_COUNT))
    closed = gate("read", row_count=100)
    child.ask("read", namesrv=cluster.namesrv, topic=topic, gate=asdict(closed))
    kill_executor(child, child.wait_for_halt(closed), "all")
    closed.open()
    answer = child.answer()
    assert answer["error"] is None
    bodies = sorted(body for _, _, body in answer["rows"])
    assert bodies == sorted(f"order {number}" for number in range(ROW_COUNT))
    assert max(attempt for _, attempt in attempts(closed, "read")) >= 1
