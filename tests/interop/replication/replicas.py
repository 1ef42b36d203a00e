"""A master and its slaves under a NameServer, each broker Apache's or ours.

Apache's HA port binds every address, so that each broker of Apache's runs in a namespace that the
test made. Ours listen on the bridge between them, which is this host for them: they take
administration from there alone. Where all are ours, they run on loopback and need no root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.apache_cluster import apache_broker
from tests.interop.differential.raw import RawConnection
from tests.interop.peers import java_peer
from tests.interop.private_network import PrivateNetwork
from tests.interop.replication.servers import (
    BrokerProcess,
    make_secret,
    our_broker,
    our_nameserver,
)

OURS, APACHE_5, APACHE_4 = "ours", "apache5", "apache49"
PEERS = {APACHE_5: "apache-5-server", APACHE_4: "apache-4-server"}
# Brokers before 5.0 keep no timer log.
WITH_TIMERS = (OURS, APACHE_5)
BROKER_NAME = "broker-a"
SEGMENT_BYTES = 1 << 20
QUEUE_FILE_BYTES = 20 * 1000
INDEX_SLOTS = 10_000

_GET_BROKER_RUNTIME_INFO = 28
_CATCH_UP_TIMEOUT_S = 180.0
_POLL_S = 0.1

# All brokers read these: small files, and nobody is asked about open transactions.
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "mappedFileSizeTimerLog": str(1 << 20),
    "maxMessageSize": str(256 << 10),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": "40000",
    "transactionTimeOut": "600000",
    "transactionCheckInterval": "600000",
    "fileReservedTime": "100000",
    "diskMaxUsedSpaceRatio": "99",
}
APACHE_SETTINGS = {
    "transactionOpBatchInterval": "100",
    # After a crash Apache re-indexes only what it recovers; this makes it start early enough.
    "messageIndexSafe": "true",
}


class Replicas:
    """A master and its slaves; a context manager that starts all servers and ends them."""

    def __init__(
        self,
        master: str,
        slaves: Sequence[str],
        folder: Path,
        *,
        properties: Mapping[str, str] | None = None,
        master_role: str = "ASYNC_MASTER",
    ) -> None:
        self.kinds = [master, *slaves]
        self.folder = folder
        self._properties = dict(properties or {})
        self._secret = folder / "secret"
        apart = [_side(number) for number, kind in enumerate(self.kinds) if kind != OURS]
        self.network = PrivateNetwork(*apart) if apart else None
        self._host = self.network.address if self.network is not None else "127.0.0.1"
        self._allowed = self.network.subnet if self.network is not None else ""
        self.nameserver = our_nameserver(folder / "namesrv", self._host, self._allowed)
        roles = [master_role] + ["SLAVE"] * len(slaves)
        self.brokers = [self._broker(number, role) for number, role in enumerate(roles)]

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    @property
    def master(self) -> BrokerProcess:
        return self.brokers[0]

    @property
    def slaves(self) -> list[BrokerProcess]:
        return self.brokers[1:]

    @property
    def has_timers(self) -> bool:
        """Whether the master keeps timers: without, timed messages are sent as delayed ones."""
        return self.kinds[0] in WITH_TIMERS

    def __enter__(self) -> Self:
        try:
            if self.network is not None:
                self.network.open()
            self.nameserver.start()
            if self.kinds.count(OURS) > 1:
                make_secret(self._secret)
            start_all(self.brokers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            for broker in self.brokers:
                error.add_note(broker.log_tail())
        self.close()

    def close(self) -> None:
        """End everything at once; what was written stays in the folders."""
        for broker in self.brokers:
            broker.kill()
        self.nameserver.kill()
        if self.network is not None:
            self.network.close()

    def wait_until_equal(self, what: str) -> int:
        """Until every slave's log is as long as the master's, at rest; return that length."""

        def at_rest() -> int:
            before = log_end_of(self.master)
            ends = {log_end_of(slave) for slave in self.slaves}
            return before if ends == {before} == {log_end_of(self.master)} else 0

        return eventually(
            at_rest,
            lambda: f"equal logs {what}; they end at {[log_end_of(one) for one in self.brokers]}",
            timeout_s=_CATCH_UP_TIMEOUT_S,
            pause_s=_POLL_S,
        )

    def _broker(self, number: int, role: str) -> BrokerProcess:
        kind, side = self.kinds[number], _side(number)
        given = SETTINGS | {"brokerId": str(number), "brokerRole": role}
        if kind == OURS:
            return our_broker(
                BROKER_NAME,
                folder=self.folder / side,
                host=self._host,
                nameservers=[self.nameserver],
                properties=given | self._trust(number) | self._properties,
            )
        assert self.network is not None
        return apache_broker(
            java_peer(PEERS[kind]),
            BROKER_NAME,
            folder=self.folder / side,
            node=self.network[side],
            nameservers=[self.nameserver],
            properties=given | APACHE_SETTINGS | self._properties,
        )

    def _trust(self, number: int) -> dict[str, str]:
        """The trust of a broker of ours: our peers prove a secret, Apache's none."""
        peers = self.kinds[:1] if number else self.kinds[1:]
        trusted = {"contrailClusterAllowList": self._allowed}
        if OURS in peers:
            trusted["contrailClusterSecretFile"] = str(self._secret)
        if set(peers) - {OURS}:
            trusted["contrailHaCompat"] = "true"
        return trusted


def start_all(brokers: Sequence[BrokerProcess]) -> None:
    """Start brokers beside each other: a JVM takes seconds."""
    for broker in brokers:
        broker.launch()
    for broker in brokers:
        broker.wait_ready()


def _side(number: int) -> str:
    return f"slave-{number}" if number else "master"


def log_end_of(broker: BrokerProcess) -> int:
    """Where its log ends, as it says itself; -1 while it does not answer."""
    try:
        with RawConnection(broker.address, timeout_s=5.0) as connection:
            answer = connection.ask(_GET_BROKER_RUNTIME_INFO)
    except OSError:
        return -1
    if answer.code != 0:
        return -1
    table = _runtime_table(answer.body)
    return int(table["commitLogMaxOffset"])


def _runtime_table(body: bytes) -> Mapping[str, str]:
    decoded = fastjson.loads(body)
    assert isinstance(decoded, dict)
    table = decoded["table"]
    assert isinstance(table, dict)
    return {str(name): str(value) for name, value in table.items()}
