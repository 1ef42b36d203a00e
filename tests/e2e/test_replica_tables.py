"""The facts that a slave gets of its Contrail master beside the log, also once promoted."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contrail.broker.app import Broker
from contrail.broker.pair_side import SlaveOfPair
from contrail.clock import ManualClock
from contrail.protocol.bodies.ha_status import decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.store import DELAY_OFFSETS
from contrail.testing import LocalBroker, LocalCluster, eventually
from contrail.wire.caller import Caller
from tests.e2e.asking import Asker, messages
from tests.e2e.replica_waits import has_tables

START_MS = 1_760_000_000_000
TOPIC = "orders"
HOUR_MS = 3_600_000
# Of RocketMQ's delay levels: five seconds, and an hour.
FIVE_SECONDS, ONE_HOUR = "2", "17"
DELAYS = RequestCode.GET_ALL_DELAY_OFFSET
CHECK = RequestCode.GET_TIMER_CHECK_POINT
MODES = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
PROPERTIES = {"slaveReadEnable": "true", "haHousekeepingInterval": "86400000"}


class Side(Asker):
    """One broker of a pair, asked."""

    def __init__(self, cluster: LocalCluster, broker: LocalBroker) -> None:
        super().__init__(cluster)
        self.broker = broker

    def send_kind(self, key: str, **properties: str) -> None:
        self.stored(TOPIC, key.encode(), properties={"UNIQ_KEY": key, **properties})

    def bodies(self) -> Counter[str]:
        """The messages in queue 0 of the topic now."""
        found: list[str] = []
        while more := messages(self.pull(TOPIC, len(found))):
            found += [one.body.decode() for one in more]
        return Counter(found)

    def wait_for(self, *bodies: str) -> None:
        eventually(lambda: self.bodies() == Counter(bodies), lambda: f"{bodies}, {self.bodies()}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    clock = ManualClock(START_MS)
    with LocalCluster(slaves=1, folder=tmp_path, clock=clock, properties=PROPERTIES) as running:
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The codes of all requests that brokers send."""
    codes: set[int] = set()
    call = Caller.call

    async def recording(
        self: Caller,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        codes.add(code)
        return await call(self, address, code, fields, body, timeout_ms=timeout_ms)

    monkeypatch.setattr(Caller, "call", recording)
    return codes


def follow(cluster: LocalCluster) -> None:
    """Let time pass until the slave has log, topics and groups of its master."""
    master, slave = cluster.brokers[0], cluster.slaves[0]

    def is_level() -> bool:
        cluster.advance(ms=100)
        answer = cluster.caller.call(master.address, RequestCode.GET_BROKER_HA_STATUS)
        lags = [link.lag_bytes for link in decode_ha_status(answer.body).slaves]
        return lags == [0] and has_tables(cluster.caller, master, slave)

    eventually(is_level, "the slave has everything")


def running(broker: LocalBroker) -> Broker:
    assert broker.app is not None
    return broker.app


def answered(cluster: LocalCluster) -> None:
    """Until the slave waits for no answer of its master: no time passes for those."""
    slave = running(cluster.slaves[0]).replicas
    assert isinstance(slave, SlaveOfPair)
    tables = slave.link._tables
    eventually(lambda: tables._task is None or tables._task.done(), "the master has answered")


def sides(cluster: LocalCluster) -> tuple[Side, Side]:
    return Side(cluster, cluster.brokers[0]), Side(cluster, cluster.slaves[0])


def progress(**changes: str) -> dict[str, str]:
    return {"consumerGroup": "billing", "topic": TOPIC, "queueId": "0", **changes}


def commit(side: Side, consumer_offset: int) -> None:
    fields = progress(commitOffset=str(consumer_offset))
    side.done(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def make_group(side: Side) -> None:
    body = json.dumps({"groupName": "billing"}).encode()
    side.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def check_of(side: Side) -> tuple[int, ...]:
    return struct.unpack(">7q", side.done(CHECK, {}).body)


def delays_of(side: Side) -> Mapping[int, int]:
    return DELAY_OFFSETS.parse(side.done(DELAYS, {}).body).queue_offsets


@pytest.mark.proves("replication.pair.welcome")
def test_a_slave_learns_of_its_master_with_the_handshake_and_not_by_requests(
    asked: set[int], cluster: LocalCluster
) -> None:
    master, slave = sides(cluster)
    master.send_kind("one")
    # Where to ask for tables, and where the log begins, was in the welcome.
    follow(cluster)
    slave.wait_for("one")
    assert RequestCode.GET_ALL_TOPIC_CONFIG in asked
    assert not asked & {RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.EXCHANGE_BROKER_HA_INFO}


@pytest.mark.proves("replication.pair.tables")
def test_a_committed_offset_reaches_the_slave_within_a_second(cluster: LocalCluster) -> None:
    master, slave = sides(cluster)
    make_group(master)
    for number in range(3):
        master.send_kind(f"{number}")
    follow(cluster)
    for committed in (1, 3, 2):
        commit(master, committed)
        # This second is all the time that passes.
        for _ in range(10):
            answered(cluster)
            cluster.advance(ms=100)
        eventually(
            lambda wanted=committed: (  # type: ignore[misc]
                slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, progress()).fields.get("offset")
                == str(wanted)
            ),
            f"the slave knows {committed}",
        )


@pytest.mark.proves("replication.pair.tables")
def test_delay_offsets_timer_checkpoint_and_request_modes_reach_the_slave(
    cluster: LocalCluster,
) -> None:
    master, slave = sides(cluster)
    running(cluster.brokers[0]).tables.request_modes.follow(
        b'{"messageRequestModeMap":{"orders":{"billing":{"mode":"POP","topic":"orders"}}}}'
    )
    master.send_kind("delayed", DELAY=FIVE_SECONDS)
    master.send_kind("timed", TIMER_DELIVER_MS=str(START_MS + 6_000))
    cluster.advance(ms=8_000)
    master.wait_for("delayed", "timed")

    def is_told() -> bool:
        cluster.advance(ms=1_000)
        read_ms, _, _, queue_offset, *version = check_of(master)
        found = check_of(slave)
        return (
            delays_of(slave) == delays_of(master) == {2: 1}
            and slave.done(MODES, {}).body == master.done(MODES, {}).body
            and queue_offset == found[3] == 1
            # The master has gone on meanwhile.
            and START_MS + 7_000 <= found[0] <= read_ms
            and found[1:3] == (0, 0)
            and found[-1] <= version[-1]
        )

    eventually(is_told, lambda: [(delays_of(side), check_of(side)) for side in (master, slave)])
    kinds = running(cluster.slaves[0]).kinds
    assert (kinds.delays.pending_counts(), kinds.timers.behind_count) == ({}, 0)
    assert kinds.timers.read_behind_ms <= 5_000


@pytest.mark.proves("replication.pair.tables")
def test_a_promoted_slave_delivers_each_delayed_and_timed_message_once(
    cluster: LocalCluster,
) -> None:
    master, slave = sides(cluster)
    master.send_kind("delayed", DELAY=FIVE_SECONDS)
    master.send_kind("timed", TIMER_DELIVER_MS=str(START_MS + 6_000))
    master.send_kind("in an hour", DELAY=ONE_HOUR)
    master.send_kind("in two hours", TIMER_DELIVER_MS=str(START_MS + 2 * HOUR_MS))
    cluster.advance(ms=8_000)
    master.wait_for("delayed", "timed")
    make_group(master)
    commit(master, 1)
    # Stored, and not delivered by this master.
    master.send_kind("left", DELAY=FIVE_SECONDS)
    master.send_kind("left timed", TIMER_DELIVER_MS=str(START_MS + 20_000))
    follow(cluster)
    eventually(
        lambda: (
            slave.done(DELAYS, {}).body == master.done(DELAYS, {}).body or cluster.advance(ms=100)
        ),
        "the slave knows the delay offsets",
    )

    master.broker.kill()
    promoted = slave.broker
    promoted.stop()
    promoted.own_properties = {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
    promoted.start()
    told = slave.done(RequestCode.QUERY_CONSUMER_OFFSET, progress())
    assert told.fields["offset"] == "1"
    cluster.advance(ms=20_000)
    once = ("delayed", "timed", "left", "left timed")
    slave.wait_for(*once)
    cluster.advance(ms=HOUR_MS)
    slave.wait_for(*once, "in an hour")
    cluster.advance(ms=HOUR_MS)
    slave.wait_for(*once, "in an hour", "in two hours")
