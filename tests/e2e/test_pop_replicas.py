"""Pops beside replicas: a slave refuses them and follows, and goes on with them once promoted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.pop_asking import GROUP, TOPIC, PopAsker, Popped, popped, receipt_fields
from tests.e2e.replica_waits import wait_for_slave

INVISIBLE_MS = "3000"


class At(PopAsker):
    """A consumer at one of the cluster's brokers."""

    def __init__(self, cluster: LocalCluster, broker: LocalBroker) -> None:
        super().__init__(cluster)
        self.at = broker

    def ask(self, code: int, fields: object = None, body: bytes = b"") -> ReceivedResponse:
        return self.cluster.caller.call(self.at.address, code, fields or {}, body)  # type: ignore[arg-type]


@pytest.mark.proves("kinds.pop.replicas")
def test_a_promoted_slave_delivers_what_was_not_acknowledged_and_nothing_else(
    tmp_path: Path,
) -> None:
    properties = {"contrailPopGraceMs": "0", "flushConsumerOffsetInterval": "300"}
    with LocalCluster(slaves=1, folder=tmp_path, properties=properties) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        at_master, at_slave = At(cluster, master), At(cluster, slave)
        at_master.make_topic(TOPIC)
        at_master.make_group(GROUP)
        for number in range(6):
            at_master.stored(TOPIC, b"%d" % number)
        held = at_master.popped(queueId="0", maxMsgNums="4", invisibleTime=INVISIBLE_MS)
        assert at_master.ack(held[0]).code == ResponseCode.SUCCESS
        answer = at_master.prolong(held[1], 4000)
        assert answer.code == ResponseCode.SUCCESS
        for code, fields in (
            (RequestCode.POP_MESSAGE, at_slave.pop_fields()),
            (RequestCode.ACK_MESSAGE, receipt_fields(held[2])),
            (RequestCode.NOTIFICATION, at_slave.pop_fields()),
        ):
            refused = at_slave.ask(code, fields)
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, (code, refused)
        wait_for_slave(cluster)
        eventually(
            lambda: offset(at_slave.at) >= 4, lambda: f"the slave has offset {offset(at_slave.at)}"
        )
        master.kill()
        slave.stop()
        slave.own_properties = {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
        slave.start()
        found: list[Popped] = []

        def took() -> bool:
            for one in popped(at_slave.pop(invisibleTime="60000")):
                found.append(one)
                at_slave.ack(one)
            return len(found) >= 5

        eventually(took, lambda: f"{[one.body for one in found]}", pause_s=0.2, timeout_s=30)
        assert Counter(one.body for one in found) == Counter([b"1", b"2", b"3", b"4", b"5"])
        tries = {one.body: one.message.reconsume_times for one in found}
        assert tries == {b"1": 1, b"2": 1, b"3": 1, b"4": 0, b"5": 0}
        assert popped(at_slave.pop()) == [], "each once"


def offset(broker: LocalBroker) -> int:
    assert broker.app is not None
    return broker.app.tables.consumer_offsets.query(GROUP, TOPIC, 0)
