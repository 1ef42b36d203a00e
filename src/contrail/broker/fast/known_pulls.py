"""Pulls of consumers that keep up: like the one before, only further on.

Such a pull differs from an earlier one in its numbers alone. The frame kernel hands out the rest of
its fields as one key; what was checked and planned for the key holds until a table changes.
Every other pull goes the general way, through ``handlers.pull``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from contrail.broker.fast.known_pull import RECORD_BYTES_MAX, KnownPull, PullPattern
from contrail.broker.services.cold_reads import ColdReads, FarAnswer
from contrail.broker.services.filtered_reads import SCANNED_ROWS_MAX
from contrail.broker.services.pull_admission import PullAdmission, refusal_answer
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.pull_plan import FLAG_SUSPEND, PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import monotonic_ms
from contrail.errors import RequestRejected
from contrail.kernels.frame_scan import Item
from contrail.kernels.pull_answer import found_answer
from contrail.protocol.command import ReadyAnswer, Request, frame_prefix
from contrail.protocol.fields import HeaderFields
from contrail.protocol.frames import PULL_LENGTH, Frames
from contrail.store import FAR, FoundRun, GetResult, GetStatus, MessageStore, Reach
from contrail.wire.connection import Connection
from contrail.wire.request_times import RequestTimes

_KNOWN_MAX = 100_000
# What is known of a pull is kept under its fields; clients' headers have less than a kilobyte.
_HEADER_BYTES_MAX = 2048
_PATTERNS_MAX = 10_000
_REFUSED_MAX = 5_000
_REFUSED_KEY_BYTES_MAX = 2048
_COUNT_MAX = 0x7FFFFFFF
# Filtered pulls in a row may take so long before it is looked whether others wait.
_FILTERING_MS_MAX = 1
# The answer of a pull that found something, as ``encode_response`` would write it.
_FOUND = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d","topicSysFlag":"%d","groupSysFlag":"%d"},"flag":1,"language":"JAVA",'
    b'"opaque":%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}'
)
# The same when it looked at messages and its filter wanted none of them.
_NONE_MATCHED = _FOUND.replace(b'"code":0', b'"code":20').replace(b"FOUND", b"NO_MATCHED_MESSAGE")


class Outcome(Enum):
    """What became of a pull."""

    ANSWERED = "answered"
    # Like one before, but its messages lie further back: it takes turns with others.
    FAR = "far"
    # It goes the general way.
    GENERAL = "general"


# Members of an enumeration are looked up each time they are named.
_WARM, _NEAR, _ANSWERED = Reach.WARM, Reach.NEAR, Outcome.ANSWERED


class KnownPulls:
    """Answers in one go what was answered before in several steps."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: PullAdmission,
        store: MessageStore,
        consumer_offsets: ConsumerOffsets,
        stats: BrokerStats,
        cold_reads: ColdReads,
        read_filtered: Callable[[PullPlan], tuple[GetResult, list[memoryview]]],
        ways: Ways,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self.store = store
        self._consumer_offsets = consumer_offsets
        self._stats = stats
        self.cold_reads = cold_reads
        self._read_filtered = read_filtered
        self.ways = ways
        self.pending_resets = consumer_offsets.pending_resets
        self.known_pulls: dict[tuple[int, bytes], KnownPull] = {}
        # Answers to pulls that may not be served, until a table changes.
        self._refused: dict[tuple[int, bytes], ReadyAnswer | RequestRejected] = {}
        self._patterns: dict[bytes, PullPattern] = {}
        admission.watch(self._forget)
        # Whether what the log holds is in memory, mostly; else its limits are others.
        self.log_fits_memory = True
        # Set when the broker stops: everybody is told so, the general way.
        self.is_closed = False
        self.times: RequestTimes | None = None
        # For those who answer at once.
        self.read_on = consumer_offsets.read_on
        self.unsettled_gets = stats.unsettled_gets
        # How many since the last ``take_counts``, by request code.
        self.answered: dict[int, int] = {}
        # The same for those that were refused, by request code and response code.
        self.refused: dict[tuple[int, int], int] = {}

    def take_counts(self) -> dict[int, int]:
        """How many pulls were answered since the last time, by request code."""
        counts, self.answered = self.answered, {}
        return counts

    def take_refused(self) -> dict[tuple[int, int], int]:
        """How many pulls were refused since the last time, by request code and answer."""
        counts, self.refused = self.refused, {}
        return counts

    def _forget(self) -> None:
        """A table has changed: everything is to be checked again."""
        self.known_pulls.clear()
        self._refused.clear()
        for pattern in self._patterns.values():
            pattern.knowns.clear()

    def pattern(self, template: bytes, item: Item) -> PullPattern:
        """The pattern of all pulls with this template."""
        pattern = self._patterns.get(template)
        if pattern is None:
            if len(self._patterns) >= _PATTERNS_MAX:
                # Connections that keep hold of one find nothing in it, and learn another.
                for forgotten in self._patterns.values():
                    forgotten.knowns.clear()
                self._patterns.clear()
            times = None if self.times is None else self.times.row_of_pulls(item[3])
            pattern = self._patterns[template] = PullPattern(template, item, times)
        return pattern

    def note_times(self, code: int, elapsed_ms: float, count: int) -> None:
        """Pulls that were answered at once took longer than usual."""
        if self.times is not None:
            self.times.note_pulls(code, elapsed_ms, count)

    def note_given(self, known: KnownPull) -> None:
        """What operators are shown of who reads what."""
        known.given_noted = True
        self._admission.remember_given(known.plan)

    def answer_run(self, frames: Frames, at: int, peer: Connection) -> tuple[int, Outcome]:
        """Answer the pulls from ``at`` on that are like one before, with messages that are sound.

        Those that lie further back must be in memory, and nobody may be waiting for others.
        Returns the place of the first frame that was left, and what is to become of it if it is
        a pull; ``ANSWERED`` says that nothing is wrong with it.
        """
        parts: list[bytes | memoryview] = []
        out_bytes, room_bytes, now_ms = 0, peer.room_bytes, monotonic_ms()
        cold_reads, read_on = self.cold_reads, self._consumer_offsets.read_on
        reach = _WARM if cold_reads.has_turn_at_once else _NEAR
        outcome, end, others = _ANSWERED, len(frames), at
        try:
            while at < end and out_bytes <= room_bytes:
                item = frames[at]
                if len(item) != PULL_LENGTH:
                    break
                # Only the kernel's tuples are as long.
                opaque, _, _, code, _, queue_offset, asked, consumer_offset, _ = item  # type: ignore[misc]
                known = self._find(item)
                if known is None:
                    refused = self._refused.get((code, item[4]))  # type: ignore[arg-type]
                    if refused is None or asked > _COUNT_MAX:
                        outcome = Outcome.GENERAL
                        break
                    if not isinstance(refused, ReadyAnswer):
                        # Most that are refused once are not seen again: encoded at the second.
                        refused = ReadyAnswer(refusal_answer(refused))
                        self._refused[code, item[4]] = refused  # type: ignore[index]
                    parts.append(self.refusal(refused, opaque, code))
                    at += 1
                    others += 1
                    continue
                if known.is_filtered:
                    outcome = self._answer_filtered(item, peer, known)
                    if outcome is not _ANSWERED:
                        break
                    room_bytes = peer.room_bytes
                    at += 1
                    others += 1
                    if monotonic_ms() - now_ms >= _FILTERING_MS_MAX:
                        break
                    continue
                allowed = known.count_max
                run = known.runs.read(
                    queue_offset,
                    (asked if asked < allowed else allowed) or 1,
                    known.bytes_max,
                    reach,
                    now_ms,
                )
                if run is FAR or run is None or run[1] > RECORD_BYTES_MAX:
                    outcome = Outcome.FAR if run is FAR else Outcome.GENERAL
                    break
                views, byte_count, count, low, high, far_end = run
                next_offset = queue_offset + count
                read_on(
                    known.offsets_key,
                    known.queue[1],
                    consumer_offset if known.commits else -1,
                    next_offset,
                )
                self._note(known, code, count, byte_count)
                topic_flag, group_flag = known.flags
                parts.append(
                    found_answer(opaque, next_offset, low, high, topic_flag, group_flag, byte_count)
                )
                parts += views
                out_bytes += byte_count
                if far_end and not cold_reads.note_at_once(
                    known.queue, queue_offset, far_end, byte_count
                ):
                    reach = _NEAR
                at += 1
        finally:
            self.ways.pull_known += at - others
            if parts:
                peer.send_parts(parts)
        return at, outcome

    def refusal(self, answer: ReadyAnswer, opaque: int, code: int) -> bytes:
        """The frame that refuses a pull; it is counted."""
        self.ways.pull_refused += 1
        kind = (code, answer.code)
        self.refused[kind] = self.refused.get(kind, 0) + 1
        return answer.frame(opaque)

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
        if known.is_filtered:
            return self._answer_far_filtered(item, peer, known)
        asked, allowed = item[6], known.count_max
        count_max = (asked if asked < allowed else allowed) or 1
        run = known.runs.read(item[5], count_max, known.bytes_max, _WARM, monotonic_ms())
        if run is None or run is FAR or run[1] > RECORD_BYTES_MAX:
            return None
        self._reply_far(item, peer, known, run)
        return FarAnswer(known.plan.topic, known.plan.queue_id, item[5], run[5])

    # With a filter, messages are read as by the general way; only the way there is shorter.

    def _answer_filtered(self, item: Item, peer: Connection, known: KnownPull) -> Outcome:
        plan = known.plan
        if not self.store.is_near(plan.topic, plan.queue_id, item[5]):
            return Outcome.FAR
        if not self._give_filtered(item, peer, known, item[7] if known.commits else -1):
            return Outcome.GENERAL
        self.ways.pull_filtered += 1
        return Outcome.ANSWERED

    def _answer_far_filtered(
        self, item: Item, peer: Connection, known: KnownPull
    ) -> FarAnswer | None:
        plan = known.plan
        allowed = self._settings.config.transfer_count_in_memory_max
        row_count = SCANNED_ROWS_MAX + plan._replace(count_max=item[6]).count_limit(allowed)
        physical_end = self.store.warm_end(plan.topic, plan.queue_id, item[5], row_count)
        if not physical_end or not self._give_filtered(item, peer, known, -1):
            return None
        return FarAnswer(plan.topic, plan.queue_id, item[5], physical_end)

    def _give_filtered(
        self, item: Item, peer: Connection, known: KnownPull, consumer_offset: int
    ) -> bool:
        plan = known.plan._replace(queue_offset=item[5], count_max=item[6])
        result, views = self._read_filtered(plan)
        if result.status is GetStatus.FOUND:
            answer = _FOUND
            self._stats.pulled(known.names, result.message_count, result.byte_count)
        elif result.status is GetStatus.NO_MATCHED_MESSAGE:
            answer = _NONE_MATCHED
            self._stats.pull_missed()
        else:
            return False
        next_queue_offset = result.next_queue_offset
        self._consumer_offsets.read_on(
            known.offsets_key, plan.queue_id, consumer_offset, next_queue_offset
        )
        if not known.given_noted:
            self.note_given(known)
        ends = (result.queue_offset_min, result.queue_offset_max)
        header = answer % (next_queue_offset, *ends, *known.flags, item[0])
        peer.send([frame_prefix(len(header), result.byte_count) + header, *views])
        self.answered[item[3]] = self.answered.get(item[3], 0) + 1
        return True

    def _find(self, item: Item) -> KnownPull | None:
        """What is known of pulls like this one, if that is all there is to know now."""
        known = self.known_pulls.get((item[3], item[4]))
        # An operator's reset may be pending, or messages may have left memory.
        if known is None or self.pending_resets or not self.log_fits_memory:
            return None
        return None if known.commits and item[7] < 0 else known

    def _note(self, known: KnownPull, code: int, count: int, byte_count: int) -> None:
        """What operators are told of a pull that was answered."""
        self._stats.pulled(known.names, count, byte_count)
        self.answered[code] = self.answered.get(code, 0) + 1
        if not known.given_noted:
            self.note_given(known)

    def _reply_far(self, item: Item, peer: Connection, known: KnownPull, run: FoundRun) -> None:
        self._reply_late(item, peer, known, run)
        self._note(known, item[3], run[2], run[1])

    def _reply_late(self, item: Item, peer: Connection, known: KnownPull, run: FoundRun) -> None:
        """The offset that it carries was written when it came."""
        views, byte_count, count, low, high, _ = run
        next_queue_offset = item[5] + count
        self.read_on(known.offsets_key, known.queue[1], -1, next_queue_offset)
        topic_flag, group_flag = known.flags
        begin = found_answer(
            item[0], next_queue_offset, low, high, topic_flag, group_flag, byte_count
        )
        peer.send([begin, *views])

    def remember(self, item: Item, request: Request) -> None:
        """``request`` went the general way; from now on pulls like it need not, if it passed."""
        plan = self._admission.verdict(request)
        if not isinstance(plan, PullPlan):
            self._remember_refusal(item, plan)
            return
        if len(item[8]) > _HEADER_BYTES_MAX:
            return
        if len(self.known_pulls) >= _KNOWN_MAX:
            self._forget()
        runs = self.store.runs(plan.topic, plan.queue_id)
        known = self.known_pulls.get((item[3], item[4]))
        if known is not None:
            # Patterns have it, too: of two of them only one would be looked after.
            known.runs = runs
            return
        tally = self._stats.tally_of((plan.topic_name, plan.group))
        self.known_pulls[item[3], item[4]] = KnownPull(
            plan, runs, self._settings.config, tally, _hold_ms(plan, request), item[4]
        )

    def _remember_refusal(self, item: Item, refusal: RequestRejected | None) -> None:
        if refusal is not None and len(item[4]) <= _REFUSED_KEY_BYTES_MAX:
            if len(self._refused) >= _REFUSED_MAX:
                self._refused.clear()
            self._refused[item[3], item[4]] = refusal

    # Those that have to wait.

    def note_held(self, item: Item) -> KnownPull | None:
        """Take note of a pull that has come to the end of its queue, where it may be held.

        None when it must go the general way; nothing was noted then.
        """
        known = self._find(item)
        if known is None or known.is_filtered or known.hold_ms is None:
            return None
        if item[5] != self.store.queue_offset_max(*known.queue):
            return None
        consumer_offset = item[7] if known.commits else -1
        self.read_on(known.offsets_key, known.queue[1], consumer_offset, item[5])
        self._stats.pull_missed()
        if not known.given_noted:
            self.note_given(known)
        return known

    def answer_held(self, item: Item, peer: Connection) -> bool:
        """Answer such a pull with what has arrived since; False if it must go the general way."""
        known = self._find(item)
        if known is None:
            return False
        asked, allowed = item[6], known.count_max
        count_max = (asked if asked < allowed else allowed) or 1
        run = known.runs.read(item[5], count_max, known.bytes_max, _NEAR, monotonic_ms())
        if run is None or run is FAR or run[1] > RECORD_BYTES_MAX:
            return False
        self._stats.pulled(known.names, run[2], run[1])
        if not known.given_noted:
            self.note_given(known)
        self._reply_late(item, peer, known, run)
        return True

    def note_given_again(self) -> None:
        """Once in a while, so that operators see what a group reads and when it last did."""
        for known in self.known_pulls.values():
            known.given_noted = False


def _hold_ms(plan: PullPlan, request: Request) -> int | None:
    if not plan.sys_flag & FLAG_SUSPEND:
        return None
    try:
        return HeaderFields(request).long("suspendTimeoutMillis", 0)
    except RequestRejected:
        # The general way tells what is wrong with it.
        return None
