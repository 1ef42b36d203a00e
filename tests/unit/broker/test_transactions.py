"""The fates of transactions: the first one counts, is written once, and is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contrail.broker.services.transactions import Transactions
from contrail.broker.state.causes import Delivered
from contrail.broker.state.transaction_records import OP_BODY_BYTES_MAX, Fate, op_drafts, read_op
from contrail.broker.state.transactions import OpenTransactions
from contrail.errors import StoreReadOnly
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import encode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from tests.fakes.transaction_log import STORE_HOST
from tests.unit.broker.transaction_setup import COMMIT, ROLLBACK, UNKNOWN, World


@pytest.mark.proves("kinds.transactions.fates")
def test_a_commit_stores_the_message_and_its_op_record_in_one_run() -> None:
    world = World()
    half = world.send_half(TAGS="t", CUSTOM="value")
    answer = world.end(half, COMMIT)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    commit, op = world.log.records[-2:]
    assert (commit.topic, commit.queue_id, commit.body) == ("orders", 2, b"paid")
    assert commit.sys_flag & 0xC == 0x8
    assert commit.prepared_transaction_offset == half.physical_offset
    assert commit.properties["TRAN_MSG"] == "true"
    assert commit.properties["CUSTOM"] == "value"
    assert (op.topic, op.queue_id) == ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    assert (op.body, op.properties["TAGS"]) == (b"0,", "d")


def test_only_the_first_end_of_a_half_message_in_memory_needs_no_queue() -> None:
    world = World()
    half = world.send_half()
    end = Request(RequestCode.END_TRANSACTION, 1, {"commitLogOffset": str(half.physical_offset)})
    assert not world.handlers.is_of_recent(end)
    world.transactions.recent.put(
        MessageDraft(half.topic.encode(), half.queue_id, half.body, half.raw_properties),
        queue_offset=half.queue_offset,
        physical_offset=half.physical_offset,
        store_timestamp_ms=half.store_timestamp_ms,
    )
    assert world.handlers.is_of_recent(end)
    for place in ({}, {"commitLogOffset": "-1"}, {"commitLogOffset": "9" * 5000}):
        assert not world.handlers.is_of_recent(Request(RequestCode.END_TRANSACTION, 1, place))
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert not world.handlers.is_of_recent(end)


def test_a_rollback_stores_only_an_op_record() -> None:
    world = World()
    half = world.send_half()
    answer = world.end(half, ROLLBACK)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert world.log.commits() == []
    assert world.ops() == [("0,", "r")]


@pytest.mark.proves("kinds.transactions.fates")
def test_an_unknown_state_is_not_answered_and_changes_nothing() -> None:
    world = World()
    half = world.send_half()
    assert world.end(half, UNKNOWN) is None
    assert len(world.log.records) == 1
    world.tick()
    assert len(world.table) == 1


@pytest.mark.parametrize("fate", [COMMIT, ROLLBACK])
def test_the_same_fate_again_is_a_success_without_a_second_record(fate: int) -> None:
    world = World()
    half = world.send_half()
    world.end(half, fate)
    count = len(world.log.records)
    again = world.end(half, fate)
    assert again is not None and again.code == ResponseCode.SUCCESS
    assert len(world.log.records) == count


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [(COMMIT, ROLLBACK, "was committed"), (ROLLBACK, COMMIT, "was rolled back")],
)
def test_the_other_fate_is_refused_and_the_remark_names_the_first(
    first: int, second: int, word: str
) -> None:
    world = World()
    half = world.send_half()
    world.end(half, first)
    count = len(world.log.records)
    answer = world.end(half, second)
    assert answer is not None and answer.code == ResponseCode.ILLEGAL_OPERATION
    assert word in (answer.remark or "")
    assert len(world.log.records) == count


@pytest.mark.proves("kinds.transactions.one-fate")
def test_a_fate_outlives_a_restart() -> None:
    world = World()
    half = world.send_half()
    world.end(half, ROLLBACK)
    for next_life in (world.crashed(), world.crashed(written={})):
        assert len(next_life.table) == 0
        refused = next_life.end(half, COMMIT)
        assert refused is not None and "was rolled back" in (refused.remark or "")
        again = next_life.end(half, ROLLBACK)
        assert again is not None and again.code == ResponseCode.SUCCESS


def test_ends_of_one_tick_share_a_run_and_an_op_record() -> None:
    world = World()
    halves = [world.send_half(f"k{number}") for number in range(3)]
    for half, fate in zip(halves, (Fate.COMMITTED, Fate.ROLLED_BACK, Fate.COMMITTED), strict=True):
        found = world.table.find(half)
        assert found is not None
        world.transactions.decide(found, half, fate, lambda end, error: None)
    assert world.ops() == []
    world.transactions.append_run()
    assert world.ops() == [("0,1,2,", "crc")]
    assert len(world.log.commits()) == 2


def test_two_ends_of_one_tick_that_disagree_leave_the_first() -> None:
    world = World()
    half = world.send_half()
    found = world.table.find(half)
    assert found is not None
    told: list[int] = []
    world.transactions.decide(found, half, Fate.COMMITTED, lambda end, error: told.append(end))
    answer = world.end(half, ROLLBACK)
    assert answer is not None and answer.code == ResponseCode.ILLEGAL_OPERATION
    world.transactions.append_run()
    assert told == [world.log.physical_end]
    assert world.ops() == [("0,", "c")]


def test_an_end_must_name_the_half_message_it_means() -> None:
    world = World()
    half = world.send_half()
    for changes in (
        {"producerGroup": "others"},
        {"tranStateTableOffset": "7"},
        {"commitLogOffset": "123"},
        {"commitOrRollback": "4"},
    ):
        answer = world.end(half, **changes)  # type: ignore[arg-type]
        assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR, changes
    assert len(world.log.records) == 1


def test_an_end_never_takes_another_topics_message_for_a_half_message() -> None:
    world = World()
    world.end(world.send_half())
    commit = world.log.commits()[0]
    answer = world.end(commit)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert len(world.log.commits()) == 1


def forge(world: World, half: StoredMessage, queue_offset: int) -> StoredMessage:
    """Bytes in somebody's message that read like a half message with another one's offset."""
    properties = {"UNIQ_KEY": "evil", "PGROUP": "evil", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    place = half.physical_offset + 100
    forged = replace(
        half,
        body=b"forged",
        physical_offset=place,
        queue_offset=queue_offset,
        raw_properties=encode_properties(properties),
    )
    world.log.forged[place] = forged
    return world.log.record(place)


@pytest.mark.parametrize("fate", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("is_taken_in", [True, False])
def test_a_record_in_the_body_of_a_message_decides_nobodys_transaction(
    fate: int, is_taken_in: bool
) -> None:
    world = World()
    half = world.send_half()
    if is_taken_in:
        world.tick()
    forged = forge(world, half, half.queue_offset)
    answer = world.end(forged, fate, is_check=True, producerGroup="evil")
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    by_hand = {"msgId": encode_offset_message_id(STORE_HOST, forged.physical_offset)}
    answer = world.ask(RequestCode.DECIDE_TRANSACTION, {**by_hand, "fate": "rollback"})
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    assert world.log.records == [half]
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert [message.body for message in world.log.commits()] == [b"paid"]


def test_a_record_in_a_body_with_an_offset_far_ahead_moves_no_cursor() -> None:
    world = World()
    half = world.send_half()
    forged = forge(world, half, 10**12)
    answer = world.end(forged, is_check=True, producerGroup="evil")
    assert answer is not None and answer.code == ResponseCode.SYSTEM_ERROR
    world.end(half)
    world.tick()
    world.log.flush()
    world.tick()
    assert world.cursors == (1, 1)


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ],
)
def test_nothing_is_committed_into_a_system_topic(topic: str) -> None:
    world = World()
    half = world.send_half(REAL_TOPIC=topic)
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert topic in (answer.remark or "")
    assert world.log.records == [half]
    answer = world.end(half, ROLLBACK)
    assert answer is not None and answer.code == ResponseCode.SUCCESS


def test_a_late_end_of_a_message_with_an_immunity_time_waits_for_the_check() -> None:
    world = World()
    half = world.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.clock.advance(ms=10_001)
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.ILLEGAL_OPERATION
    checked = world.end(half, is_check=True)
    assert checked is not None and checked.code == ResponseCode.SUCCESS


def test_an_end_that_the_store_refuses_leaves_the_transaction_open() -> None:
    world = World()
    half = world.send_half()
    world.log.refusal = StoreReadOnly("the disk is full")
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.log.refusal = None
    answer = world.end(half, ROLLBACK)
    assert answer is not None and answer.code == ResponseCode.SUCCESS


def test_of_ends_in_one_tick_only_the_one_that_breaks_a_limit_is_refused() -> None:
    world = World()
    halves = [world.send_half("big", body=b"x" * 100), world.send_half("small")]  # type: ignore[arg-type]
    world.log.body_bytes_max = 50
    errors: list[bool] = []
    for half in halves:
        found = world.table.find(half)
        assert found is not None
        world.transactions.decide(
            found, half, Fate.COMMITTED, lambda end, error: errors.append(error is not None)
        )
    world.transactions.append_run()
    assert errors == [True, False]
    assert len(world.table) == 1
    assert len(world.log.commits()) == 1


def test_under_sync_flush_an_end_is_answered_after_the_flush() -> None:
    world = World(waits=True)
    half = world.send_half()
    assert world.end(half) is None
    assert len(world.acknowledgements) == 1
    assert world.end(half, one_way=True) is None
    assert len(world.acknowledgements) == 1


def test_cursors_move_only_over_what_is_durable_and_decided() -> None:
    world = World()
    halves = [world.send_half(f"k{number}") for number in range(3)]
    world.log.flush()
    world.tick()
    assert world.cursors == (0, 0)
    world.end(halves[0])
    world.end(halves[2])
    world.tick()
    assert world.cursors == (0, 0)
    world.log.flush()
    world.tick()
    # The op record of offset 0 is behind; the one of offset 2 is still needed.
    assert world.cursors == (1, 1)
    world.end(halves[1], ROLLBACK)
    world.log.flush()
    world.tick()
    world.tick()
    assert world.cursors == (3, 3)


def test_a_commit_that_was_cut_off_from_its_op_record_counts() -> None:
    world = World()
    half = world.send_half()
    world.log.flush()
    world.end(half)
    next_life = world.crashed(2)
    assert len(next_life.log.commits()) == 1
    assert next_life.ops() == []
    assert len(next_life.table) == 0
    assert next_life.transactions.durable_end <= half.physical_offset
    next_life.tick()
    assert next_life.ops() == [("0,", "c")]
    answer = next_life.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(next_life.log.commits()) == 1
    next_life.log.flush()
    assert next_life.transactions.durable_end == next_life.log.settled_end


def test_a_message_that_only_bears_the_bits_of_a_commit_decides_nothing() -> None:
    world = World()
    half = world.send_half()
    assert half.physical_offset == 0
    world.store(MessageDraft(b"orders", 0, b"sent so", b"UNIQ_KEY\x01k2\x02", sys_flag=COMMIT))
    log = world.log.after_crash(2)
    next_life = World(log, delivered=Delivered.of(log.records))
    assert [one["transactionId"] for one in next_life.listed()] == ["k1"]
    next_life.tick()
    assert next_life.ops() == []


def test_taking_in_goes_on_at_once_while_half_messages_are_left() -> None:
    world = World()
    for number in range(300):
        world.send_half(f"k{number}")
    table = OpenTransactions()
    transactions = Transactions(
        world.log,
        world.log,
        world.offsets,
        table,
        world.clock,
        store_host=STORE_HOST,
        work_ms_max=0,
    )
    assert transactions.interval_ms == 100
    transactions.run(world.clock.now_ms())
    assert 0 < len(table) < 300
    assert transactions.interval_ms == 0
    while transactions.interval_ms == 0:
        transactions.run(world.clock.now_ms())
    assert (len(table), transactions.interval_ms) == (300, 100)


def test_a_damaged_half_message_is_passed_over() -> None:
    world = World()
    first, second = world.send_half("k1"), world.send_half("k2")
    world.log.damaged.add(first.physical_offset)
    world.tick()
    assert [half.key for half in world.table] == ["k2"]
    answer = world.end(second)
    assert answer is not None and answer.code == ResponseCode.SUCCESS


def test_a_cursor_beyond_the_queue_is_brought_back() -> None:
    world = World()
    world.send_half()
    key = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"
    next_life = world.crashed(written={key: {0: 9}})
    assert next_life.cursors[0] == 1
    next_life.send_half("k2")
    next_life.tick()
    assert [half.key for half in next_life.table] == ["k2"]


def test_old_fates_are_forgotten_but_never_decided_again() -> None:
    world = World()
    world.table._fates_max = 2
    halves = [world.send_half(f"k{number}") for number in range(4)]
    world.tick()
    for half in halves:
        world.end(half)
    answer = world.end(halves[0])
    assert answer is not None and answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "not open any more" in (answer.remark or "")
    assert len(world.log.commits()) == 4


def test_a_long_list_of_offsets_goes_on_in_another_op_record() -> None:
    marks = [(10**17 + number, Fate.COMMITTED) for number in range(500)]
    drafts = op_drafts(marks, now_ms=1, store_host=STORE_HOST)
    assert len(drafts) > 1
    assert all(len(draft.body) <= OP_BODY_BYTES_MAX for draft in drafts)
    world = World()
    assert [mark for draft in drafts for mark in read_op(world.store(draft))] == marks


# Operators.


@pytest.mark.proves("kinds.transactions.open-list")
def test_open_transactions_are_listed_with_age_and_checks() -> None:
    world = World()
    half = world.send_half("k1")
    world.send_half("k2", group="others")
    world.end(world.send_half("k3"))
    world.tick(ms=1000)
    first, second = world.listed()
    assert first["transactionId"] == "k1"
    assert first["topic"] == "orders"
    assert first["producerGroup"] == "payers"
    assert first["msgId"] == encode_offset_message_id(STORE_HOST, half.physical_offset)
    assert (first["queueOffset"], first["commitLogOffset"]) == (0, half.physical_offset)
    assert (first["ageMs"], first["checks"]) == (1000, 0)
    assert first["nextCheckMs"] == world.clock.now_ms() + 5000
    assert second["producerGroup"] == "others"


def test_the_list_is_paged_and_says_how_many_there_are() -> None:
    world = World()
    for number in range(5):
        world.send_half(f"k{number}")
    answer = world.ask(RequestCode.LIST_TRANSACTIONS, {"offset": "3", "limit": "1"})
    assert answer is not None and answer.fields == {"total": "5"}
    assert b'"k3"' in bytes(answer.body) and b'"k4"' not in bytes(answer.body)  # type: ignore[arg-type]
    refused = world.ask(RequestCode.LIST_TRANSACTIONS, {"limit": "0"})
    assert refused is not None and refused.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("by", ["transactionId", "msgId"])
def test_an_operator_decides_by_hand(by: str) -> None:
    world = World()
    half = world.send_half("k1")
    name = (
        "k1"
        if by == "transactionId"
        else str(encode_offset_message_id(STORE_HOST, half.physical_offset))
    )
    answer = world.ask(RequestCode.DECIDE_TRANSACTION, {by: name, "fate": "commit"})
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(world.log.commits()) == 1
    refused = world.end(half, ROLLBACK)
    assert refused is not None and refused.code == ResponseCode.ILLEGAL_OPERATION


def test_an_operator_names_what_is_open_and_a_fate() -> None:
    world = World()
    world.send_half("same")
    world.clock.advance(ms=1)
    world.send_half("same")
    for fields, code in (
        ({"transactionId": "none", "fate": "commit"}, ResponseCode.QUERY_NOT_FOUND),
        ({"transactionId": "same", "fate": "commit"}, ResponseCode.QUERY_NOT_FOUND),
        ({"transactionId": "same", "fate": "maybe"}, ResponseCode.INVALID_PARAMETER),
        ({"fate": "commit"}, ResponseCode.INVALID_PARAMETER),
        ({"msgId": "zz", "fate": "commit"}, ResponseCode.SYSTEM_ERROR),
    ):
        answer = world.ask(RequestCode.DECIDE_TRANSACTION, fields)
        assert answer is not None and answer.code == code, fields
    assert len(world.table) == 2
