"""Our client at brokers whose master goes away for a moment."""

from __future__ import annotations

import threading

import pytest

from contrail import Message, Producer
from contrail.testing import LocalCluster

pytestmark = pytest.mark.proves("replication.failover.client")


def test_sends_wait_for_a_master_that_is_killed_and_comes_back() -> None:
    with LocalCluster(slaves=1) as cluster:
        (master,) = cluster.brokers
        with Producer("g", cluster.namesrv, retry_times_when_send_failed=1) as producer:
            queue = producer.send(Message("orders", b"before")).queue
            # Refusals of a member that does not lead, more than there are retries.
            master.refuse_sends(14, count=4)
            assert producer.send(Message("orders", b"refused first"), queue=queue)

            master.kill()
            back = threading.Timer(0.5, master.start)
            back.start()
            chosen = producer.send_async(
                Message("orders", b"own queue"), queue=queue, timeout_ms=30_000
            )
            assert producer.send(Message("orders", b"meanwhile"), timeout_ms=30_000)
            assert chosen.result(30).queue == queue
            back.join()
