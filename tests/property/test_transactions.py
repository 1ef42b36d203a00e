"""Transactions against a simple model, over crashes that cut the log off anywhere.

The model reads only the log: a half message is committed if its commit is there, given up if it is
in the exhausted topic, rolled back if an op record says so, else open. In every history no message
has two commits or two fates, and an open half message is open exactly once.

Between two starts of Contrail's broker RocketMQ's broker may run on the folder, which puts copies
back without an op record, writes op records late and its cursors later still.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contrail.broker.state.causes import Delivered
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.transaction_records import Fate, commit_draft, read_half, read_op
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import put_property
from contrail.protocol.codes import ResponseCode
from tests.fakes.transaction_log import RECORD_BYTES, MemoryLog
from tests.unit.broker.transaction_setup import COMMIT, HALF, OP, ROLLBACK, WORK_MS_MAX, World

EXHAUSTED = b"TRANS_CHECK_MAX_TIME_TOPIC"
HALF_KEY = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"


def key_of(message: StoredMessage) -> str:
    return message.properties["UNIQ_KEY"]


def fates_in(log: MemoryLog) -> dict[str, set[Fate]]:
    """The fate of every half message, by the log."""
    found: dict[str, set[Fate]] = {key_of(half): set() for half in log.of(HALF)}
    for commit in log.commits():
        found[key_of(commit)].add(Fate.COMMITTED)
    for given_up in log.of(EXHAUSTED):
        found[key_of(given_up)].add(Fate.GIVEN_UP)
    halves = log.of(HALF)
    for op in log.of(OP):
        for queue_offset, fate in read_op(op):
            fates = found[key_of(halves[queue_offset])]
            if fate is Fate.ROLLED_BACK or (fate is Fate.DECIDED and not fates):
                fates.add(Fate.ROLLED_BACK)
    return found


class ApacheLife:
    """The writes of RocketMQ's broker: rounds of checks, and ends of checked messages."""

    def __init__(self, log: MemoryLog, half_cursor: int, op_cursor: int) -> None:
        self._log = log
        self.half_cursor = half_cursor
        self.done = {
            number
            for op in log.of(OP)[op_cursor:]
            for number, _ in read_op(op)
            if number >= half_cursor
        }
        self._late: list[int] = []
        self._ended: set[str] = set()

    def _open(self) -> list[StoredMessage]:
        """Half messages that no written op record names, ended ones a moment ago included."""
        halves = self._log.of(HALF)[self.half_cursor :]
        return [half for half in halves if half.queue_offset not in self.done]

    def round(self, put_back_count: int) -> None:
        """Check some half messages: each is put back, and the cursor passes the older copy."""
        for half in self._open()[:put_back_count]:
            checks = int(half.properties.get("TRANSACTION_CHECK_TIMES", "0")) + 1
            name = "TRANSACTION_CHECK_TIMES"
            properties = put_property(half.raw_properties, name, str(checks))
            birth = {"born_timestamp_ms": half.born_timestamp_ms, "born_host": half.born_host}
            self._log.append([MessageDraft(HALF, 0, half.body, properties, **birth)])  # type: ignore[arg-type]
            self.half_cursor = half.queue_offset + 1

    def end(self, index: int, number: int) -> None:
        still_open = [half for half in self._open() if key_of(half) not in self._ended]
        if not still_open:
            return
        half = still_open[index % len(still_open)]
        if number == COMMIT:
            self._log.append([commit_draft(half, read_half(half))])
        self._ended.add(key_of(half))
        self._late.append(half.queue_offset)

    def write_op(self) -> None:
        if self._late:
            body = "".join(f"{number}," for number in self._late).encode()
            self._log.append([MessageDraft(OP, 0, body, b"TAGS\x01d\x02WAIT\x01true\x02")])
            self.done.update(self._late)
            self._late.clear()


class Lives(RuleBasedStateMachine):
    """A broker that is used, crashes and starts again."""

    @initialize()
    def start(self) -> None:
        self.world = World()
        self.sent = 0
        self.world.producer()
        self.with_producer = True
        # The files: cursors, and the log position up to which they are complete.
        self.written: dict[str, dict[int, int]] = {}
        self.position: int | None = None
        self.promised: dict[str, Fate] = {}
        self.waiting: list[tuple[int, str, Fate]] = []

    # Actions of clients.

    @rule(immunity=st.sampled_from(["", "30"]))
    def send_half(self, immunity: str) -> None:
        self.sent += 1
        more = {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity} if immunity else {}
        self.world.send_half(f"k{self.sent}", **more)

    @precondition(lambda self: self.world.log.of(HALF))
    @rule(data=st.data(), number=st.sampled_from([COMMIT, ROLLBACK]))
    def end(self, data: st.DataObject, number: int) -> None:
        half = data.draw(st.sampled_from(self.world.log.of(HALF)))
        before = fates_in(self.world.log)[key_of(half)]
        answer = self.world.end(half, number, is_check=True)
        assert answer is not None
        fate = Fate.COMMITTED if number == COMMIT else Fate.ROLLED_BACK
        if answer.code == ResponseCode.SUCCESS:
            assert before <= {fate}
            self.waiting.append((self.world.log.physical_end, key_of(half), fate))
        else:
            assert before, answer.remark

    @precondition(lambda self: self.world.log.of(HALF))
    @rule(data=st.data(), numbers=st.lists(st.sampled_from([COMMIT, ROLLBACK]), max_size=4))
    def ends_of_one_tick(self, data: st.DataObject, numbers: list[int]) -> None:
        world = self.world
        for number in numbers:
            half = data.draw(st.sampled_from(world.log.of(HALF)))
            message, found = world.transactions.look_up(half.physical_offset)
            fate = Fate.COMMITTED if number == COMMIT else Fate.ROLLED_BACK
            if found is not None and found not in world.transactions.waiting:
                key = found.key
                world.transactions.decide(
                    found,
                    message,
                    fate,
                    lambda end, error, key=key, fate=fate: self.waiting.append((end, key, fate)),  # type: ignore[misc]
                )
        world.transactions.append_run()

    @rule()
    def producer_comes_or_goes(self) -> None:
        if self.with_producer:
            for channel in self.world.producers.channels("payers"):
                self.world.producers.close(channel.peer)
        else:
            self.world.producer()
        self.with_producer = not self.with_producer

    # Actions of the broker.

    @rule(
        ms=st.sampled_from([30_000, 0, 6000, 5 * 3_600_000, -60_000]),
        files_written=st.booleans(),
    )
    def tick(self, ms: int, files_written: bool) -> None:
        self.world.tick(ms=ms)
        if files_written:
            self.write_files()

    @rule()
    def flush(self) -> None:
        self.world.log.flush()
        for end, key, fate in self.waiting:
            assert self.promised.setdefault(key, fate) is fate
            assert end <= self.world.log.settled_end
        self.waiting.clear()

    def write_files(self) -> None:
        snapshot = self.world.offsets.snapshot().offsets
        self.position = self.world.transactions.durable_end
        self.written = {key: dict(queues) for key, queues in snapshot.items()}

    @rule(lost=st.integers(0, 5), with_producer=st.booleans())
    def crash(self, lost: int, with_producer: bool) -> None:
        log = self.world.log
        cut = log.after_crash(max(log.settled_end // RECORD_BYTES, len(log.records) - lost))
        delivered = Delivered()
        if self.position is not None:
            delivered = Delivered.of(cut.messages_between(self.position, cut.physical_end))
        self.world = World(cut, offsets=ConsumerOffsets(self.written), delivered=delivered)
        self.with_producer = False
        if with_producer:
            self.producer_comes_or_goes()
        self.waiting.clear()

    @precondition(lambda self: self.world.log.of(HALF))
    @rule(data=st.data(), number=st.sampled_from([COMMIT, ROLLBACK]), lost=st.integers(0, 2))
    def end_and_crash(self, data: st.DataObject, number: int, lost: int) -> None:
        self.end(data, number)
        self.crash(lost, with_producer=True)

    @rule(
        rounds=st.lists(st.integers(0, 3), max_size=3),
        ends=st.lists(
            st.tuples(st.integers(0, 5), st.sampled_from([COMMIT, ROLLBACK])), max_size=3
        ),
        ops_written=st.booleans(),
        cursor_written=st.booleans(),
        position_lost=st.booleans(),
    )
    def life_of_rocketmq(
        self,
        rounds: list[int],
        ends: list[tuple[int, int]],
        ops_written: bool,
        cursor_written: bool,
        position_lost: bool,
    ) -> None:
        """Contrail's broker stops, RocketMQ's works and is killed, Contrail's starts again."""
        self.tick(0, files_written=False)
        self.flush()
        self.tick(0, files_written=True)
        if self.world.table.has_unmarked:
            return
        log = self.world.log
        life = ApacheLife(log, *(max(0, cursor) for cursor in self.world.cursors))
        for put_back_count in rounds:
            life.round(put_back_count)
            for index, number in ends:
                life.end(index, number)
        if ops_written:
            life.write_op()
        if cursor_written:
            self.written[HALF_KEY] = {0: life.half_cursor}
        if position_lost:
            # As in a folder that Contrail never wrote.
            self.position = None
        log.flush()
        self.crash(0, with_producer=True)

    # Invariants.

    @invariant()
    def no_message_has_two_fates(self) -> None:
        counts = Counter(key_of(commit) for commit in self.world.log.commits())
        assert max(counts.values(), default=0) <= 1
        for key, fates in fates_in(self.world.log).items():
            assert len(fates) <= 1, (key, fates)

    @invariant()
    def what_is_open_is_open_once(self) -> None:
        self.world.transactions.read_new(work_ms_max=WORK_MS_MAX)
        model = {key for key, fates in fates_in(self.world.log).items() if not fates}
        found = Counter(half.key for half in self.world.table)
        assert set(found) == model
        assert max(found.values(), default=0) <= 1

    @invariant()
    def what_was_promised_holds(self) -> None:
        fates = fates_in(self.world.log)
        for key, fate in self.promised.items():
            assert fates[key] == {fate}

    @invariant()
    def rocketmq_would_find_the_same(self) -> None:
        """By cursors that are written and op records alone, once what was missing is marked."""
        world = self.world
        world.transactions.read_new(work_ms_max=WORK_MS_MAX)
        if world.table.has_unmarked:
            return
        half_cursor, op_cursor = (max(0, cursor) for cursor in world.cursors)
        done = {
            number
            for op in world.log.of(OP)[op_cursor:]
            for number, _ in read_op(op)
            if number >= half_cursor
        }
        open_keys = [
            key_of(half)
            for half in world.log.of(HALF)[half_cursor:]
            if half.queue_offset not in done
        ]
        assert Counter(open_keys) == Counter(half.key for half in world.table)


TestLives = Lives.TestCase
TestLives.settings = settings(TestLives.settings, max_examples=60, stateful_step_count=40)
