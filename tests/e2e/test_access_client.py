"""Our clients and our command line at a broker with access control."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import (
    Admin,
    Credentials,
    CredentialsFile,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
)
from contrail.aio import Producer as AsyncProducer
from contrail.client.raw_pulls import RawPulls
from contrail.client.settings import ClientSettings
from contrail.client.state.pull_ahead import Ask
from contrail.errors import SendFailed
from contrail.model.subscription import SubscriptionData
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.access_setup import ACCESS, ADMIN, Signer

SHOP = Credentials("shop", "shop-password")
RIGHTS = (
    ("Topic:orders", "Pub,Sub"),
    ("Topic:wishes", "Pub,Sub"),
    ("Group:billing", "Sub"),
    ("Group:TOOLS_CONSUMER", "Sub"),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalCluster(properties=ACCESS) as cluster:
        broker = cluster.brokers[0]
        with Signer(broker, ADMIN) as admin:
            assert admin.make_user(SHOP).code == 0
            assert admin.grant("shop", *RIGHTS).code == 0
        with Admin(broker.namesrv, credentials=ADMIN) as client:
            client.create_topic("orders", queues=1)
            client.create_topic("wishes", queues=1)
            client.create_topic("secrets", queues=1)
        yield broker


@pytest.mark.proves("access.signing.python")
def test_a_client_that_signs_does_what_its_user_may_do(broker: LocalBroker) -> None:
    with Producer(group="shop", namesrv=broker.namesrv, credentials=SHOP) as producer:
        producer.send(Message("orders", b"one"))
        producer.send_batch([Message("orders", b"two"), Message("orders", b"three")])
        producer.send(Message("orders", b"large" * 400_000, keys=["schlüssel"]))
        with pytest.raises(SendFailed, match=r"User:shop has no right to Pub on Topic:secrets"):
            producer.send(Message("secrets", b"none of mine"))
    with PushConsumer(
        group="billing",
        namesrv=broker.namesrv,
        credentials=SHOP,
        consume_from_where="first",
    ) as consumer:
        consumer.subscribe("orders", "*")
        bodies = []
        for message in consumer:
            bodies.append(len(message.body))
            message.ack()
            if len(bodies) == 4:
                break
    assert sorted(bodies) == [3, 3, 5, 2_000_000]
    with PullConsumer(
        group="billing", namesrv=broker.namesrv, credentials=SHOP, consume_from_where="first"
    ) as consumer:
        consumer.assign([MessageQueue("orders", broker.name, 0)])
        consumer.seek_to_begin(MessageQueue("orders", broker.name, 0))
        assert [message.body for message in consumer.poll()][:1] == [b"one"]


@pytest.mark.proves("access.signing.python")
def test_transactions_are_ended_and_checked_over_a_signed_connection(broker: LocalBroker) -> None:
    async def run() -> None:
        async with (
            AsyncProducer(group="shop", namesrv=broker.namesrv, credentials=SHOP) as producer,
            producer.transaction(Message("wishes", b"granted")),
        ):
            pass

    asyncio.run(run())
    app = broker.app
    assert app is not None
    eventually(lambda: app.store.queue_offset_max(b"wishes", 0) == 1)


@pytest.mark.proves("access.signing.python")
def test_credentials_come_from_the_environment_a_file_or_a_function(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(**given: object) -> None:
        with Producer(group="shop", namesrv=broker.namesrv, **given) as producer:
            producer.send(Message("orders", b"signed"))

    with pytest.raises(SendFailed):
        send()
    path = tmp_path / "credentials"
    path.write_text("accessKey=shop\nsecretKey=wrong\n")
    path.chmod(0o600)
    with pytest.raises(SendFailed):
        send(credentials=CredentialsFile(path))
    with Producer(
        group="shop", namesrv=broker.namesrv, credentials=CredentialsFile(path)
    ) as producer:
        # The secret changes while the client runs; this is tools.yml's form of the file.
        path.write_text("accessKey: shop\nsecretKey: shop-password\n")
        producer.send(Message("orders", b"after the change"))
    send(credentials=lambda: SHOP)
    monkeypatch.setenv("CONTRAIL_CREDENTIALS_FILE", str(path))
    send()
    monkeypatch.delenv("CONTRAIL_CREDENTIALS_FILE")
    monkeypatch.setenv("CONTRAIL_ACCESS_KEY", "shop")
    monkeypatch.setenv("CONTRAIL_SECRET_KEY", "shop-password")
    send()


def test_raw_pulls_are_signed(broker: LocalBroker) -> None:
    with Producer(group="shop", namesrv=broker.namesrv, credentials=SHOP) as producer:
        producer.send(Message("orders", b"for a bulk reader"))
    settings = ClientSettings.of(broker.namesrv, credentials=SHOP)
    subscription = SubscriptionData("orders", "*", sub_version=1)
    pulls = RawPulls(
        settings, MessageQueue("orders", broker.name, 0), subscription, timeout_ms=10_000
    )
    try:
        pulls.connect(0)
        pulls.ask([Ask(0, 32, 32)])
        assert pulls.receive().code == 0
    finally:
        pulls.close()


@pytest.mark.proves("access.signing.cli")
def test_the_command_line_signs(broker: LocalBroker) -> None:
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "contrail.cli", *words, "-n", broker.namesrv],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    signed = {"CONTRAIL_ACCESS_KEY": "root", "CONTRAIL_SECRET_KEY": ADMIN.secret_key}
    assert run("send", "orders", "by hand").returncode != 0
    assert run("send", "orders", "by hand", **signed).returncode == 0
    assert "cluster" in run("broker", "status", broker.name, **signed).stdout.lower()
