"""``contrail doctor`` on servers, and on problems that take time: the clock is moved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.broker.app import Broker
from contrail.broker.settings import read_broker_settings
from contrail.cli import doctor
from contrail.protocol.codes import RequestCode
from contrail.runtime.files import FileSystem
from contrail.testing import LocalBroker, LocalCluster, MovedClock, eventually
from contrail.testing.cluster import free_port
from tests.cli.diagnosed import Site, diagnosed, mend, until_diagnosed
from tests.cli.running import contrail, one_line


@pytest.fixture(autouse=True)
def half_empty_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.5)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TIMEOUT_MS", 3_000)


@contextmanager
def another_broker(cluster: LocalCluster, folder: Path, **settings: str) -> Iterator[None]:
    """A broker of the same cluster with settings of its own."""
    spare = LocalBroker(cluster, 25)
    own = {"storePathRootDir": str(folder / "store"), **settings}
    given = read_broker_settings({**spare.properties(), **own})
    app = Broker(given.broker, given.store, clock=cluster.clock)
    cluster.run(app.start())
    try:
        yield
    finally:
        cluster.run(app.stop())


@contextmanager
def registered(cluster: LocalCluster, address: str) -> Iterator[None]:
    """Register a broker at an address, as it stays registered for a while after a crash."""
    fields = {
        "brokerName": "gone",
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": address,
    }
    name_server = cluster.nameservers[0].address
    assert cluster.caller.call(name_server, RequestCode.REGISTER_BROKER, fields).code == 0
    try:
        yield
    finally:
        cluster.caller.call(name_server, RequestCode.UNREGISTER_BROKER, fields)


def test_a_broker_that_is_away(cluster: LocalCluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    with registered(cluster, address):
        found = diagnosed(cluster)["broker-away"]
    assert f"registered at {address}, and nothing listens there" in found["text"]
    assert found["fix"] == "contrail broker -c broker.conf"
    assert "broker-away" not in diagnosed(cluster)


def test_a_broker_that_takes_connections_and_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(folder=tmp_path) as cluster:
        # Much later than the command's timeout, also on a machine that stalled meanwhile.
        cluster.brokers[0].delay_answers(120_000)
        with monkeypatch.context() as patched:
            patched.setattr(doctor, "_TIMEOUT_MS", 3_000)
            found = diagnosed(cluster)
        assert list(found) == ["broker-silent"]
        assert "did not answer" in found["broker-silent"]["evidence"][0]
        cluster.brokers[0].clear_faults()
        assert diagnosed(cluster) == {}


@pytest.mark.proves("cli.commands.doctor")
def test_an_advertised_address_that_cannot_be_reached(
    cluster: LocalCluster, impatient: None
) -> None:
    # A reserved name that never resolves, as names of containers do not resolve elsewhere.
    with registered(cluster, "broker.invalid:10911"):
        found = diagnosed(cluster)["address-unreachable"]
    assert "tells clients to come to broker.invalid:10911" in found["text"]
    assert "brokerIP1" in found["cause"] and "port 10911" in found["cause"]
    assert found["fix"] == "contrail broker -c broker.conf --set brokerIP1=ADDRESS"


@pytest.mark.proves("cli.commands.doctor")
def test_name_servers_that_disagree_and_one_that_is_away(tmp_path: Path) -> None:
    with LocalCluster(nameservers=2, folder=tmp_path / "cluster") as cluster:
        assert diagnosed(cluster) == {}
        first, second = (one.address for one in cluster.nameservers)
        with another_broker(cluster, tmp_path, namesrvAddr=first):
            found = until_diagnosed(cluster, "nameservers-disagree")
        assert found["about"] == f"NameServer {second}"
        assert f"{second} does not know broker-z" in found["text"]
        assert found["fix"] == f"contrail broker -c broker.conf --namesrv '{first};{second}'"
        cluster.nameservers[1].stop()
        away = until_diagnosed(cluster, "nameserver-away")
        assert f"NameServer {second} does not answer; {first} do" in away["text"]
        assert away["fix"] == f"contrail namesrv --port {second.rpartition(':')[2]}"


def test_a_disk_that_is_almost_full(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Site(cluster) as site:
        site.send(8)
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.8)
    found = diagnosed(cluster)["disk-nearly-full"]
    assert found["severity"] == "warning" and "80% full" in found["text"]
    assert found["fix"] == "contrail broker -c broker.conf --set fileReservedTime=24"
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.95)
    found = diagnosed(cluster)["disk-nearly-full"]
    assert found["severity"] == "error" and "refuses messages now" in found["cause"]


def test_a_broker_that_was_drained_and_forgotten(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.wipe_write_perm("broker-a")
    found = until_diagnosed(cluster, "write-drained")
    assert found["about"] == "broker broker-a" and "drained" in found["cause"]
    assert found["fix"] == f"contrail broker undrain broker-a -n {cluster.namesrv}"
    mend(found)
    assert "write-drained" not in diagnosed(cluster)


def test_problems_that_take_time(tmp_path: Path) -> None:
    """One cluster for four findings: its clock is moved by hours, as nothing else takes long."""
    small = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    moved = LocalCluster(folder=tmp_path, clock=MovedClock(), properties=small)
    with moved as cluster, Site(cluster) as site:
        assert "clock-skew" not in diagnosed(cluster)
        _poison(cluster, site)
        _leave_a_transaction_open(cluster)
        _expire(cluster, site)
        skew = diagnosed(cluster)["clock-skew"]
        assert "ahead of this machine's" in skew["text"] and "NTP" in skew["cause"]
        mend(skew)


def _poison(cluster: LocalCluster, site: Site) -> None:
    failures: list[int] = []

    def fail(message: object) -> None:
        failures.append(message.reconsume_times)  # type: ignore[attr-defined]
        raise ValueError("this message is poison")

    site.send(1)
    with site.members((site.topic, "*"), handler=fail):
        for times in range(4):
            eventually(lambda times=times: times in failures, f"retry {times}")  # type: ignore[misc]
            eventually(lambda: _is_parked(cluster), "the message in its delay queue")
            cluster.advance(minutes=10)
        found = site.until_diagnosed("poison-message")
    assert f"A message of topic {site.topic} failed" in found["text"]
    assert "body 0" in mend(found).out


def _is_parked(cluster: LocalCluster) -> bool:
    """Whether a message that failed has come back to the broker, and waits there."""
    app = cluster.brokers[0].app
    assert app is not None
    with Admin(cluster.namesrv) as admin:
        runtime = admin.broker_runtime("broker-a").values
    levels = [text for name, text in runtime.items() if name.startswith("scheduleMessageOffset_")]
    return any(done != end for done, _, end in (text.partition(",") for text in levels))


def _leave_a_transaction_open(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("paid", queues=1)
    payments = Producer("payments", cluster.namesrv)
    with payments as producer, producer.transaction(Message("paid", b"half")) as transaction:
        transaction.unknown()
    cluster.advance(minutes=20)
    found = diagnosed(cluster)["transactions-stuck"]
    assert "No producer of group payments" in found["cause"]
    mend(found, "--yes")
    eventually(lambda: "transactions-stuck" not in diagnosed(cluster), "the end of the transaction")


def _expire(cluster: LocalCluster, site: Site) -> None:
    (queue,) = site.commit(0)
    with Producer("large", cluster.namesrv, send_timeout_ms=30_000) as producer:
        for _ in range(40):
            producer.send(Message(site.topic, os.urandom(4_000)), queue=queue)
    cluster.advance(hours=100)
    site.admin.delete_expired_segments()

    def is_shortest() -> bool:
        """Whether all segments but the last are gone: until then the minimum offset may move."""
        cluster.advance(seconds=20)
        segments = [*cluster.folder.rglob("commitlog/0*")]
        return len(segments) == 1 and site.admin.queue_offset_min(queue) > 0

    eventually(is_shortest, "the end of the oldest messages")
    found = site.until_diagnosed("offset-expired")
    assert f"messages of topic {site.topic} were deleted before" in found["text"]
    assert "at 0, the queue begins at" in found["evidence"][0]
    mend(found, "--yes")
    assert "offset-expired" not in site.diagnosed()


def test_without_a_name_server_there_is_one_line() -> None:
    one_line(contrail("doctor", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
