"""The message kinds of a failover group: every member follows them, the leader runs them.

A delivered record names the one that waited, op records carry fates, sinks' rows are marked: the
committed log says all that the next leader has to know, and a member takes it from there as it
grows. The leader's own knowledge is ahead by what is not committed; it is dropped when it leads no
more, for the next leader may have another log.

| kind              | followed                          | the leader's own is made           |
| ----------------- | --------------------------------- | ---------------------------------- |
| timed messages    | ``TimerFollowing``                | of the same table, given back      |
| transactions      | ``FollowedTransactions``          | by a copy when it begins to lead   |
| sinks             | ``SinkLedgerFile.followed``       | by a copy when it begins to lead   |
| sends' keys       | ``FollowedSends``                 | by a copy when it begins to lead   |

The cursors of transactions are carried in the group's tables, with the place in the log from which
on a start reads commits that may lack their op record. The line of the timers is carried too: a
follower cannot tell when no message can come any more for a deletion, for the leader may be ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from contrail.broker.services.followed_sends import FollowedSends
from contrail.broker.services.followed_transactions import FollowedTransactions, Shown
from contrail.broker.services.sink_ledger import SinkLedgerFile
from contrail.broker.services.timer_following import TimerFollowing
from contrail.broker.services.timers import Timers
from contrail.broker.services.transactions import Transactions
from contrail.broker.state.causes import Delivered
from contrail.broker.state.followed_timers import Delivery
from contrail.broker.state.sink_ledger import SINK_MARK
from contrail.broker.state.transaction_records import Fate
from contrail.errors import RecordDamaged, StoreError
from contrail.model.fastjson import Fields, JsonValue
from contrail.model.message import StoredMessage
from contrail.model.properties import REAL_TOPIC, TIMER_OUT_MS, read_property
from contrail.model.topic import TIMER_TOPIC
from contrail.runtime.schedule import Schedule
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

CARRIED = "kinds"
_FOLLOW_INTERVAL_MS = 100
# All that waited in the timer have it; so have their retries, which ``TimerFollowing`` tells apart.
_TIMED = TIMER_OUT_MS.encode()
_EXPIRE_INTERVAL_MS = 60_000
# How far the timers' line may get ahead of the one that is carried.
_LINE_STEP_MS = 10_000
# A start reads the log behind the carried cursors: so much of it takes some 0.2 s.
_BEHIND_BYTES_MAX = 8 << 20


class LedKind(Protocol):
    """A service that works while this member leads."""

    @property
    def interval_ms(self) -> int: ...
    def run(self, now_ms: int) -> None: ...
    def stop(self) -> None: ...


class GroupKinds:
    """The kinds of one member, beside delay levels."""

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        transactions: Transactions,
        checks: LedKind,
        sinks: SinkLedgerFile,
        sink_commits: LedKind,
        committed: Callable[[], JsonValue],
        sends: FollowedSends,
        *,
        forget_sinks: Callable[[list[str]], None],
    ) -> None:
        """``committed`` has the cursors that the group's tables carry; None: there are none.

        ``forget_sinks`` has all members forget sinks.
        """
        assert timers.following is not None, "a member's timers follow"
        self._store = store
        self._timers = timers
        self._following: TimerFollowing = timers.following
        self._transactions = transactions
        self._followed = FollowedTransactions(store)
        self._checks = checks
        self._sinks = sinks
        self._sink_commits = sink_commits
        self._committed = committed
        self._sends = sends
        self._forget_sinks = forget_sinks
        self._leads = False
        self._carried: CarriedKinds | None = None

    def register(self, schedule: Schedule) -> None:
        schedule.every(lambda: self._timer_interval_ms, self._run_timers, name="timers")
        for led, name in (
            (self._transactions, "transactions"),
            (self._checks, "transaction checks"),
            (self._sink_commits, "sinks"),
        ):
            schedule.every(
                lambda one=led: one.interval_ms,  # type: ignore[misc]
                lambda now_ms, one=led: self._run(one, now_ms),  # type: ignore[misc]
                name=name,
            )
        schedule.every(_EXPIRE_INTERVAL_MS, lambda now_ms: self._expire_sinks(), name="old sinks")

    # Following.

    def begin(self) -> None:
        """A start has learned what is committed and derived."""
        self._transactions.begin_following(self._followed)
        self._sinks.follow_to(self._store.dispatched_end)
        self._sends.begin()

    def committed(self, physical_start: int, physical_end: int) -> None:
        """These records are committed and derived."""
        shown: list[Shown] = []
        for place, named in self._store.naming_between(physical_start, physical_end):
            try:
                self._take(place, named, shown)
            except RecordDamaged as damage:
                # It is repaired or told of by the store; a message may come twice for it.
                _log.error("a record of the group's log cannot be followed: %s", damage)
        self._followed.committed(shown)
        self._sends.committed()
        self._sinks.follow_to(physical_end)
        self._following.settle(physical_end)

    def _take(self, place: int, named: int, shown: list[Shown]) -> None:
        if named == SINK_MARK:
            self._sinks.take(self._store.record(place))
        elif named < 0:
            waited = -1 - named
            if self._followed.table.at_place(waited) is not None:
                shown.append(Shown(place, waited, Fate.GIVEN_UP))
            elif not self._leads:
                message = self._store.record(place)
                if message.topic == TIMER_TOPIC or _TIMED in message.raw_properties:
                    self._following.committed(waited, _delivery(message))
        else:
            self._take_commit(place, named, shown)

    def _take_commit(self, place: int, half_place: int, shown: list[Shown]) -> None:
        message = self._store.record(place)
        if half_place in Delivered.of([message]).committed:
            shown.append(Shown(place, half_place, Fate.COMMITTED))
            self._sinks.take(message)

    def topic_deleted(self, topic: str) -> None:
        """All records of the topic so far are deleted with it."""
        self._sinks.followed.forget_topic(topic)
        self._sends.topic_deleted(topic)

    # Changes of roles.

    async def lead(self, term: int) -> None:
        self._following.lead()
        self._transactions.take_over(self._followed)
        self._sinks.lead()
        self._sends.lead()
        self._carried = None
        self._leads = True

    def follow(self, term: int) -> None:
        self._leads = False
        self._following.follow()
        self._timers.stop()
        for led in (self._transactions, self._checks, self._sink_commits):
            led.stop()

    # Running.

    @property
    def _timer_interval_ms(self) -> int:
        return self._timers.interval_ms if self._leads else _FOLLOW_INTERVAL_MS

    def _run_timers(self, now_ms: int) -> None:
        if self._leads:
            self._timers.run(now_ms)
            self._following.look_at_doubtful(now_ms)
        else:
            self._following.run(now_ms, self._leaders_line_ms)

    def _run(self, led: LedKind, now_ms: int) -> None:
        if self._leads:
            led.run(now_ms)

    def _expire_sinks(self) -> None:
        overdue = self._sinks.overdue() if self._leads else []
        if overdue:
            try:
                self._forget_sinks(overdue)
            except StoreError as error:
                _log.warning("sinks are forgotten later: %s", error)

    # Facts that the group's tables carry.

    def carried(self) -> JsonValue:
        """The cursors for the group's tables: new ones if any moved, or the log has grown much."""
        cursors = self._transactions.cursors if self._leads else None
        if cursors is None:
            return self._committed()
        known = self._carried
        physical_end, line_ms = self._store.physical_end, self._following.line_ms
        if (
            known is None
            or (known.half, known.op) != cursors
            or physical_end - known.physical_end > _BEHIND_BYTES_MAX
            or line_ms - known.timer_line_ms >= _LINE_STEP_MS
        ):
            known = self._carried = CarriedKinds(physical_end, *cursors, line_ms)
        return known.as_json()

    @property
    def _leaders_line_ms(self) -> int:
        carried = CarriedKinds.parse(self._committed())
        return 0 if carried is None else carried.timer_line_ms


class CarriedKinds(NamedTuple):
    """The facts that a start, and members that follow, have from the leader's tables."""

    # Commits behind this place may lack their op records.
    physical_end: int
    half: int
    op: int
    timer_line_ms: int

    def as_json(self) -> JsonValue:
        return {
            "physicalEnd": self.physical_end,
            "half": self.half,
            "op": self.op,
            "timerLine": self.timer_line_ms,
        }

    @classmethod
    def parse(cls, carried: JsonValue) -> CarriedKinds | None:
        if carried is None:
            return None
        fields = Fields(carried, "the carried cursors of message kinds")
        names = ("physicalEnd", "half", "op", "timerLine")
        return cls(*(fields.integer(name, 0) for name in names))


def _delivery(message: StoredMessage) -> Delivery:
    topic = message.topic
    if topic == TIMER_TOPIC:
        topic = read_property(message.raw_properties, REAL_TOPIC) or ""
    return Delivery(
        message.physical_offset,
        message.physical_offset + message.record_bytes,
        message.store_timestamp_ms,
        topic.encode(),
    )
