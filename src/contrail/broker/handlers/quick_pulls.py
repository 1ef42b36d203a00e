"""Pulls of consumers that keep up: like the one before, only further on.

Such a pull differs from an earlier one in its numbers alone. The frame kernel hands out the rest of
its fields as one key; what was checked and planned for the key holds until a table changes.
Everything else takes the long way, through ``handlers.pull``.
"""

from __future__ import annotations

from enum import Enum

from contrail.broker.services.cold_reads import ColdReads, FarAnswer
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.state.consumer_offsets import ConsumerOffsets, offsets_key
from contrail.broker.state.pull_plan import FLAG_COMMIT, PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.kernels.frame_scan import Item
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.command import Request, frame_prefix
from contrail.store.log import MessageStore
from contrail.store.services.reading import FAR, Far, FoundRun, Reach
from contrail.wire.connection import Connection

_KNOWN_MAX = 100_000
# The answer of a pull that found something, as ``encode_response`` would write it.
_FOUND = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"},"flag":1,"language":"JAVA",'
    b'"opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}'
)


class Outcome(Enum):
    """What became of a pull."""

    ANSWERED = "answered"
    # Like one before, but its messages lie further back: it takes turns with others.
    FAR = "far"
    # It takes the long way.
    UNUSUAL = "unusual"


class _Known:
    """What is the same for all pulls of one key."""

    __slots__ = ("commits", "flags", "given_noted", "names", "offsets_key", "plan")

    def __init__(self, plan: PullPlan) -> None:
        self.plan = plan
        self.names = (plan.topic_name, plan.group)
        self.offsets_key = offsets_key(plan.group, plan.topic_name)
        self.commits = bool(plan.sys_flag & FLAG_COMMIT)
        self.flags = (plan.topic_sys_flag, plan.group_sys_flag)
        self.given_noted = False


class QuickPulls:
    """Answers in one go what was answered before in several steps."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: PullAdmission,
        store: MessageStore,
        consumer_offsets: ConsumerOffsets,
        stats: BrokerStats,
        cold_reads: ColdReads,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._store = store
        self._consumer_offsets = consumer_offsets
        self._stats = stats
        self._cold_reads = cold_reads
        self._epoch = -1
        self._known: dict[tuple[int, bytes], _Known] = {}
        # Whether what the log holds is in memory, mostly; else its limits are others.
        self.log_fits_memory = True
        self._answered: dict[int, int] = {}

    def take_counts(self) -> dict[int, int]:
        """How many pulls were answered since the last time, by request code."""
        counts, self._answered = self._answered, {}
        return counts

    def answer(self, item: Item, peer: Connection) -> Outcome:
        """Answer a pull, if it is like one before and its messages are one stretch.

        Those that lie further back must be in memory, and the peer's turn must have come.
        """
        known = self._find(item)
        if known is None:
            return Outcome.UNUSUAL
        reach = Reach.WARM if self._cold_reads.has_turn_at_once(peer) else Reach.NEAR
        run = self._run(known.plan, item, reach)
        if run is None:
            return Outcome.UNUSUAL
        if run is FAR:
            return Outcome.FAR
        self._reply(item, peer, known, run, item[7] if known.commits else -1)
        if run[4]:
            self._cold_reads.note_at_once(peer, _far_answer(known.plan, item, run))
        return Outcome.ANSWERED

    def commit_far(self, item: Item) -> None:
        """Write the offset that a pull carries when it arrives, not when its turn comes.

        What the group commits until then would be overwritten.
        """
        known = self._find(item)
        if known is not None and known.commits:
            plan = known.plan
            self._consumer_offsets.commit(plan.group, plan.topic_name, plan.queue_id, item[7])

    def answer_far(self, item: Item, peer: Connection) -> FarAnswer | None:
        """Answer a pull of older messages, if they are in memory; where it ended.

        ``commit_far`` has written the offset that it carries.
        """
        known = self._find(item)
        if known is None:
            return None
        run = self._run(known.plan, item, Reach.WARM)
        if run is None or run is FAR:
            return None
        self._reply(item, peer, known, run, -1)
        return _far_answer(known.plan, item, run)

    def _run(self, plan: PullPlan, item: Item, reach: Reach) -> FoundRun | Far | None:
        config, asked = self._settings.config, item[6]
        allowed = BULK_COUNT_MAX if plan.is_bulk else config.transfer_count_in_memory_max
        return self._store.get_run(
            plan.topic,
            plan.queue_id,
            item[5],
            (asked if asked < allowed else allowed) or 1,
            config.transfer_bytes_in_memory_max,
            reach,
        )

    def _find(self, item: Item) -> _Known | None:
        """What is known of pulls like this one, if that is all there is to know now."""
        if self._admission.epoch != self._epoch:
            self._forget()
        known = self._known.get((item[3], item[4]))
        # An operator's reset may be pending, or messages may have left memory.
        if known is None or self._consumer_offsets.has_resets or not self.log_fits_memory:
            return None
        return None if known.commits and item[7] < 0 else known

    def _reply(
        self, item: Item, peer: Connection, known: _Known, run: FoundRun, consumer_offset: int
    ) -> None:
        opaque, queue_offset = item[0], item[5]
        plan = known.plan
        view, count, low, high, _ = run
        next_queue_offset = queue_offset + count
        self._consumer_offsets.read_on(
            known.offsets_key, plan.queue_id, consumer_offset, next_queue_offset
        )
        self._stats.pulled(known.names, count, len(view))
        if not known.given_noted:
            known.given_noted = True
            self._admission.remember_given(plan)
        header = _FOUND % (next_queue_offset, low, high, *known.flags, opaque)
        peer.send([frame_prefix(len(header), len(view)) + header, view])
        self._answered[item[3]] = self._answered.get(item[3], 0) + 1

    def remember(self, item: Item, request: Request) -> None:
        """``request`` took the long way; from now on pulls like it need not, if it passed."""
        plan = self._admission.passed(request)
        if plan is None or plan.tag_codes is not None:
            return
        if self._admission.epoch != self._epoch or len(self._known) >= _KNOWN_MAX:
            self._forget()
        self._known[item[3], item[4]] = _Known(plan)

    def _forget(self) -> None:
        self._epoch = self._admission.epoch
        self._known.clear()

    def note_given_again(self) -> None:
        """Once in a while, so that operators see what a group reads and when it last did."""
        for known in self._known.values():
            known.given_noted = False


def _far_answer(plan: PullPlan, item: Item, run: FoundRun) -> FarAnswer:
    return FarAnswer(plan.topic, plan.queue_id, item[5], run[4])
