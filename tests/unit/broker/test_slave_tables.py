"""A slave's tables become its master's; what its master does not answer changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.services.groups import Groups
from contrail.broker.services.slave_tables import SlaveTables
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.errors import CallFailed
from contrail.model.data_version import DataVersion
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.groups import encode_group_table
from contrail.protocol.bodies.topics import encode_topic_table
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.store import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    ConsumerOffsetTable,
    DelayOffsetTable,
    TimerCheck,
)
from contrail.wire.caller import Caller
from tests.fakes.peers import Sent, received

MASTER = "10.0.0.1:10911"
VERSION = DataVersion(0, 9, 1_000)
TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET
DELAYS = RequestCode.GET_ALL_DELAY_OFFSET
RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO
TIMERS = RequestCode.GET_TIMER_CHECK_POINT
MODES = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
CHECK = TimerCheck(read_ms=1_000, log_end=104, queue_offset=2, master_queue_offset=2, counter=7)
MODES_BODY = encode_body(
    {"messageRequestModeMap": {"orders": {"billing": {"mode": "PULL", "popShareQueueNum": 0}}}}
)


class FakeMaster(Caller):
    """A master in memory; without an answer for a code it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Sent] = []
        self.bodies: dict[int, bytes] = {
            TOPICS: encode_topic_table({"orders": TopicConfig("orders", 4, 4)}, VERSION),
            GROUPS: encode_group_table(
                {"billing": SubscriptionGroupConfig("billing", retry_count_max=3)},
                {"billing": {"orders": 4}},
                VERSION,
            ),
            OFFSETS: encode_body(
                CONSUMER_OFFSETS.encode(
                    ConsumerOffsetTable(
                        {
                            "orders@billing": {0: 7, 1: 9},
                            "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {0: 3},
                        },
                        VERSION,
                    )
                )
            ),
            DELAYS: encode_body(DELAY_OFFSETS.encode(DelayOffsetTable({3: 11}, VERSION))),
            RUNTIME: encode_body({"table": {"commitLogMaxOffset": "500"}}),
            TIMERS: CHECK.encode(),
            MODES: MODES_BODY,
        }
        # In the answer about delay offsets; an Apache master does not tell it there.
        self.log_end: int | None = 500
        self.refused: dict[int, int] = {}

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        assert address == MASTER
        self.sent.append(Sent(code, dict(fields or {}), body))
        if code not in self.bodies:
            raise CallFailed(f"{address} cannot be reached")
        if code in self.refused:
            return received(self.refused[code])
        told = code == DELAYS and self.log_end is not None
        fields = {"contrailLogEnd": str(self.log_end)} if told else {}
        return received(fields=fields, body=self.bodies[code])

    def codes(self) -> list[int]:
        codes = [sent.code for sent in self.sent]
        self.sent.clear()
        return codes


class Delays:
    """Keeps what a slave was told of delay levels."""

    def __init__(self) -> None:
        self.followed: list[tuple[DelayOffsetTable, int]] = []

    def follow(self, table: DelayOffsetTable, physical_end: int) -> None:
        self.followed.append((table, physical_end))


class Timers:
    """Keeps what a slave was told of timers."""

    def __init__(self) -> None:
        self.followed: list[TimerCheck] = []

    def follow(self, check: TimerCheck) -> None:
        self.followed.append(check)


class Modes:
    """Keeps what a slave was told of how groups ask for messages."""

    def __init__(self) -> None:
        self.followed: list[bytes] = []

    def follow(self, body: bytes) -> None:
        self.followed.append(body)


class Log:
    """As long as its master's, unless a test says otherwise."""

    physical_end = 500

    def __init__(self) -> None:
        self.queue_ends: dict[tuple[bytes, int], int] = {}

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        return self.queue_ends.get((topic, queue_id), 100)


class Slave:
    """The tables of a slave with what surrounds them."""

    def __init__(self, *, is_contrail: bool = True) -> None:
        settings = RuntimeSettings(BrokerConfig(role=BrokerRole.SLAVE, broker_id=1))
        self.topics = Topics(TopicTable(), settings)
        self.groups = Groups(GroupTable(), settings)
        self.offsets = ConsumerOffsets()
        self.delays = Delays()
        self.timers = Timers()
        self.modes = Modes()
        self.log = Log()
        self.master = FakeMaster()
        if not is_contrail:
            self.master.log_end = None
        self.elapsed_ms = 0
        self.gone: list[str] = []
        self.tables = SlaveTables(
            self.master,
            self.topics,
            self.groups,
            self.offsets,
            self.delays,
            self.timers,
            self.modes,
            self.log,
            elapsed_ms=lambda: self.elapsed_ms,
            on_topic_gone=self.gone.append,
        )
        self.tables.follow(MASTER, is_contrail=is_contrail)

    def catch_up(self, *, after_ms: int = 0) -> bool:
        self.elapsed_ms += after_ms
        return asyncio.run(self.tables.catch_up())


def test_a_slave_has_its_masters_topics_groups_and_offsets_in_their_versions() -> None:
    slave = Slave()
    assert slave.catch_up()
    assert slave.topics.table.get("orders") == TopicConfig("orders", 4, 4)
    assert slave.topics.table.data_version == VERSION
    assert slave.groups.table.get("billing") == SubscriptionGroupConfig(
        "billing", retry_count_max=3
    )
    assert slave.groups.is_read_forbidden("billing", "orders")
    assert slave.groups.table.data_version == VERSION
    assert slave.offsets.of_group("billing", "orders") == {0: 7, 1: 9}
    assert slave.offsets.data_version == VERSION
    assert slave.offsets.changed


def test_cursors_of_the_masters_own_groups_are_not_taken() -> None:
    slave = Slave()
    slave.catch_up()
    assert slave.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == -1


def test_offsets_move_back_when_the_master_moved_them_back() -> None:
    slave = Slave()
    slave.catch_up()
    table = ConsumerOffsetTable({"orders@billing": {0: 2}}, VERSION)
    slave.master.bodies[OFFSETS] = encode_body(CONSUMER_OFFSETS.encode(table))
    slave.catch_up(after_ms=60_000)
    assert slave.offsets.of_group("billing", "orders") == {0: 2, 1: 9}


@pytest.mark.proves("replication.pair.tables")
def test_no_offset_is_taken_that_lies_behind_the_slaves_log() -> None:
    slave = Slave()
    slave.log.queue_ends[b"orders", 0] = 5
    slave.catch_up()
    assert slave.offsets.of_group("billing", "orders") == {0: 5, 1: 9}
    slave.log.queue_ends[b"orders", 0] = 8
    slave.catch_up(after_ms=1_000)
    assert slave.offsets.of_group("billing", "orders") == {0: 7, 1: 9}


def test_an_unchanged_table_of_a_contrail_master_is_probed_and_not_fetched() -> None:
    slave = Slave()
    slave.catch_up()
    others = [OFFSETS, DELAYS, TIMERS, MODES]
    assert slave.master.codes() == [TOPICS, TOPICS, GROUPS, GROUPS, *others]
    slave.catch_up(after_ms=1_000)
    probe = slave.master.sent[0]
    assert probe.fields["topicSeq"] == str((1 << 31) - 1)
    assert '"counter":9' in probe.fields["dataVersion"]
    assert slave.master.codes() == [TOPICS, GROUPS, OFFSETS, DELAYS]


def test_a_master_of_apache_is_asked_for_whole_tables() -> None:
    slave = Slave(is_contrail=False)
    slave.catch_up()
    assert slave.master.codes() == [TOPICS, GROUPS, OFFSETS, DELAYS, RUNTIME, TIMERS, MODES]
    assert slave.catch_up(after_ms=0)
    assert slave.master.codes() == []


@pytest.mark.proves("replication.pair.tables")
@pytest.mark.parametrize("is_contrail", [True, False])
def test_delay_offsets_timer_checkpoint_and_request_modes_are_taken(is_contrail: bool) -> None:
    slave = Slave(is_contrail=is_contrail)
    slave.catch_up()
    assert slave.delays.followed == [(DelayOffsetTable({3: 11}, VERSION), 500)]
    assert slave.timers.followed == [CHECK]
    assert slave.modes.followed == [MODES_BODY]


@pytest.mark.proves("replication.pair.tables")
@pytest.mark.parametrize("is_contrail", [True, False])
def test_delay_offsets_wait_for_the_deliveries_that_they_speak_of(is_contrail: bool) -> None:
    slave = Slave(is_contrail=is_contrail)
    slave.log.physical_end = 499
    slave.catch_up()
    assert slave.delays.followed == []
    # Facts told first are believed first: under load the log never reaches those told last.
    slave.master.bodies[DELAYS] = encode_body(
        DELAY_OFFSETS.encode(DelayOffsetTable({3: 12}, VERSION))
    )
    slave.catch_up(after_ms=10_000)
    assert slave.delays.followed == []
    slave.log.physical_end = 500
    slave.catch_up(after_ms=10_000)
    assert [table.queue_offsets for table, _ in slave.delays.followed] == [{3: 11}, {3: 12}]


def test_a_new_masters_delay_offsets_replace_those_that_wait() -> None:
    slave = Slave()
    slave.log.physical_end = 499
    slave.catch_up()
    slave.tables.follow("10.0.0.2:10911", is_contrail=True)
    slave.log.physical_end = 500
    slave.tables.follow(MASTER, is_contrail=True)
    slave.master.bodies[DELAYS] = encode_body(
        DELAY_OFFSETS.encode(DelayOffsetTable({3: 5}, VERSION))
    )
    slave.catch_up()
    assert [table.queue_offsets for table, _ in slave.delays.followed] == [{3: 5}]


def test_a_master_before_5_has_no_timers_and_no_modes_and_that_is_no_failure() -> None:
    slave = Slave(is_contrail=False)
    slave.master.refused = {TIMERS: 3, MODES: 3}
    assert slave.catch_up()
    assert slave.timers.followed == []
    slave.master.codes()
    assert slave.catch_up(after_ms=59_000)
    assert not {TIMERS, MODES} & set(slave.master.codes())
    slave.master.refused = {}
    slave.catch_up(after_ms=1_000)
    assert slave.timers.followed == [CHECK]


def test_a_timer_checkpoint_of_another_length_is_not_taken() -> None:
    slave = Slave()
    slave.master.bodies[TIMERS] = b"short"
    assert not slave.catch_up()
    assert slave.timers.followed == []
    assert slave.modes.followed == [MODES_BODY]


def test_a_topic_that_its_master_deleted_goes_with_its_offsets() -> None:
    slave = Slave()
    slave.catch_up()
    newer = VERSION.bump(2_000)
    slave.master.bodies[TOPICS] = encode_topic_table({"bills": TopicConfig("bills")}, newer)
    slave.master.bodies[OFFSETS] = encode_body(
        CONSUMER_OFFSETS.encode(ConsumerOffsetTable({}, newer))
    )
    slave.catch_up(after_ms=1_000)
    assert slave.gone == ["orders"]
    assert slave.offsets.of_group("billing", "orders") == {}
    assert slave.topics.table.get("orders") is None
    assert slave.topics.table.get("bills") is not None


def test_a_master_that_does_not_answer_changes_nothing_and_is_asked_again() -> None:
    slave = Slave()
    slave.catch_up()
    kept = slave.master.bodies.pop(TOPICS)
    assert not slave.catch_up(after_ms=1_000)
    assert slave.topics.table.data_version == VERSION
    slave.master.bodies[TOPICS] = kept
    assert slave.catch_up(after_ms=3_000)


def test_a_table_that_is_none_is_not_taken() -> None:
    slave = Slave()
    slave.master.bodies[GROUPS] = b"[1"
    assert not slave.catch_up()
    assert slave.groups.table.get("billing") is None
    assert slave.topics.table.get("orders") is not None


def test_before_a_master_is_known_nobody_is_asked() -> None:
    slave = Slave()
    unled = SlaveTables(
        slave.master,
        slave.topics,
        slave.groups,
        slave.offsets,
        slave.delays,
        slave.timers,
        slave.modes,
        slave.log,
        elapsed_ms=lambda: 0,
        on_topic_gone=slave.gone.append,
    )
    unled.run(0)
    assert slave.master.sent == []
