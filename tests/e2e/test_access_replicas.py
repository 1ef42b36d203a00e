"""Users and rights of brokers of one name: changed where one leads, known at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Admin, Credentials
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.access_setup import ACCESS, ADMIN, INNER, Signer
from tests.e2e.raw_client import send_fields

SEND, REFUSED = RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION
READER = Credentials("reader", "a-secret-of-the-reader")
LATE = Credentials("late", "a-secret-made-after-a-change-of-leader")
MAX_OFFSET = RequestCode.GET_MAX_OFFSET
STALE = {"contrailAccessStaleMillis": "2000"}
ORDERS = {"topic": "orders", "queueId": "0"}


def files_with(folder: Path, secrets: list[str]) -> Iterator[str]:
    """The files below a folder that hold one of the secrets, plain or in hexadecimal."""
    wanted = [form for one in secrets for form in (one.encode(), one.encode().hex().encode())]
    for path in folder.rglob("*"):
        if path.is_file() and any(one in path.read_bytes() for one in wanted):
            yield path.name


def may_ask(broker: LocalBroker, credentials: Credentials) -> bool:
    with Signer(broker, credentials) as client:
        return client.ask(MAX_OFFSET, ORDERS).code == 0


@pytest.mark.proves("access.signing.brokers", "access.guards.replicas", "access.guards.stale")
@pytest.mark.proves("access.settings.secrets")
def test_a_slave_has_the_users_of_its_master_within_a_second() -> None:
    with LocalCluster(slaves=1, properties=ACCESS | STALE) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        app = slave.app
        assert app is not None and app.access.copies is not None
        with Admin(master.namesrv, credentials=ADMIN) as admin:
            admin.create_topic("orders", queues=3)
        with Signer(master, ADMIN) as client:
            assert client.ask(SEND, send_fields("orders"), b"x").code == 0
            eventually(lambda: app.store.queue_offset_max(b"orders", 0) == 1, timeout_s=60)
            eventually(lambda: app.access.copies.leader == f"127.0.0.1:{master.port}")
            assert not may_ask(slave, READER)
            assert client.make_user(READER).code == 0
            client.grant("reader", ("Topic:orders", "Sub"))
            eventually(lambda: may_ask(slave, READER), timeout_s=2)
            client.change_user("reader", userStatus="disable")
            eventually(lambda: not may_ask(slave, READER), timeout_s=2)
            client.change_user("reader", userStatus="enable")
        with Signer(slave, ADMIN) as client:
            told = client.make_user(Credentials("other", "other-password"))
            assert told.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert f"127.0.0.1:{master.port}" in (told.remark or "")
        with Signer(slave, None) as stranger:
            assert stranger.ask(MAX_OFFSET, ORDERS).code == REFUSED
        eventually(lambda: may_ask(slave, READER), timeout_s=2)
        # A replica that hears nothing says so, and believes nobody but the settings' users.
        master.stop()
        eventually(lambda: not may_ask(slave, READER), timeout_s=10)
        with Signer(slave, READER) as reader:
            told = reader.ask(MAX_OFFSET, ORDERS)
            assert told.code == REFUSED and "contrailAccessStaleMillis" in (told.remark or "")
        assert may_ask(slave, ADMIN) and may_ask(slave, INNER)
        found = set(files_with(cluster.folder, [READER.secret_key]))
        assert found and {name.split(".")[0] for name in found} == {"contrailAcl"}, found


@pytest.mark.proves("access.guards.replicas", "access.settings.secrets")
def test_members_of_a_failover_group_share_their_users() -> None:
    with LocalCluster(members=3, properties=ACCESS) as group:
        with Admin(group.brokers[0].namesrv, credentials=ADMIN) as admin:
            leader = group.wait_for_leader()
            admin.create_topic("orders", queues=1)
        with Signer(leader, ADMIN) as client:
            # Answered when a majority has the user.
            assert client.make_user(READER).code == 0
            client.grant("reader", ("Topic:orders", "Sub,Pub"))
        having = [one for one in group.brokers if "reader" in _users(one)]
        assert len(having) >= 2
        follower = next(one for one in group.brokers if one is not leader)
        with Signer(follower, ADMIN) as client:
            assert client.make_user(LATE).code == ResponseCode.SERVICE_NOT_AVAILABLE
        leader.kill()
        new = group.wait_for_leader(besides=leader)
        eventually(lambda: may_ask(new, READER), timeout_s=5)
        with Signer(new, ADMIN) as client:
            assert client.make_user(LATE).code == 0
        secrets = [READER.secret_key, LATE.secret_key]
        found = {name.split(".")[0] for name in files_with(group.folder, secrets)}
        assert found == {"contrailAcl"}, found


def _users(broker: LocalBroker) -> set[str]:
    assert broker.app is not None and broker.app.access.gate is not None
    return set(broker.app.access.gate.table.users)
