"""A seeded story of a failover group's message kinds: sends, fates, changes of leaders, restarts.

The judge looks at the end, at the log that all members have: each committed timed message was
delivered once, unless its deletion is committed; each half message has at most one fate, and the
acknowledged one; each sink row is stored once (I18). All members hold the same (I14, I16), also
after a restart (I13).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from contrail.broker.state.send_memory import FirstSend
from contrail.broker.state.sink_ledger import SINK_MARK, read_row
from contrail.broker.state.transaction_records import FATES, Fate
from contrail.clock import ManualClock
from contrail.errors import RequestRejected, StoreError
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.topic import HALF_TOPIC, TIMER_TOPIC
from contrail.protocol.bodies.sinks import SINK_KEY, SINK_SEQ
from contrail.replication.state.state_records import STATE_TOPIC, Change, Table
from tests.fakes.transaction_log import half_draft
from tests.simulation.invariants import hold
from tests.simulation.kinds_replica import Replica

START_MS = 1_760_000_000_000
_STEPS = 220
_CALM_MS = 20_000


class KindsStory:
    """Three members; one leads at most, and only a majority's bytes are committed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.clock = ManualClock(START_MS)
        self.replicas = [Replica(name, folder, self.clock) for name in "abc"]
        self.leader: Replica | None = None
        self.term = self._number = 0
        self._marker_end = 0
        # By key: the end of the record that acknowledges it, until it is committed.
        self._pending: list[tuple[int, str, Any]] = []
        self.acknowledged: dict[str, set[Any]] = {"timed": set(), "recall": set(), "row": set()}
        self.acknowledged["key"] = set()
        self._key = 0
        self.decided: dict[str, Fate] = {}
        self._timed: dict[str, int] = {}
        self._halves: dict[str, int] = {}
        self._row: tuple[int, int] = (1, 0)

    def run(self, steps: int = _STEPS) -> KindsStory:
        try:
            for _ in range(steps):
                self._step()
            self._heal()
            self._judge()
        finally:
            for replica in self.replicas:
                replica.close()
        return self

    # Steps.

    def _step(self) -> None:
        actions: list[tuple[float, Any]] = [
            (3, self._send_timed),
            (1, self._recall),
            (2, self._send_half),
            (2, self._decide),
            (2, self._send_row),
            (5, self._pass_time),
            (6, self._replicate),
            (5, self._move_commit),
            (1, self._append_state),
            (2, self._send_once),
            (2, self._send_news),
            (0.5, self._delete_news),
            (0.5, self._elect),
            (0.3, self._restart),
            (1, self._write_files),
        ]
        weights = [weight for weight, _ in actions]
        [(_, action)] = self.random.choices(actions, weights)
        action()
        for replica in self.replicas:
            replica.store.flush_now()
            replica.feed()

    def _serving(self) -> Replica | None:
        leader = self.leader
        return leader if leader is not None and leader.leads else None

    def _send_timed(self) -> None:
        leader = self._serving()
        if leader is None:
            return
        self._number += 1
        key = f"t{self._number}"
        deliver_ms = self.clock.now_ms() + self.random.randint(500, 12_000)
        self._timed[key] = deliver_ms
        self._pending.append((leader.send_timed(key, deliver_ms), "timed", key))

    def _recall(self) -> None:
        leader = self._serving()
        now_ms = self.clock.now_ms()
        keys = [
            key
            for key, deliver_ms in self._timed.items()
            if deliver_ms > now_ms and key in self.acknowledged["timed"]
        ]
        if leader is None or not keys:
            return
        key = self.random.choice(keys)
        deliver_ms = self._timed[key]
        self._number += 1
        end = leader.send_timed(f"D{self._number}", deliver_ms, deletes=key)
        leader.timers.recall(b"orders", key.encode(), b"", deliver_ms - 1, physical_end=end)
        self._pending.append((end, "recall", key))

    def _send_half(self) -> None:
        leader = self._serving()
        if leader is None:
            return
        self._number += 1
        key = f"h{self._number}"
        run = leader.store.append([half_draft(key, clock=self.clock)])
        self._halves[key] = run.physical_offsets[0]

    def _decide(self) -> None:
        leader = self._serving()
        if leader is None or not self._halves:
            return
        key = self.random.choice(list(self._halves))
        try:
            message, half = leader.transactions.look_up(self._halves[key])
            if half is None or half.key != key:
                return
            fate = self.random.choice([Fate.COMMITTED, Fate.COMMITTED, Fate.ROLLED_BACK])
            told: list[int] = []

            def tell(physical_end: int, error: StoreError | None) -> None:
                if error is None:
                    told.append(physical_end)

            leader.transactions.decide(half, message, fate, tell)
            leader.transactions.append_run()
        except (RequestRejected, StoreError):
            return
        if told:
            self._pending.append((told[0], "fate", (key, fate)))

    def _send_row(self) -> None:
        """A task sends its row again until it is acknowledged, and then the next one."""
        leader = self._serving()
        if leader is None:
            return
        if self._row in self.acknowledged["row"]:
            batch, seq = self._row
            self._row = (batch + 1, 0) if self.random.random() < 0.2 else (batch, seq + 1)
        batch, seq = self._row
        properties = encode_properties({SINK_KEY: f"s/{batch}/0", SINK_SEQ: str(seq)})
        row = read_row(properties)
        assert row is not None, properties
        if leader.sinks.ledger.reached(row.key, "rows", 0) >= self._row:
            end = leader.sinks.ledger.appended_end("s")
        else:
            draft = MessageDraft(
                b"rows",
                0,
                f"{batch}-{seq}".encode(),
                properties,
                prepared_transaction_offset=SINK_MARK,
            )
            end = leader.deliveries.append([draft]).physical_end
            now_ms = self.clock.now_ms()
            leader.sinks.ledger.stored(row, "rows", 0, now_ms)
            leader.sinks.ledger.heard("s", now_ms).appended_end = end
        self._pending.append((end, "row", self._row))

    def _append_state(self) -> None:
        leader = self._serving()
        if leader is not None:
            leader.append_state(Change({Table.CARRIED: {("kinds",): leader.kinds.carried()}}))

    def _send_once(self) -> None:
        """A producer sends a message again until it is acknowledged, and then the next one."""
        leader = self._serving()
        if leader is None:
            return
        if self._key in self.acknowledged["key"]:
            self._key += 1
        key = f"k{self._key}"
        memory, now_ms = leader.dedupe.memories["once"], self.clock.now_ms()
        first = memory.find(key.encode(), now_ms)
        if first is None:
            draft = MessageDraft(b"once", 0, key.encode(), encode_properties({"UNIQ_KEY": key}))
            run = leader.store.append([draft])
            first = FirstSend(0, run.queue_offsets[0], run.physical_offsets[0], now_ms)
            memory.remember(key.encode(), first)
        self._pending.append((leader.store.record_end(first.physical_offset), "key", self._key))

    def _send_news(self) -> None:
        leader = self._serving()
        if leader is not None:
            self._number += 1
            leader.store.append([MessageDraft(b"news", 0, b"n%d" % self._number)])

    def _delete_news(self) -> None:
        leader = self._serving()
        if leader is not None:
            leader.delete_topic("news")

    def _pass_time(self) -> None:
        self.clock.advance(ms=self.random.choice([50, 300, 1000, 1500]))
        for replica in self.replicas:
            replica.run()

    def _write_files(self) -> None:
        self.random.choice(self.replicas).write_files()

    # The group.

    def _replicate(self) -> None:
        """A follower cuts what differs, and takes some of the leader's units."""
        leader = self.leader
        if leader is None:
            return
        follower = self.random.choice([one for one in self.replicas if one is not leader])
        common = _common_end(leader, follower)
        if common < follower.end:
            follower.cut(common)
        if follower.end < leader.end:
            bytes_max = self.random.choice([300, 2_000, 1 << 20])
            follower.store.flush_now()
            end = leader.store.units_end(follower.end, leader.end, bytes_max)
            follower.take_raw(leader, end)

    def _move_commit(self) -> None:
        leader = self.leader
        if leader is None:
            return
        ends = sorted(
            leader.end if one is leader else min(one.end, _common_end(leader, one))
            for one in self.replicas
        )
        reached = ends[1]
        if reached >= self._marker_end and reached > leader.commit:
            leader.commit_to(reached)
        if not leader.leads and leader.commit >= self._marker_end:
            hold(leader.fed_end == leader.end, "a new leader has fed all up to its marker")
            leader.lead()
        for one in self.replicas:
            if one is not leader and self.random.random() < 0.8:
                one.commit_to(max(one.commit, min(leader.commit, _common_end(leader, one))))
        self._acknowledge(leader.commit)

    def _acknowledge(self, commit: int) -> None:
        for _, kind, what in [one for one in self._pending if one[0] <= commit]:
            if kind == "fate":
                self.decided.setdefault(*what)
            else:
                self.acknowledged[kind].add(what)
        self._pending = [one for one in self._pending if one[0] > commit]

    def _elect(self) -> None:
        """Another member, or the same one, with a log that a majority would vote for."""
        able = [
            one
            for one in self.replicas
            if sum((one.last_epoch, one.end) >= (two.last_epoch, two.end) for two in self.replicas)
            >= 2
        ]
        chosen = self.random.choice(able)
        if self.leader is not None:
            self.leader.follow()
            # Answers under way are in doubt.
            self._pending = []
        self.term += 1
        self.leader = chosen
        chosen.append_marker(self.term)
        self._marker_end = chosen.end

    def _restart(self) -> None:
        replica = self.random.choice(self.replicas)
        if replica is self.leader:
            self.leader, self._pending = None, []
        replica.restart()

    # The end.

    def _heal(self) -> None:
        self._elect()
        self._level()
        for _ in range(_CALM_MS // 4000):
            self._rest()
            self._level()

    def _rest(self) -> None:
        for _ in range(4):
            self.clock.advance(ms=1000)
            for replica in self.replicas:
                replica.run()

    def _level(self) -> None:
        """All members have and committed the same."""
        leader = self.leader
        assert leader is not None
        for _ in range(3):
            for one in self.replicas:
                one.store.flush_now()
                common = _common_end(leader, one)
                if one is not leader and common < one.end:
                    one.cut(common)
                if one.end < leader.end:
                    one.take_raw(leader, leader.end)
                    one.store.flush_now()
            self._move_commit_all(leader)

    def _move_commit_all(self, leader: Replica) -> None:
        leader.commit_to(leader.end)
        if not leader.leads:
            leader.lead()
        for one in self.replicas:
            one.commit_to(min(leader.commit, one.end))
        self._acknowledge(leader.commit)

    def _judge(self) -> None:
        leader = self.leader
        assert leader is not None
        messages = list(leader.store.messages_between(0, leader.end))
        self._judge_timed(messages)
        self._judge_halves(messages)
        self._judge_rows(messages)
        self._judge_keys(messages)
        self._judge_news(messages)
        self._judge_members()
        for replica in self.replicas:
            replica.write_files()
            if replica is not leader:
                replica.restart()
                replica.commit_to(leader.end)
        self._rest()
        self._judge_members()
        self._judge_news(messages)

    def _judge_timed(self, messages: list[StoredMessage]) -> None:
        waiting = [one for one in messages if one.topic == TIMER_TOPIC]
        sent = {
            one.properties["UNIQ_KEY"]
            for one in waiting
            if "TIMER_DEL_UNIQKEY" not in one.properties and one.prepared_transaction_offset == 0
        }
        deleted = {
            one.properties["TIMER_DEL_UNIQKEY"].partition("+")[2]
            for one in waiting
            if "TIMER_DEL_UNIQKEY" in one.properties
        }
        lost = self.acknowledged["timed"] - sent
        hold(not lost, f"I7: acknowledged timed messages are lost: {lost}")
        came = Counter(one.properties["UNIQ_KEY"] for one in messages if one.topic == "orders")
        for key in sent:
            hold(came[key] <= 1, f"I18: {key} came {came[key]} times")
            if key not in deleted:
                hold(came[key] == 1, f"I18: {key} came never")
        for key in self.acknowledged["recall"]:
            hold(came[key] == 0, f"I18: {key} was recalled and came")

    def _judge_halves(self, messages: list[StoredMessage]) -> None:
        came = Counter(
            one.properties["UNIQ_KEY"]
            for one in messages
            if one.topic == "orders" and one.properties["UNIQ_KEY"].startswith("h")
        )
        for key, count in came.items():
            hold(count == 1, f"I18: {key} was committed {count} times")
        for key, fate in self.decided.items():
            expected = 1 if fate is Fate.COMMITTED else 0
            hold(came[key] == expected, f"I18: {key} has {fate} and came {came[key]} times")
        halves = {one.properties["UNIQ_KEY"] for one in messages if one.topic == HALF_TOPIC}
        open_ones = {half.key for half in self.replicas[0].kinds._followed.table}
        hold(not open_ones & came.keys(), "I18: an open transaction was committed")
        hold(open_ones <= halves, "an open transaction has no half message")
        undecided = halves - came.keys() - self._rolled_back(messages)
        hold(undecided == open_ones, f"I18: open are {open_ones}, undecided {undecided}")

    def _rolled_back(self, messages: list[StoredMessage]) -> set[str]:
        by_offset = {
            one.queue_offset: one.properties["UNIQ_KEY"]
            for one in messages
            if one.topic == HALF_TOPIC
        }
        found = set()
        for one in messages:
            letters = one.properties.get(FATES)
            if letters:
                numbers = one.body.decode().split(",")[:-1]
                for number, letter in zip(numbers, letters, strict=True):
                    if letter == Fate.ROLLED_BACK.value:
                        found.add(by_offset[int(number)])
        return found

    def _judge_rows(self, messages: list[StoredMessage]) -> None:
        rows = Counter(one.body.decode() for one in messages if one.topic == "rows")
        for batch, seq in self.acknowledged["row"]:
            hold(rows[f"{batch}-{seq}"] == 1, f"I18: row {batch}-{seq} is stored wrongly")
        hold(max(rows.values(), default=1) == 1, "I18: a row is stored twice")

    def _judge_keys(self, messages: list[StoredMessage]) -> None:
        keys = Counter(one.properties["UNIQ_KEY"] for one in messages if one.topic == "once")
        for key in self.acknowledged["key"]:
            hold(keys[f"k{key}"] == 1, f"I18: key {key} is stored {keys[f'k{key}']} times")
        hold(max(keys.values(), default=1) == 1, "I18: a message is stored twice")

    def _judge_news(self, messages: list[StoredMessage]) -> None:
        """A topic that was deleted has the messages behind its last deletion, numbered from 0."""
        alive: list[tuple[int, bytes]] = []
        for one in messages:
            if one.topic == "news":
                hold(one.queue_offset == len(alive), "I8: a topic that comes again begins at 0")
                alive.append((one.physical_offset, one.body))
            elif one.topic == STATE_TOPIC and b"deleteTopic" in one.body:
                alive = []
        for replica in self.replicas:
            rows = replica.store.rows(b"news", 0, 0, 10_000)
            hold(
                [row.physical_offset for row in rows] == [place for place, _ in alive],
                f"I9: {replica.name} has other messages of a topic that was deleted",
            )

    def _judge_members(self) -> None:
        """I14, I16: what members follow is the same, and nothing waits that is done with."""
        found = [
            (
                sorted((half.key, half.queue_offset) for half in one.kinds._followed.table),
                sorted(one.kinds._followed.table.unmarked(1000)),
                one.timers.pending_count,
                {sink: memory.reached for sink, memory in one.sinks.followed.sinks.items()},
            )
            for one in self.replicas
        ]
        hold(all(one == found[0] for one in found), f"I14: members differ: {found}")


def _common_end(leader: Replica, follower: Replica) -> int:
    """Where both logs are equal to: by offset and epoch, as Raft has it."""
    common = 0
    for number, (mine, theirs) in enumerate(zip(leader.epochs, follower.epochs, strict=False)):
        if mine != theirs:
            return min(common, mine[0], theirs[0])
        common = min(_epoch_end(leader, number), _epoch_end(follower, number))
    return common


def _epoch_end(replica: Replica, number: int) -> int:
    later = replica.epochs[number + 1 :]
    return later[0][0] if later else replica.end
