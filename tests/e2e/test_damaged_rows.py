"""Rows of the broker's own queues are damaged, the log is whole: nothing is lost or doubled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.model.topic import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages

TOPIC = "orders"
COUNT = 8
BODIES = [f"{number}".encode() for number in range(COUNT)]
DAMAGE = ["zeros", "elsewhere", "nowhere"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path, clock=ManualClock()) as running:
        Asker(running).make_topic(TOPIC, read=1, write=1)
        yield running


@pytest.fixture
def root(cluster: LocalCluster) -> Path:
    return Path(cluster.brokers[0].properties()["storePathRootDir"])


def damage(
    root: Path, topic: str, queue_id: int, kind: str, first: int = 1, count: int = 3
) -> None:
    """Some rows in the middle: all zeros, leading to another's record, or out of the log."""
    (path,) = (root / "consumequeue" / topic / str(queue_id)).iterdir()
    data = bytearray(path.read_bytes())
    for number in range(1, 4):
        at = number * 20
        assert any(data[at : at + 20]), "there is a row to be damaged"
        if kind == "zeros":
            data[at : at + 20] = bytes(20)
        elif kind == "elsewhere":
            data[at : at + 12] = data[:12]
        else:
            data[at + 2] ^= 0x40
    path.write_bytes(data)


def restarted(cluster: LocalCluster, root: Path, *damages: tuple[str, int, str]) -> None:
    cluster.brokers[0].stop()
    for topic, queue_id, kind in damages:
        damage(root, topic, queue_id, kind)
    cluster.brokers[0].start()


def until(cluster: LocalCluster, is_so: Callable[[], bool], what: str) -> None:
    """Move the clock in small steps, by which the store looks after its rows."""

    def moved() -> bool:
        cluster.advance(ms=100)
        return is_so()

    eventually(moved, what)


def half(asker: Asker, body: bytes) -> None:
    asker.stored(TOPIC, body, properties={"TRAN_MSG": "true", "PGROUP": "payers"}, f="4")


def open_ids(asker: Asker) -> list[str]:
    answer = asker.done(RequestCode.LIST_TRANSACTIONS, {"limit": "1000"})
    return [str(one["transactionId"]) for one in json.loads(answer.body)]


def decide(asker: Asker, transaction_id: str) -> None:
    fields = {"transactionId": transaction_id, "fate": "commit"}
    asker.done(RequestCode.DECIDE_TRANSACTION, fields)


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("kind", DAMAGE)
def test_half_messages_behind_damaged_rows_are_all_open_once(
    cluster: LocalCluster, root: Path, kind: str
) -> None:
    asker = Asker(cluster)
    for body in BODIES:
        half(asker, body)
    until(cluster, lambda: len(open_ids(asker)) == COUNT, "all are open")
    ids = open_ids(asker)
    restarted(cluster, root, (HALF_TOPIC, 0, kind))
    assert sorted(open_ids(asker)) == sorted(ids)
    for one in ids:
        decide(asker, one)
    until(cluster, lambda: len(asker.bodies(TOPIC)) == COUNT, "all are delivered")
    assert sorted(asker.bodies(TOPIC)) == BODIES and open_ids(asker) == []


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("kind", DAMAGE)
def test_fates_behind_damaged_rows_of_the_op_queue_are_not_forgotten(
    cluster: LocalCluster, root: Path, kind: str
) -> None:
    asker = Asker(cluster)
    for body in BODIES:
        half(asker, body)
    until(cluster, lambda: len(open_ids(asker)) == COUNT, "all are open")
    ids = open_ids(asker)
    # The first one stays open, so that the cursors stay before all of them.
    for one in ids[1:6]:
        decide(asker, one)
    until(cluster, lambda: len(asker.bodies(TOPIC)) == 5, "five are delivered")
    restarted(cluster, root, (OP_HALF_TOPIC, 0, kind), (HALF_TOPIC, 0, kind))
    assert sorted(open_ids(asker)) == sorted([ids[0], *ids[6:]])
    for one in open_ids(asker):
        decide(asker, one)
    until(cluster, lambda: len(asker.bodies(TOPIC)) == COUNT, "all are delivered")
    assert sorted(asker.bodies(TOPIC)) == BODIES


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("kind", DAMAGE)
def test_delayed_messages_behind_damaged_rows_are_delivered_once(
    cluster: LocalCluster, root: Path, kind: str
) -> None:
    asker = Asker(cluster)
    for body in BODIES:
        asker.stored(TOPIC, body, properties={"DELAY": "3"})
    restarted(cluster, root, (SCHEDULE_TOPIC, 2, kind))
    cluster.advance(ms=10_000)
    until(cluster, lambda: len(asker.bodies(TOPIC)) >= COUNT, "all are delivered")
    assert asker.bodies(TOPIC) == BODIES
    restarted(cluster, root, (SCHEDULE_TOPIC, 2, kind))
    cluster.advance(ms=10_000)
    asker.stored(TOPIC, b"last", properties={"DELAY": "1"})
    cluster.advance(ms=2_000)
    until(cluster, lambda: asker.bodies(TOPIC)[-1] == b"last", "the last one is delivered")
    assert asker.bodies(TOPIC) == [*BODIES, b"last"]


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("kind", DAMAGE)
def test_timers_behind_damaged_rows_are_delivered_once(
    cluster: LocalCluster, root: Path, kind: str
) -> None:
    asker = Asker(cluster)
    due = str(cluster.clock.now_ms() + 20_000)
    for body in BODIES:
        asker.stored(TOPIC, body, properties={"TIMER_DELIVER_MS": due})
    cluster.brokers[0].stop()
    damage(root, TIMER_TOPIC, 0, kind)
    # Without the files of the timers all of them are taken from the queue again.
    shutil.rmtree(root / "timerlog", ignore_errors=True)
    (root / "timerwheel").unlink(missing_ok=True)
    (root / "config" / "timercheck").unlink(missing_ok=True)
    cluster.brokers[0].start()
    cluster.advance(ms=30_000)
    until(cluster, lambda: len(asker.bodies(TOPIC)) >= COUNT, "all are delivered")
    assert sorted(asker.bodies(TOPIC)) == BODIES


@pytest.mark.proves("store.repairs.taken-in-again")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_consumer_waits_for_damaged_rows_and_gets_everything(
    cluster: LocalCluster, root: Path, kind: str
) -> None:
    asker = Asker(cluster)
    for body in BODIES:
        asker.stored(TOPIC, body)
    restarted(cluster, root, (TOPIC, 0, kind))
    found: list[bytes] = []
    until(cluster, lambda: _read_on(asker, found) >= COUNT, "the rows are derived again")
    assert found == BODIES


def _read_on(asker: Asker, found: list[bytes]) -> int:
    found += [message.body for message in messages(asker.pull(TOPIC, len(found)))]
    return len(found)
