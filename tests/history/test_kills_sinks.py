"""Sinks survive kills: rows are stored once and in order, decisions are kept."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from contrail.errors import ContrailError
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.sink_asking import ask_commit, commit, rows, send_fields, status
from tests.history.campaign import TIMEOUT_S, kills_asked_for
from tests.seeds import seed_asked_for

_TOPIC = "rows"
_SINK = "query"
_QUEUE_COUNT = 2
_REQUEST_ROWS = 40
_REQUEST_COUNT = 8
_PAUSE_S = 0.02
# Errors of a broker that went away, or is going: the same request is sent again.
_AGAIN = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.GO_AWAY,
    }
)


class Killed:
    """A broker that is killed now and then, and started again at once."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.asker = Asker(cluster)
        self.kill_count = 0

    @contextmanager
    def soon(self, delay_ms_max: float) -> Iterator[None]:
        """Kill the broker within ``delay_ms_max``, while a request is under way."""
        timer = threading.Timer(self._random.random() * delay_ms_max / 1000, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def kill(self) -> None:
        broker = self._cluster.brokers[0]
        broker.kill()
        broker.start()
        self.kill_count += 1


def insist(ask: Callable[[], ReceivedResponse]) -> None:
    """Repeat a request until its answer does not depend on kills."""
    while True:
        try:
            answer = ask()
        except ContrailError:
            time.sleep(_PAUSE_S)
            continue
        if answer.code not in _AGAIN:
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
            return


def send_batch(broker: Asker, batch_id: int, attempt: str = "") -> None:
    """All rows of two tasks, a request at a time, each until it is answered."""
    for partition in range(_QUEUE_COUNT):
        key = f"{_SINK}/{batch_id}/{partition}"
        fields = send_fields(_TOPIC, partition, prepared="true" if attempt else "false")
        for number in range(_REQUEST_COUNT):
            seqs = range(number * _REQUEST_ROWS, (number + 1) * _REQUEST_ROWS)
            body = rows(key, seqs, attempt=attempt)
            insist(partial(broker.ask, RequestCode.CONTRAIL_SINK_SEND, fields, body))


def expected(partition: int, batch_count: int) -> list[bytes]:
    return [
        f"{_SINK}/{batch_id}/{partition}#{seq}".encode()
        for batch_id in range(batch_count)
        for seq in range(_REQUEST_ROWS * _REQUEST_COUNT)
    ]


def make_topic(broker: Asker) -> None:
    """Create the topic and wait until it is on the disk: a kill before that loses it."""
    broker.make_topic(_TOPIC, read=_QUEUE_COUNT, write=_QUEUE_COUNT)
    path = broker.broker.folder / "store" / "config" / "topics.json"
    eventually(lambda: path.exists() and f'"{_TOPIC}"' in path.read_text(), "the topic is written")


def cluster_of(folder: Path, flush: str) -> LocalCluster:
    return LocalCluster(folder=folder, in_children=True, properties={"flushDiskType": flush})


@pytest.mark.proves("spark.sink.broker-kills")
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_rows_are_stored_once_over_kills(tmp_path: Path, flush: str) -> None:
    with cluster_of(tmp_path, flush) as cluster:
        killed = Killed(cluster, seed_asked_for(71))
        make_topic(killed.asker)
        batch_count = kills_asked_for(4)
        for batch_id in range(batch_count):
            with killed.soon(120):
                send_batch(killed.asker, batch_id)
            # A query that starts again sends its last batch once more.
            send_batch(killed.asker, batch_id)
        assert killed.kill_count == batch_count
        for queue_id in range(_QUEUE_COUNT):
            found = killed.asker.bodies(_TOPIC, queue_id)
            assert found == expected(queue_id, batch_count)


@pytest.mark.proves("spark.sink.broker-kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_decided_batches_become_visible_once_over_kills(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "SYNC_FLUSH") as cluster:
        killed = Killed(cluster, seed_asked_for(72))
        broker = killed.asker
        make_topic(broker)
        batch_count = kills_asked_for(4)
        for batch_id in range(batch_count):
            send_batch(broker, batch_id, "lost")
            with killed.soon(150):
                send_batch(broker, batch_id, "won")
            attempts = {str(partition): "won" for partition in range(_QUEUE_COUNT)}
            with killed.soon(60):
                for decide in (True, False):
                    insist(partial(ask_commit, broker, _SINK, batch_id, attempts, decide=decide))
            # A writer that was killed too asks for the decision, and carries it out.
            assert status(broker, _SINK)["decided"] == {
                "batchId": batch_id,
                "participants": {broker.broker.name: attempts},
            }
            assert commit(broker, _SINK, batch_id, attempts) == (0, 0)
        for queue_id in range(_QUEUE_COUNT):
            assert broker.bodies(_TOPIC, queue_id) == expected(queue_id, batch_count)
