"""Folders of RocketMQ's own broker: what is open there, and what RocketMQ finds in ours."""

from __future__ import annotations

import pytest

from contrail.broker.services import transaction_recovery
from contrail.broker.state.causes import Delivered
from contrail.broker.state.transaction_records import commit_draft, exhausted_draft, read_half
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import put_property, remove_property
from contrail.protocol.codes import ResponseCode
from tests.fakes.transaction_log import RECORD_BYTES, MemoryLog
from tests.unit.broker.transaction_setup import COMMIT, HALF, OP, ROLLBACK, World

HALF_KEY = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"
OP_KEY = "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS"


def put_back(world: World, half: StoredMessage, **changes: str) -> StoredMessage:
    """A copy as RocketMQ puts it back: counted, and without a link or an op record."""
    checks = int(half.properties.get("TRANSACTION_CHECK_TIMES", "0")) + 1
    properties = put_property(half.raw_properties, "TRANSACTION_CHECK_TIMES", str(checks))
    for name, value in changes.items():
        properties = put_property(properties, name, value)
    return world.store(
        MessageDraft(
            HALF,
            0,
            half.body,
            properties,
            born_timestamp_ms=half.born_timestamp_ms,
            born_host=half.born_host,
        )
    )


def op(world: World, text: str) -> StoredMessage:
    """An op record as RocketMQ writes it."""
    return world.store(MessageDraft(OP, 0, text.encode(), b"TAGS\x01d\x02WAIT\x01true\x02"))


def commit(world: World, half: StoredMessage) -> StoredMessage:
    return world.store(commit_draft(half, read_half(half)))


def taken_over(world: World, *, half_cursor: int = 0, op_cursor: int = 0) -> World:
    written = {HALF_KEY: {0: half_cursor}, OP_KEY: {0: op_cursor}}
    found = world.crashed(written=written)
    found.tick()
    return found


def keys(world: World) -> list[str]:
    return [half.key for half in world.table]


def test_half_messages_that_op_records_name_are_not_open() -> None:
    world = World()
    for number in range(4):
        world.send_half(f"k{number}")
    op(world, "0,2,")
    found = taken_over(world)
    assert keys(found) == ["k1", "k3"]
    late = found.end(world.log.of(HALF)[0], COMMIT)
    assert late is not None and late.code == ResponseCode.ILLEGAL_OPERATION
    assert "was decided" in (late.remark or "")


def test_copies_without_a_link_are_one_transaction() -> None:
    world = World()
    half = world.send_half("k1")
    world.send_half("k2")
    copy = put_back(world, put_back(world, half))
    found = taken_over(world)
    assert sorted(keys(found)) == ["k1", "k2"]
    assert {half.queue_offset for half in found.table} == {1, 3}
    # RocketMQ, going on from here, must not take the older copies for open ones.
    assert found.ops() == [("0,2,", "ss")]
    for named in (half, copy):
        answer = found.end(named)
        assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(found.log.commits()) == 1


def test_a_message_sent_twice_is_two_transactions() -> None:
    world = World()
    world.send_half("k1")
    world.clock.advance(ms=5)
    world.send_half("k1")
    assert len(taken_over(world).table) == 2


def test_a_fate_of_a_superseded_copy_decides_the_transaction() -> None:
    world = World()
    half = world.send_half("k1")
    put_back(world, half)
    op(world, "0,")
    found = taken_over(world)
    assert keys(found) == []
    assert found.ops()[-1] == ("1,", "?")


def test_a_fate_of_the_newest_copy_decides_the_transaction() -> None:
    world = World()
    half = world.send_half("k1")
    put_back(world, half)
    op(world, "1,")
    found = taken_over(world)
    assert keys(found) == []
    assert found.ops()[-1] == ("0,", "?")


def test_a_fate_of_a_copy_before_the_cursor_decides_the_transaction() -> None:
    world = World()
    half = world.send_half("k1")
    put_back(world, half)
    world.send_half("k2")
    op(world, "0,")
    assert keys(taken_over(world, half_cursor=1)) == ["k2"]


def test_an_immunity_copy_is_linked_to_its_first_offset() -> None:
    world = World()
    half = world.send_half("k1", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    put_back(world, half, TRAN_PREPARED_QUEUE_OFFSET="0")
    found = taken_over(world, half_cursor=1)
    assert keys(found) == ["k1"]
    answer = found.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert found.ops()[-1] == ("1,", "c")


def test_commits_whose_op_record_is_not_written_yet_count() -> None:
    world = World()
    halves = [world.send_half(f"k{number}") for number in range(3)]
    op(world, "0,")
    world.clock.advance(ms=20_000)
    commit(world, halves[1])
    world.clock.advance(ms=1000)
    # This one was written just before the op record of the first, and is not in it.
    found = taken_over(world)
    assert keys(found) == ["k2"]
    assert found.ops()[-1] == ("1,", "c")
    again = found.end(halves[1])
    assert again is not None and again.code == ResponseCode.SUCCESS
    assert len(found.log.commits()) == 1


def test_a_commit_a_moment_before_the_last_op_record_counts_too() -> None:
    world = World()
    first, second = world.send_half("k1"), world.send_half("k2")
    commit(world, first)
    commit(world, second)
    op(world, "0,")
    assert keys(taken_over(world)) == []


def test_the_commit_of_a_superseded_copy_counts() -> None:
    world = World()
    half = world.send_half("k1")
    put_back(world, half)
    commit(world, half)
    for half_cursor in (0, 1):
        found = taken_over(world, half_cursor=half_cursor)
        assert keys(found) == []
        assert found.ops()[-1][1].endswith("c")


def test_commits_are_known_by_what_the_start_read_of_the_log() -> None:
    world = World()
    half = world.send_half("k1")
    delivered = Delivered(committed={half.physical_offset})
    found = World(world.log, delivered=delivered)
    assert keys(found) == []


def test_without_cursors_everything_is_read() -> None:
    world = World()
    world.send_half("k1")
    world.send_half("k2")
    op(world, "1,")
    found = world.crashed(written={})
    assert keys(found) == ["k1"]


def test_damaged_op_records_and_odd_ones_are_passed_over() -> None:
    world = World()
    world.send_half("k1")
    world.send_half("k2")
    bad = op(world, "0,")
    op(world, "x,,1,-5,")
    world.store(MessageDraft(OP, 0, b"0,", b"TAGS\x01other\x02"))
    log = world.log
    found_log = log.after_crash(len(log.records))
    found_log.damaged.add(bad.physical_offset)
    assert keys(World(found_log)) == ["k1"]


def test_the_first_copy_of_a_transaction_that_began_elsewhere_is_known_after_our_copies() -> None:
    world = World()
    half = world.send_half("k1")
    put_back(world, half)
    found = taken_over(world, half_cursor=1)
    found.producer()
    found.tick(ms=30_000)
    assert len(found.log.of(HALF)) == 3
    next_life = found.crashed()
    answer = next_life.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(next_life.log.commits()) == 1


def test_a_commit_shown_by_the_log_alone_is_looked_for_again_until_its_op_record_is_durable() -> (
    None
):
    world = World()
    half = world.send_half("k1")
    commit(world, half)
    put_back(world, half)
    world.log.flush()
    found = taken_over(world, half_cursor=1)
    assert keys(found) == []
    assert found.transactions.durable_end <= half.physical_offset
    found.log.flush()
    assert found.transactions.durable_end == found.log.settled_end


def test_the_search_for_commits_at_the_end_begins_at_a_record_and_not_too_far_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_recovery, "_TAIL_BYTES_MAX", 4 * RECORD_BYTES)
    world = World()
    halves = [world.send_half(f"k{number}") for number in range(4)]
    for _ in range(2):
        world.store(MessageDraft(b"orders", 0, b"plain"))
    commit(world, halves[0])
    # Four records from the end there is the last half message: the commit is behind it.
    assert keys(taken_over(world)) == ["k1", "k2", "k3"]
    for _ in range(2):
        world.store(MessageDraft(b"orders", 0, b"plain"))
    assert keys(taken_over(world)) == ["k0", "k1", "k2", "k3"]


# The other way round: RocketMQ's reading of our files.


def apache_open(log: MemoryLog, half_cursor: int, op_cursor: int) -> list[int]:
    """The half queue offsets that RocketMQ's check round takes for open."""
    done: set[int] = set()
    for message in log.of(OP)[op_cursor:]:
        assert message.properties["TAGS"] == "d"
        numbers = [int(text) for text in message.body.decode().split(",") if text]
        done |= {number for number in numbers if number >= half_cursor}
    return [m.queue_offset for m in log.of(HALF)[half_cursor:] if m.queue_offset not in done]


def test_rocketmq_finds_each_open_transaction_once_in_our_files() -> None:
    world = World()
    world.producer()
    halves = [world.send_half(f"k{number}") for number in range(6)]
    world.tick(ms=6000)
    world.end(halves[1])
    world.end(halves[4], ROLLBACK)
    world.tick(ms=30_000)
    world.end(halves[2])
    world.tick()
    world.log.flush()
    world.tick()
    world.tick()
    open_offsets = apache_open(world.log, *world.cursors)
    found = [world.log.of(HALF)[offset].properties["UNIQ_KEY"] for offset in open_offsets]
    assert sorted(found) == ["k0", "k3", "k5"]


def test_rocketmq_never_takes_our_link_for_a_fate() -> None:
    """It looks for the linked offset among those that are done, which it has passed by then."""
    world = World()
    world.send_half("k0")
    world.send_half("k1", CHECK_IMMUNITY_TIME_IN_SECONDS="1000000")
    for _ in range(13):
        world.tick(ms=3_600_000)
    copies = [m for m in world.log.of(HALF) if m.properties["UNIQ_KEY"] == "k1"]
    assert copies[-1].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "1"
    done = {int(text) for body, _ in world.ops() for text in body.split(",") if text}
    passed: set[int] = set()
    for message in world.log.of(HALF):
        if message.queue_offset in done:
            # As RocketMQ does: what it meets in the set of done ones it takes out of it.
            done.discard(message.queue_offset)
            passed.add(message.queue_offset)
        elif message.properties["UNIQ_KEY"] == "k1":
            assert int(message.properties["TRAN_PREPARED_QUEUE_OFFSET"]) not in done
    assert 1 in passed


def test_our_copies_keep_the_properties_but_for_the_count_the_link_and_the_time() -> None:
    world = World()
    world.producer()
    half = world.send_half("k1", CUSTOM="value")
    world.tick(ms=6000)
    properties = world.log.of(HALF)[1].raw_properties
    ours = "CONTRAIL_FIRST_STORED_MS"
    for name in ("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", ours):
        properties = remove_property(properties, name)
    assert properties == half.raw_properties
    assert half.record_bytes == RECORD_BYTES


def test_half_messages_that_another_broker_has_are_closed_and_marked() -> None:
    world = World()
    halves = [world.send_half(key) for key in ("k1", "k2", "k3")]
    copy = put_back(world, halves[2])
    delivered = Delivered()
    # Of the third the slave had only the first copy when it handed it over.
    delivered.take_escaped((), (halves[0].physical_offset, halves[2].physical_offset))
    restarted = World(world.log, delivered=delivered)
    assert [one["transactionId"] for one in restarted.listed()] == ["k2"]
    restarted.tick()
    [(body, fates)] = restarted.ops()
    marks = dict(zip(body.split(","), fates, strict=False))
    assert marks == {"0": "e", str(copy.queue_offset): "e", str(halves[2].queue_offset): "s"}
    refused = restarted.end(halves[0], COMMIT)
    assert refused is not None and refused.code == ResponseCode.ILLEGAL_OPERATION
    assert "another broker" in (refused.remark or "")
    assert [one["transactionId"] for one in World(restarted.log).listed()] == ["k2"]


def test_a_message_that_was_given_up_at_the_end_of_the_log_is_not_open() -> None:
    """The copy of a log may end between the message and its op record."""
    world = World()
    half, other = world.send_half("k1"), world.send_half("k2")
    world.store(exhausted_draft(half))
    restarted = World(world.log)
    assert [one["transactionId"] for one in restarted.listed()] == ["k2"]
    restarted.tick()
    assert restarted.ops() == [(f"{half.queue_offset},", "x")]
    assert other.queue_offset == 1
