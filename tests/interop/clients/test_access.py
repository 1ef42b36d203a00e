"""Official clients with right, wrong, missing and a disabled user's credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Admin, Credentials
from contrail.testing import LocalCluster, eventually
from tests.e2e.access_setup import ACCESS, ADMIN, Signer
from tests.interop.clients.driver import Driver
from tests.interop.clients.registry import CLIENTS, DRIVERS
from tests.interop.clients.traffic import consume, send, sender

USER = Credentials("clients", "the-password-of-the-clients")
GONE = Credentials("gone", "the-password-of-gone")
COUNT = 6
# The largest message; the C++ client sends no larger one.
LARGE_BYTES = {"cpp": 130_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties=ACCESS) as cluster:
        broker = cluster.brokers[0]
        with Signer(broker, ADMIN) as admin:
            for one in (USER, GONE):
                admin.make_user(one)
            admin.change_user("gone", userStatus="disable")
            for name in ("clients", "gone"):
                rights = [("Topic:signed-*", "Pub,Sub,Get"), ("Group:*", "Sub")]
                # The topics that clients ask about by themselves.
                rights.append(("Topic:*", "Sub,Get"))
                admin.grant(name, *rights)
        yield cluster


def topic_of(cluster: LocalCluster, client: str, what: str) -> str:
    topic = f"signed-{client}-{what}"
    with Admin(cluster.namesrv, credentials=ADMIN) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def driver(client: str, folder: Path, credentials: Credentials | None) -> Driver:
    made = DRIVERS[client](folder)
    made.credentials = credentials
    return made


def stored(cluster: LocalCluster, topic: str) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    return sum(app.store.queue_offset_max(topic.encode(), queue) for queue in range(2))


def refused(cluster: LocalCluster, made: Driver, topic: str) -> None:
    """Nothing is stored; a refused client ends as it likes."""
    with sender(made, cluster, topic, mode="sync", count=1) as running:
        eventually(lambda: not running.running or running.of("error"), timeout_s=100)
    assert stored(cluster, topic) == 0


@pytest.mark.matrix
@pytest.mark.proves("access.shown.clients")
@pytest.mark.parametrize("client", CLIENTS)
def test_right_credentials_send_and_receive_and_others_do_not(
    cluster: LocalCluster, client: str, tmp_path: Path
) -> None:
    topic = topic_of(cluster, client, "sync")
    made = driver(client, tmp_path / "right", USER)
    send(made, cluster, topic, mode="sync", count=COUNT, tag="red")
    send(
        made,
        cluster,
        topic,
        mode="sync",
        count=1,
        start=COUNT + 1,
        body_bytes=LARGE_BYTES.get(client, 3_900_000),
    )
    assert stored(cluster, topic) == COUNT + 1
    got = consume(made, cluster, topic, count=COUNT + 1, group=f"{topic}-group")
    assert len({event["key"] for event in got}) == COUNT + 1
    for what, credentials in (
        ("wrong", Credentials(USER.access_key, "guessed")),
        ("gone", GONE),
        ("missing", None),
    ):
        other = topic_of(cluster, client, what)
        refused(cluster, driver(client, tmp_path / what, credentials), other)
