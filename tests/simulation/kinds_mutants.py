"""Message kinds with one rule of failover groups left out each, which the story must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from contrail.broker.services.followed_sends import FollowedSends
from contrail.broker.services.followed_transactions import FollowedTransactions
from contrail.broker.services.group_deletions import TopicDeletions
from contrail.broker.services.sink_ledger import SinkLedgerFile
from contrail.broker.services.timer_following import TimerFollowing
from contrail.broker.services.transactions import Transactions
from contrail.broker.state.followed_timers import FollowedTimers
from contrail.broker.state.timer_table import TimerTable
from contrail.store.log import MessageStore


class KindsMutant(NamedTuple):
    """An attribute of a class, and what stands in its place."""

    owner: type
    name: str
    replacement: Any


KINDS: dict[str, KindsMutant] = {}


def _mutant(owner: type, name: str) -> Callable[[Any], Any]:
    def add(replacement: Any) -> Any:
        function = replacement.fget if isinstance(replacement, property) else replacement
        KINDS[function.__name__] = KindsMutant(owner, name, replacement)
        return replacement

    return add


@_mutant(TimerFollowing, "follow")
def timers_kept(self: TimerFollowing) -> None:
    """A leader that leads no more takes its deliveries for done, committed or not."""
    self._leads = False
    self._followed.take_unsettled()
    self._table.put_away()


@_mutant(SinkLedgerFile, "lead")
def ledger_kept(self: SinkLedgerFile) -> None:
    """A leader goes on with the rows that it appended when it led before."""
    if not self.ledger.sinks:
        self.ledger.assign(self.followed)


_lead_sends = FollowedSends.lead


@_mutant(FollowedSends, "lead")
def memories_kept(self: FollowedSends) -> None:
    """A leader goes on with the sends that it remembered when it led before."""
    if not any(map(len, self._dedupe.memories.values())):
        _lead_sends(self)


_take_over = Transactions.take_over


@_mutant(Transactions, "take_over")
def unmarked_forgotten(self: Transactions, followed: FollowedTransactions) -> None:
    """A new leader writes no op record for commits whose op records were cut off."""
    _take_over(self, followed)
    self._table.marked(len(self._table.unmarked(1_000)))


@_mutant(TopicDeletions, "committed")
def tombstone_local(self: TopicDeletions, physical_end: int) -> None:
    """A member derives past the record of a deletion before it removes the queues."""


_begin_anew = MessageStore.begin_topic_anew


@_mutant(MessageStore, "begin_topic_anew")
def deletion_at_append(self: MessageStore, topic: bytes) -> None:
    """A leader removes the queues of a topic before the deletion is committed."""
    _begin_anew(self, topic)
    self._dispatcher.cut()
    self._remove_queues(topic, self.dispatched_end)


@_mutant(MessageStore, "begin_topic_anew")
def numbers_kept(self: MessageStore, topic: bytes) -> None:
    """The next messages of a topic that is deleted are numbered on."""


@_mutant(FollowedTimers, "note_own")
def deliveries_unnoted(self: FollowedTimers, places: Any, timers: Any) -> None:
    """A leader does not note the deliveries that may be cut."""


_place = TimerTable.place


@_mutant(TimerTable, "place")
def rolled_by_own_clock(self: TimerTable, record: Any, now_ms: int) -> Any:
    """Each member decides by its own clock when a message is rolled on."""
    return _place(self, record._replace(store_timestamp_ms=now_ms), now_ms)
