"""The ledger of sinks: each row once and in order, whatever is repeated, copied or cut off."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrail.broker.services.sink_ledger import read_note
from contrail.broker.state import sink_ledger
from contrail.broker.state.sink_ledger import SINK_MARK, SinkLedger, read_row, same_task
from contrail.errors import DiskFull, RequestRejected, StorePoisoned
from contrail.model.properties import encode_properties
from contrail.model.record import TRANSACTION_COMMIT
from contrail.protocol.bodies.sinks import (
    SinkDecision,
    SinkKey,
    SinkLayout,
    SinkStatus,
    decode_begin,
    decode_participants,
    decode_status,
    encode_begin,
    encode_participants,
    encode_status,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.runtime.state_file import _seal
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer
from tests.unit.broker.sink_setup import DAY_MS, SinkWorld, batch_of

# The ledger itself.


def test_a_sink_id_may_hold_slashes() -> None:
    key = SinkKey.parse("s3://bucket/query/12/3")
    assert key == ("s3://bucket/query", 12, 3)
    assert SinkKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "a", "a/1", "/1/2", "a/1/2/", "a/1/x", "a/-1/2", "a/1/²"])
def test_a_key_that_names_no_task_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected):
        SinkKey.parse(text)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.text(min_size=1, max_size=128))
def test_keys_read_back_as_they_were_written(batch_id: int, partition: int, sink_id: str) -> None:
    if sink_id.isprintable():
        key = SinkKey(sink_id, batch_id, partition)
        assert SinkKey.parse(str(key)) == key


def test_rows_are_found_wherever_their_properties_stand() -> None:
    mine = {"SPARK_SINK_KEY": "a/1/2", "SPARK_SINK_SEQ": "7"}
    decoys = {"xSPARK_SINK_SEQ": "9", "KEYS": "SPARK_SINK_KEY"}
    for properties in ({**mine, **decoys}, {**decoys, **mine}):
        assert same_task([encode_properties(properties)]) == (("a", 1, 2), [7])
    # As everywhere, the last pair may lack its end, and the last of two counts.
    text = b"SPARK_SINK_KEY\x01a/1/2\x02SPARK_SINK_SEQ\x013\x02SPARK_SINK_SEQ\x018"
    assert same_task([text]) == (("a", 1, 2), [8])
    row = read_row(text)
    assert row is not None and row.seq == 8


def test_properties_that_no_sink_wrote_are_no_row() -> None:
    assert read_row(b"") is None
    assert read_row(encode_properties({"SPARK_SINK_KEY": "a/1/2"})) is None
    assert read_row(encode_properties({"SPARK_SINK_KEY": "a", "SPARK_SINK_SEQ": "1"})) is None


def test_the_numbers_of_sinks_and_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_ledger, "SINK_COUNT_MAX", 1)
    monkeypatch.setattr(sink_ledger, "ENTRY_COUNT_MAX", 1)
    ledger = SinkLedger()
    ledger.reach(SinkKey("a", 0, 0), "t", 0, 1, 0)
    ledger.require_room("a", ("t", 0, 0))
    with pytest.raises(RequestRejected, match="1 sinks already"):
        ledger.require_room("b")
    with pytest.raises(RequestRejected, match="queues and partitions"):
        ledger.require_room("a", ("t", 1, 0))
    ledger.forget_topic("t")
    ledger.require_room("a", ("t", 1, 0))


def test_bodies_read_back_as_they_were_written() -> None:
    topics = {"orders": (("broker-a", 0), ("broker-b", 3)), "empty": ()}
    participants = {"broker-a": {0: "x", 11: "y"}, "broker-b": {}}
    assert decode_begin(encode_begin(topics)) == (topics, "")
    assert decode_begin(encode_begin(topics, "broker-b")) == (topics, "broker-b")
    assert decode_begin(b'{"topics":{}}') == ({}, "")
    assert decode_participants(encode_participants(participants)) == participants
    for coordinator in ("", "broker-b"):
        layout = SinkLayout(4, topics, coordinator)
        status = SinkStatus(layout, SinkDecision(3, participants))
        assert decode_status(encode_status(status)) == status
    assert decode_status(encode_status(SinkStatus())) == SinkStatus()


@pytest.mark.parametrize("name", ["x" * 256, "a\nb"])
def test_a_name_of_no_broker_coordinates_nothing(name: str) -> None:
    with pytest.raises(RequestRejected, match="printable"):
        decode_begin(encode_begin({}, name))


QUEUES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=3).map(tuple)
BEGINNINGS = st.lists(
    st.tuples(
        st.integers(0, 3), st.dictionaries(st.sampled_from("tuv"), QUEUES), st.sampled_from("abc")
    )
)


@given(BEGINNINGS)
def test_the_first_to_begin_a_batch_names_its_coordinator_and_a_topics_queues(
    beginnings: list[tuple[int, dict[str, tuple[tuple[str, int], ...]], str]],
) -> None:
    ledger = SinkLedger()
    newest, coordinator = -1, ""
    topics: dict[str, tuple[tuple[str, int], ...]] = {}
    for batch_id, told, by in beginnings:
        status = ledger.plan_layout("s", batch_id, told, by)
        if batch_id > newest:
            newest, coordinator, topics = batch_id, by, {}
        if batch_id == newest:
            topics = {**told, **topics}
        expected = SinkStatus(SinkLayout(newest, topics, coordinator))
        assert status in (None, expected)
        if status is not None:
            ledger.told("s", status, 0)
        assert ledger.status("s") == expected


def test_a_layout_that_names_no_coordinator_can_be_told_one() -> None:
    ledger = SinkLedger()
    ledger.told("s", SinkStatus(SinkLayout(3, {"t": (("a", 0),)})), 0)
    status = ledger.plan_layout("s", 3, {}, "a")
    assert status == SinkStatus(SinkLayout(3, {"t": (("a", 0),)}, "a"))
    assert ledger.plan_layout("s", 3, {}) is None


# The file.


def test_a_copy_waits_until_the_log_is_durable() -> None:
    world = SinkWorld()
    world.rows("s/0/0", [1, 2])
    assert not world.persistence.copy()
    world.log.flush()
    world.rows("s/0/0", [3])
    # The copy knows two rows; a later one does not hold it back.
    assert world.persistence.copy()
    world.persistence.write()
    assert world.file.durable_end == 2000
    world.log.flush()
    assert world.persistence.copy()
    world.persistence.write()
    assert world.file.durable_end == world.log.settled_end == 3000


def test_a_ledger_at_rest_holds_nothing_back() -> None:
    world = SinkWorld()
    world.ordinary("x", 1)
    world.log.flush()
    assert world.file.durable_end == 1000
    world.rows("s/0/0", [1])
    world.log.flush()
    assert world.file.durable_end == 1000
    world.persistence.copy()
    world.persistence.write()
    world.ordinary("x", 1)
    world.log.flush()
    assert not world.persistence.copy()
    assert world.file.durable_end == 3000


def test_layouts_decisions_and_rows_outlive_a_crash() -> None:
    layout = SinkLayout(2, {"orders": (("broker-a", 0),)}, "broker-b")
    status = SinkStatus(layout, SinkDecision(1, {"broker-a": {0: "x"}}))
    for copied in (True, False):
        world = SinkWorld()
        world.rows("s/2/0", [1, 2])
        world.sends.remember("s", status)
        world.log.flush()
        if copied:
            world.persistence.copy()
            world.persistence.write()
            world.note_position()
        world = world.next_life()
        assert world.file.ledger.status("s") == status
        assert world.rows("s/2/0", [1, 2]).dropped_count == 2


def test_copies_and_records_from_before_coordinators_were_named_are_read() -> None:
    old = {"layout": {"batchId": 2, "topics": {"orders": [["broker-a", 0]]}}, "decided": None}
    expected = SinkStatus(SinkLayout(2, {"orders": (("broker-a", 0),)}))
    assert read_note(json.dumps({"sinkId": "s", **old}).encode()) == ("s", expected)
    world = SinkWorld()
    sink: dict[str, object] = {"heardMs": world.clock.now_ms(), **old, "rows": []}
    document = {"version": 1, "position": 0, "sinks": {"s": sink}}
    world.files.content["contrailSinks"] = _seal(json.dumps(document).encode())
    assert world.next_life().file.ledger.status("s") == expected


def test_a_damaged_file_is_made_up_for_by_the_whole_log() -> None:
    world = SinkWorld()
    world.rows("s/0/0", [1])
    world.log.flush()
    world.persistence.copy()
    world.persistence.write()
    world.note_position()
    world.files.content["contrailSinks"] = b"{"
    world = world.next_life()
    assert world.rows("s/0/0", [1, 2])[:2] == (1, 1)
    for text in (b'{"version":2}', b'{"version":1,"sinks":{"s":{"rows":[[1]]}}}'):
        world.files.content["contrailSinks"] = _seal(text)
        world = world.next_life()
        assert world.rows("s/0/0", [1, 2]).dropped_count == 2


def test_an_older_copy_is_made_up_for_by_the_log_behind_it() -> None:
    world = SinkWorld()
    world.rows("s/0/0", [1])
    world.log.flush()
    world.persistence.copy()
    world.persistence.write()
    world.files.content["contrailSinks.bak"] = world.files.content["contrailSinks"]
    world.rows("s/0/0", [2])
    world.log.flush()
    world.persistence.copy()
    world.persistence.write()
    world.note_position()
    del world.files.content["contrailSinks"]
    assert world.next_life().rows("s/0/0", [1, 2, 3])[:2] == (1, 2)


def test_a_sink_that_is_silent_for_long_is_forgotten() -> None:
    world = SinkWorld()
    world.rows("old/0/0", [1])
    world.clock.advance(ms=20 * DAY_MS)
    world.rows("young/0/0", [1])
    world.clock.advance(ms=11 * DAY_MS)
    world.persistence.copy()
    assert list(world.file.ledger.sinks) == ["young"]
    assert world.file.ledger.entry_count == 1


def test_rows_of_a_deleted_topic_do_not_come_back_from_before_the_copy() -> None:
    world = SinkWorld()
    world.rows("s/0/0", [1])
    world.file.forget_topic("orders")
    world.log.flush()
    world.persistence.copy()
    world.persistence.write()
    # The log may be read from further up, for the sake of others.
    assert world.position == 0
    assert world.next_life().rows("s/0/0", [1]).stored_count == 1


def test_a_send_that_the_store_refuses_is_not_remembered() -> None:
    world = SinkWorld()
    world.log.refusal = DiskFull("full")
    with pytest.raises(DiskFull):
        world.rows("s/0/0", [1])
    world.log.refusal = None
    assert world.rows("s/0/0", [1]).stored_count == 1


# Answers.


def ask(world: SinkWorld, peer: FakePeer, code: int, fields: dict[str, str], body: bytes) -> None:
    handler = world.sink_handlers.table()[code]
    answer = handler(Request(code, 1, fields, body), peer)
    assert answer is LATER


def test_a_repeat_is_not_answered_before_its_first_copy_is_durable() -> None:
    world, peer = SinkWorld(), FakePeer()
    fields = {"topic": "orders", "queueId": "0", "producerGroup": "g", "prepared": "false"}
    for _ in range(2):
        ask(world, peer, RequestCode.CONTRAIL_SINK_SEND, fields, batch_of("s/0/0", [1]))
    assert peer.replies == []
    world.log.flush()
    world.acknowledgements.reached(world.log.settled_end)
    counts = [(answer.fields or {})["storedCount"] for _, answer in peer.replies]
    assert counts == ["1", "0"]
    # Nothing will be flushed any more, and nothing has to be.
    ask(world, peer, RequestCode.CONTRAIL_SINK_SEND, fields, batch_of("s/0/0", [1]))
    assert len(peer.replies) == 3


def test_layouts_and_decisions_are_shown_once_they_are_durable() -> None:
    world, peer = SinkWorld(), FakePeer()
    named = {"sinkId": "s", "batchId": "0"}
    ask(world, peer, RequestCode.CONTRAIL_SINK_BEGIN, named, encode_begin({}))
    decision = encode_participants({"broker-a": {0: "x"}})
    for _ in range(2):
        decide = {**named, "decide": "true"}
        ask(world, peer, RequestCode.CONTRAIL_SINK_COMMIT, decide, decision)
    ask(world, peer, RequestCode.CONTRAIL_SINK_STATUS, named, b"")
    assert peer.replies == []
    world.log.flush()
    world.acknowledgements.reached(world.log.settled_end)
    assert len(peer.replies) == 4
    assert len(world.log.of(b"rmq_sys_CONTRAIL_SINKS")) == 2


def test_a_batch_is_decided_at_its_coordinator_only_and_carried_out_anywhere() -> None:
    world, peer = SinkWorld(), FakePeer()
    named = {"sinkId": "s", "batchId": "0"}
    begin = encode_begin({"orders": (("broker-a", 0),)}, "broker-elsewhere")
    ask(world, peer, RequestCode.CONTRAIL_SINK_BEGIN, named, begin)
    mine = world.settings.config.broker_name
    world.rows("s/0/0", [1], attempt="x")
    decision = encode_participants({mine: {0: "x"}})
    decide = {**named, "decide": "true"}
    with pytest.raises(RequestRejected, match="decided at broker 'broker-elsewhere'"):
        ask(world, peer, RequestCode.CONTRAIL_SINK_COMMIT, decide, decision)
    assert world.file.ledger.status("s").decided is None
    ask(world, peer, RequestCode.CONTRAIL_SINK_COMMIT, {**named, "decide": "false"}, decision)
    assert world.bodies() == ["s/0/0#1"]


def test_a_coordinator_does_not_carry_out_what_it_did_not_decide() -> None:
    for coordinator in ("", "mine"):
        world, peer = SinkWorld(), FakePeer()
        name = world.settings.config.broker_name if coordinator else ""
        named = {"sinkId": "s", "batchId": "0"}
        ask(world, peer, RequestCode.CONTRAIL_SINK_BEGIN, named, encode_begin({}, name))
        carry_out = {**named, "decide": "false"}
        with pytest.raises(RequestRejected, match="is not decided"):
            ask(world, peer, RequestCode.CONTRAIL_SINK_COMMIT, carry_out, encode_participants({}))


def test_after_a_failed_sync_nothing_is_answered_as_stored() -> None:
    world, peer = SinkWorld(), FakePeer()
    world.log.poisoned = StorePoisoned("the disk failed")
    ask(world, peer, RequestCode.CONTRAIL_SINK_STATUS, {"sinkId": "s"}, b"")
    assert [answer.code for _, answer in peer.replies] == [ResponseCode.SERVICE_NOT_AVAILABLE]


# Messages of other producers are not believed.


def test_words_of_a_sink_in_messages_of_others_are_not_believed() -> None:
    world = SinkWorld()
    world.ordinary("s/0/0", 5)
    half = world.send_half("k", SPARK_SINK_KEY="s/0/0", SPARK_SINK_SEQ="5", REAL_QID="0")
    assert world.table.of_sink("s") == []
    world.ordinary(
        "s/0/0", 5, sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=half.physical_offset
    )
    # A place in the log that holds no half message, or none at all.
    for place in (0, 77):
        world.ordinary("s/0/0", 5, sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=place)
    assert world.next_life().file.ledger.sinks == {}


# Any order of things.


@dataclass
class Task:
    """A task that sends its rows one after the other, four to a batch."""

    partition: int
    queue_id: int
    sent: int = 0

    def send(self, world: SinkWorld, count: int) -> None:
        end = self.sent + count
        while self.sent < end:
            batch_id, first = divmod(self.sent, 4)
            seqs = range(first, min(4, first + end - self.sent))
            stored = world.rows(f"s/{batch_id}/{self.partition}", seqs, queue_id=self.queue_id)
            assert stored.stored_count + stored.dropped_count == len(seqs)
            self.sent += len(seqs)

    def names(self, count: int) -> list[str]:
        return [f"s/{index // 4}/{self.partition}#{index % 4}" for index in range(count)]

    def stored(self, world: SinkWorld) -> list[str]:
        bodies = world.bodies(self.queue_id)
        return [body for body in bodies if body.split("#")[0].endswith(f"/{self.partition}")]


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("repeat"), st.integers(0, 2), st.integers(1, 9)),
    st.tuples(st.just("crash"), st.integers(0, 12), st.integers(0, 9)),
    st.tuples(st.sampled_from(["save", "copy", "write", "position"]), st.none(), st.none()),
    st.tuples(st.sampled_from(["flush", "ordinary"]), st.none(), st.none()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_every_row_is_stored_once_and_in_order_over_repeats_and_crashes(
    operations: list[tuple[str, int, int]],
) -> None:
    world = SinkWorld()
    tasks = [Task(0, 0), Task(1, 0), Task(0, 1)]
    for name, first, second in operations:
        if name == "send":
            tasks[first].send(world, second)
        elif name == "repeat":
            tasks[first].sent = max(0, tasks[first].sent - second)
        elif name == "crash":
            world = crash(world, tasks, lost=first, back=second)
        elif name == "ordinary":
            world.ordinary("s/0/0", 99)
        else:
            {
                "flush": world.log.flush,
                "save": world.persistence.save,
                "copy": world.persistence.copy,
                "write": world.persistence.write,
                "position": world.note_position,
            }[name]()
    for task in tasks:
        task.send(world, 12)
        found = task.stored(world)
        assert found == task.names(len(found))
        assert len(found) >= task.sent


def crash(world: SinkWorld, tasks: list[Task], *, lost: int, back: int) -> SinkWorld:
    """Cut off up to ``lost`` records that are not durable; tasks go back to what is there."""
    count = max(len(world.log.records) - lost, world.log.settled_end // 1000)
    world = world.next_life(count)
    for task in tasks:
        task.sent = max(0, min(task.sent, len(task.stored(world))) - back)
    return world


# Prepared rows.


def test_prepared_rows_keep_their_order_when_they_are_put_back() -> None:
    world = SinkWorld()
    world.rows("s/0/0", [1, 2], attempt="a")
    world.tick(ms=13 * 3_600_000)
    world.rows("s/0/0", [3], attempt="a")
    world.tick()
    assert len(world.log.of(b"RMQ_SYS_TRANS_HALF_TOPIC")) > 3
    world.log.flush()
    # After a start they are met as they stand in the half queue.
    world = world.next_life()
    assert world.commit("s", 0, {0: "a"}).committed == 3
    assert world.bodies() == ["s/0/0#1", "s/0/0#2", "s/0/0#3"]


def test_prepared_rows_are_never_asked_about_and_end_at_the_age_of_any_half_message() -> None:
    world = SinkWorld()
    peer = world.producer("sinks")
    world.rows("s/0/0", [1], attempt="a")
    for _ in range(100):
        world.tick(ms=3_600_000)
    assert peer.notified == []
    assert world.table.of_sink("s") == []
    assert len(world.log.of(b"TRANS_CHECK_MAX_TIME_TOPIC")) == 1
    assert world.commit("s", 0, {0: "a"}).committed == 0


ATTEMPTS = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(ATTEMPTS, ATTEMPTS), min_size=1, max_size=3),
    st.lists(st.integers(0, 8), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_committed_rows_are_stored_once_and_in_order_over_repeats_and_crashes(
    batches: list[tuple[list[list[int]], list[list[int]]]],
    cuts: list[int],
    copied: bool,
    renewed: bool,
) -> None:
    """Each attempt is a list of how many rows it sends at a time; the last one counts."""
    world = SinkWorld()
    expected: list[list[str]] = [[], []]
    for batch_id, partitions in enumerate(batches):
        for partition, attempts in enumerate(partitions):
            for number, sizes in enumerate(attempts):
                prepare(world, f"s/{batch_id}/{partition}", sizes, str(number), partition)
            total = sum(attempts[-1])
            names = [f"s/{batch_id}/{partition}#{seq}" for seq in range(total)]
            expected[partition] += names
        if renewed:
            world.tick(ms=13 * 3_600_000)
        world.log.flush()
        if copied and world.persistence.copy():
            world.persistence.write()
            world.note_position()
        chosen = {index: str(len(attempts) - 1) for index, attempts in enumerate(partitions)}
        for kept in cuts:
            durable = world.log.settled_end // 1000
            world.commit("s", batch_id, chosen)
            world = world.next_life(min(durable + kept, len(world.log.records)))
        world.commit("s", batch_id, chosen)
        assert world.commit("s", batch_id, chosen).committed == 0
        assert world.table.of_sink("s") == []
    assert [world.bodies(0), world.bodies(1)] == expected


def prepare(world: SinkWorld, key: str, sizes: list[int], attempt: str, queue_id: int) -> None:
    """Send rows in parts, the middle one twice: its answer was lost."""
    first = 0
    for number, size in enumerate(sizes):
        for _ in range(2 if number == 1 else 1):
            world.rows(key, range(first, first + size), attempt=attempt, queue_id=queue_id)
        first += size


def test_the_mark_is_no_place_in_a_log() -> None:
    assert 1 << 62 < SINK_MARK < 1 << 63
