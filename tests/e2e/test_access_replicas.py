"""Brokers sign among themselves: a slave follows a master with access control."""

from __future__ import annotations

import pytest

from contrail import Admin, Credentials
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.access_setup import ACCESS, ADMIN, Signer
from tests.e2e.raw_client import send_fields


@pytest.mark.proves("access.signing.brokers")
def test_a_slave_follows_the_tables_of_a_master_that_asks_for_signatures() -> None:
    with LocalCluster(slaves=1, properties=ACCESS) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        with Admin(master.namesrv, credentials=ADMIN) as admin:
            admin.create_topic("orders", queues=3)
        with Signer(master, ADMIN) as client:
            assert client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x").code == 0
        app = slave.app
        assert app is not None
        eventually(lambda: app.tables.topics.table.get("orders") is not None, timeout_s=60)
        eventually(lambda: app.store.queue_offset_max(b"orders", 0) == 1, timeout_s=60)
        # The slave asks for signatures, too, and has a table of users of its own.
        with Signer(slave, None) as stranger:
            refused = stranger.ask(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
            assert refused.code == ResponseCode.NO_PERMISSION
        with Signer(slave, ADMIN) as client:
            assert client.make_user(Credentials("reader", "reader-password")).code == 0
            listed = client.ask(RequestCode.AUTH_LIST_USER)
            assert b"reader" in listed.body
        with Signer(master, ADMIN) as client:
            assert b"reader" not in client.ask(RequestCode.AUTH_LIST_USER).body
