"""Jobs that deliver or decide run where the broker leads, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.protocol.codes import RequestCode
from tests.e2e.held_broker import DELAYED, TIMED, Held
from tests.e2e.raw_client import heartbeat
from tests.e2e.sink_asking import rows, send_fields

pytestmark = pytest.mark.proves("replication.ground.leading-jobs")

MASTER = {"brokerRole": "ASYNC_MASTER"}
PEERS = {"contrailHaCompat": "true", "haListenPort": "0"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", **PEERS}
HOUR_MS = 3_600_000
TRACED = {"contrailBrokerTraceEnable": "true"}

# The jobs of every broker: for its own files, for its consumers' long pulls, and to be found.
EVERYWHERE = {
    "store upkeep",
    "late flushes",
    "statistics",
    "write tables",
    "held pulls",
    "held pulls that end",
    "silent clients",
    "queue locks",
    "locks of gone clients",
    "register",
}
# The jobs that append to the log, or write down how far that has come.
LEADING = {
    "delay levels",
    "timers",
    "pop",
    "pops that end",
    "notifications that end",
    "queues popped in order",
    "transactions",
    "transaction checks",
    "sinks",
    "broker traces",
    "silent producers",
}


def jobs_of(broker: Held) -> set[str]:
    schedule = broker.app.schedule
    return {job.name for job in (*schedule._jobs, *schedule._deadlines)}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (MASTER, EVERYWHERE | LEADING),
        ({**MASTER, **PEERS}, EVERYWHERE | LEADING | {"ends of the log"}),
        (SLAVE, EVERYWHERE | {"tables of the master"}),
    ],
    ids=["alone", "master", "slave"],
)
def test_the_jobs_of_each_role(tmp_path: Path, settings: dict[str, str], wanted: set[str]) -> None:
    with Held(tmp_path, **settings, **TRACED) as broker:
        assert jobs_of(broker) == wanted


def files_of(folder: Path) -> dict[str, bytes]:
    """The log, and the files of tables, cursors and timers."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name in ("commitlog", "config", "timerlog")
    }


def test_a_slave_delivers_checks_writes_and_makes_nothing_by_itself(tmp_path: Path) -> None:
    """The folder of a master in which everything waits, opened as a slave for an hour."""
    clock = ManualClock()
    with Held(tmp_path, clock, **MASTER) as master:
        master.send()
        master.send(**DELAYED)
        master.send(**TIMED)
        commit = master.half()
        answer = master.client.call(
            RequestCode.CONTRAIL_SINK_SEND, send_fields("orders"), rows("a/1/0", [1, 2])
        )
        assert answer.code == 0, answer.remark
    before = files_of(tmp_path)
    # Longer than any timer, check or, at the slave, retention of a sink's rows.
    clock.advance(ms=HOUR_MS)
    forgets = {"contrailSinkRetentionMs": str(HOUR_MS // 2)}
    with Held(tmp_path, clock, **SLAVE, **TRACED, **forgets) as slave:
        end = slave.store.physical_end
        beats = [heartbeat("one@1", group="billing"), producer("two@1")]
        for beat in beats:
            slave.client.call(RequestCode.HEART_BEAT, {}, beat)
        slave.pass_time(60_000)
        assert not slave.client.has_news(), "a producer was asked for the fate of its transaction"
        assert slave.store.physical_end == end and slave.count("orders") == 3
        assert not slave.app.kinds.open_transactions, "a slave takes no open transaction up"
    found = files_of(tmp_path)
    assert {name for name in found | before if found.get(name) != before.get(name)} == set()
    # Nothing was lost meanwhile.
    with Held(tmp_path, clock, **MASTER) as master:
        assert master.client.call(RequestCode.END_TRANSACTION, commit).code == 0
        master.pass_time()
        assert master.count("orders") == 6
        again = master.client.call(
            RequestCode.CONTRAIL_SINK_SEND, send_fields("orders"), rows("a/1/0", [1, 2, 3])
        )
        assert (again.fields["storedCount"], again.fields["droppedCount"]) == ("1", "2")


def producer(client: str) -> bytes:
    return b'{"clientID":"%s","producerDataSet":[{"groupName":"producers"}]}' % client.encode()
