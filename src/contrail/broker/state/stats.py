"""The broker's counters, in RocketMQ's items and windows. The hot path only adds numbers.

Four groups of figures:

    ==============  ===============================================  ============================
    figures         what they count                                  windows
    ==============  ===============================================  ============================
    stat items      messages and bytes by topic, group and broker    minute, hour, day
    rates           puts, gets that found or missed, messages read   10, 60 and 600 seconds
    put times       how long appends took, by range                  the last whole minute
    stored          messages by topic, kind and size                 since the start
    ==============  ===============================================  ============================
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from contrail.kernels.send_tally import (
    DELAY,
    FIFO,
    NORMAL,
    TRANSACTION,
    Tally,
    skips_of,
    tally_rows,
    tally_run,
)
from contrail.model.message import MessageDraft
from contrail.model.properties import SHARDING_KEY
from contrail.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic

if TYPE_CHECKING:
    from contrail.kernels.send_places import QueuePlace
    from contrail.kernels.send_records import Chunk

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
SNDBCK2DLQ_TIMES = "SNDBCK2DLQ_TIMES"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"

ITEMS_MAX = 250_000
"""How many keys one stat has; events under a new key beyond it are not counted."""
RATE_SPANS_S = (10, 60, 600)
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_DAY_MS = 24 * 60 * _MINUTE_MS
# How often each window takes a sample, and how many samples it holds.
_MINUTE_WINDOW = (10 * _SECOND_MS, 7)
_HOUR_WINDOW = (10 * _MINUTE_MS, 7)
_DAY_WINDOW = (60 * _MINUTE_MS, 25)

# Below which duration an append falls into each range that ``putMessageDistributeTime`` shows.
_RANGES_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_RANGE_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_STEPS_MS = [1] * 20 + [2] * 15 + [5] * 10 + [10] * 10 + [50] * 6 + [100] * 5 + [1000] * 9
_BUCKETS_MS = tuple(accumulate(_STEPS_MS))


_FIFO_MARK = f"{SHARDING_KEY}\x01".encode()
_FIFO_SKIPS = skips_of(_FIFO_MARK)
# Messages waiting in a topic of the broker's own are of that topic's kind.
_KINDS = {SCHEDULE_TOPIC: DELAY, TIMER_TOPIC: DELAY, HALF_TOPIC: TRANSACTION}
KIND_NAMES = {NORMAL: "normal", FIFO: "fifo", DELAY: "delay", TRANSACTION: "transaction"}


class StatWindow(NamedTuple):
    """The figures of one item in a window: in all, per second, and per call."""

    total: int = 0
    per_second: float = 0.0
    per_call: float = 0.0


class GetTally:
    """Reads of one group from one topic that found something, since they were last settled."""

    __slots__ = ("byte_count", "calls", "count", "names")

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        self.calls = self.count = self.byte_count = 0


class StatItem:
    """One counted thing: ``value`` grows by ``amount`` in each of ``calls``."""

    __slots__ = ("_samples", "calls", "value")

    def __init__(self) -> None:
        self.value = 0
        self.calls = 0
        # By window. Short lists: a deque takes more memory than all samples of most items.
        self._samples: tuple[list[tuple[int, int, int]], ...] = ([], [], [])

    def add(self, amount: int, calls: int = 1) -> None:
        self.value += amount
        self.calls += calls

    def sample(self, window: int, now_ms: int) -> None:
        samples = self._samples[window]
        interval_ms, count_max = _WINDOWS[window]
        if not samples:
            samples.append((now_ms - interval_ms, 0, 0))
        elif len(samples) == count_max:
            del samples[0]
        samples.append((now_ms, self.calls, self.value))

    def window(self, window: int) -> StatWindow:
        samples = self._samples[window]
        if not samples:
            return StatWindow()
        (first_ms, first_calls, first), (last_ms, last_calls, last) = samples[0], samples[-1]
        total, calls = last - first, last_calls - first_calls
        return StatWindow(
            total,
            _per_second(total, last_ms - first_ms),
            total / calls if calls > 0 else 0.0,
        )


MINUTE, HOUR, DAY = range(3)
_WINDOWS = (_MINUTE_WINDOW, _HOUR_WINDOW, _DAY_WINDOW)


class _Rate:
    """A counter and a sample of it for each of the last 600 seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=RATE_SPANS_S[-1] + 1)

    def sample(self, now_ms: int) -> None:
        self._samples.append((now_ms, self.total))

    def start_over(self) -> None:
        self._samples.clear()

    def per_second(self, span_s: int) -> float | None:
        """None until there are samples for that span."""
        if len(self._samples) <= span_s:
            return None
        then_ms, then = self._samples[-span_s - 1]
        now_ms, now = self._samples[-1]
        return _per_second(now - then, now_ms - then_ms)


class BrokerStats:
    """All counters of a broker. ``sample`` is to be called every second."""

    def __init__(
        self,
        cluster_name: str,
        *,
        started_ms: int,
        utc_offset_ms: int = 0,
        is_system: Callable[[str], bool] = is_system_topic,
    ) -> None:
        """``utc_offset_ms`` says when the day begins here, for the totals since the morning."""
        self.started_ms = started_ms
        self._cluster = cluster_name
        self._is_system = is_system
        self._utc_offset_ms = utc_offset_ms
        self._items: dict[str, dict[str, StatItem]] = {}
        self._put_items: dict[str, tuple[StatItem, ...]] = {}
        self._get_items: dict[tuple[str, str], tuple[StatItem, ...]] = {}
        self._rates = {name: _Rate() for name in ("put", "found", "miss", "transferred")}
        self._put, self._found, self._miss, self._transferred = self._rates.values()
        self._last_sample_ms = started_ms
        self._day = self._day_of(started_ms)
        self._marks = {"put": (0, 0), "get": (0, 0)}
        self.put_failed_count = 0
        self.put_byte_count = 0
        self.put_time_max_ms = 0
        self.get_time_max_ms = 0
        self._times = _PutTimes()
        self._last_times = _PutTimes()
        # By topic and kind: messages, bytes, and the messages of each class of sizes.
        self._stored: dict[tuple[str, int], list[int]] = {}
        # Where something is counted that came as rows of numbers and is not among the items yet.
        self._unsettled: list[QueuePlace] = []
        # Reads that found something, by topic and group, and those with some that are not among
        # the items yet. The list is the same for good: frequent callers keep hold of it.
        self._gets: dict[tuple[str, str], GetTally] = {}
        self.unsettled_gets: list[GetTally] = []

    # The hot path.

    def stored(
        self, drafts: Sequence[MessageDraft], physical_offsets: list[int], physical_end: int
    ) -> None:
        """A run was stored at these places."""
        run = drafts if isinstance(drafts, list) else list(drafts)
        self._add(tally_run(run, physical_offsets, physical_end, _FIFO_MARK, _FIFO_SKIPS))

    def stored_sends(self, chunks: list[Chunk], byte_count: int) -> None:
        """Count stored sends that are rows of numbers, of ``byte_count`` bytes.

        A run may be of as many topics as it has messages. The items of its topics are brought up
        to date when somebody looks at them, which is far less often than once a run.
        """
        self._put.total += tally_rows(chunks, self._unsettled)
        self.put_byte_count += byte_count

    def _settle_gets(self) -> None:
        for tally in self.unsettled_gets:
            names, calls, count = tally.names, tally.calls, tally.count
            messages, size, *totals = self._get_items.get(names) or self._items_of_get(*names)
            messages.add(count, calls)
            size.add(tally.byte_count, calls)
            for item in totals:
                item.value += count
            self._found.total += calls
            self._transferred.total += count
            tally.calls = tally.count = tally.byte_count = 0
        self.unsettled_gets.clear()

    def _settle(self) -> None:
        """Bring the items up to date."""
        self._settle_gets()
        for place in self._unsettled:
            topic = place.topic.decode("utf-8", "replace")
            for kind, counts in zip((NORMAL, FIFO), place.take_counts(), strict=True):
                if counts[0]:
                    self._count_topic(topic, kind, counts)
        self._unsettled.clear()

    def _add(self, tally: Tally) -> None:
        for (name, kind), counts in tally.items():
            self._count_topic(name.decode("utf-8", "replace"), kind, counts)
            self._put.total += counts[0]
            self.put_byte_count += counts[1]

    def _count_topic(self, topic: str, kind: int, counts: list[int]) -> None:
        self._count_items(topic, counts[0], counts[1])
        key = (topic, _KINDS.get(topic, kind))
        known = self._stored.get(key)
        self._stored[key] = counts if known is None else list(map(add, known, counts))

    def sent(self, topic: str, count: int, byte_count: int) -> None:
        """``count`` messages of one topic were stored."""
        self._count_items(topic, count, byte_count)
        self._put.total += count
        self.put_byte_count += byte_count

    def _count_items(self, topic: str, count: int, byte_count: int) -> None:
        items = self._put_items.get(topic) or self._items_of_put(topic)
        items[0].add(count, count)
        items[1].add(byte_count, count)
        for item in items[2:]:
            item.value += count

    def pulled(self, names: tuple[str, str], count: int, byte_count: int) -> None:
        """One read handed ``count`` messages of a topic to a group: ``names`` are theirs."""
        tally = self._gets.get(names) or self.tally_of(names)
        if not tally.calls:
            self.unsettled_gets.append(tally)
        tally.calls += 1
        tally.count += count
        tally.byte_count += byte_count

    def tally_of(self, names: tuple[str, str]) -> GetTally:
        """The tally of a group's reads from a topic, for frequent callers.

        The first one counted joins ``unsettled_gets``.
        """
        tally = self._gets.get(names)
        if tally is None:
            tally = self._gets[names] = GetTally(names)
        return tally

    def pull_missed(self, count: int = 1) -> None:
        """Reads that found nothing."""
        self._miss.total += count

    def sent_back(self, topic: str, group: str, count: int = 1) -> None:
        """A group could not consume messages and sent them back."""
        self.item(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(count, count)

    def given_up(self, topic: str, group: str, count: int = 1) -> None:
        """Messages that a group sent back went to its dead letters."""
        self.item(SNDBCK2DLQ_TIMES, f"{topic}@{group}").add(count, count)

    def put_failed(self, count: int = 1) -> None:
        self.put_failed_count += count

    def put_took(self, elapsed_ms: int) -> None:
        self._times.add(elapsed_ms)
        if elapsed_ms > self.put_time_max_ms:
            self.put_time_max_ms = elapsed_ms

    def get_took(self, elapsed_ms: int) -> None:
        if elapsed_ms > self.get_time_max_ms:
            self.get_time_max_ms = elapsed_ms

    def item(self, name: str, key: str) -> StatItem:
        """An item by its stat's name and key, made if there is none."""
        items = self._items.setdefault(name, {})
        found = items.get(key)
        if found is None:
            found = StatItem()
            if len(items) < ITEMS_MAX:
                items[key] = found
        return found

    def _items_of_put(self, topic: str) -> tuple[StatItem, ...]:
        items = [
            self.item(TOPIC_PUT_NUMS, topic),
            self.item(TOPIC_PUT_SIZE, topic),
            self.item(BROKER_PUT_NUMS, self._cluster),
        ]
        if not self._is_system(topic):
            items.append(self.item(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster))
        self._put_items[topic] = tuple(items)
        return self._put_items[topic]

    def _items_of_get(self, topic: str, group: str) -> tuple[StatItem, ...]:
        key = f"{topic}@{group}"
        items = [
            self.item(GROUP_GET_NUMS, key),
            self.item(GROUP_GET_SIZE, key),
            self.item(BROKER_GET_NUMS, self._cluster),
        ]
        if not self._is_system(topic):
            items.append(self.item(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self._cluster))
        self._get_items[topic, group] = tuple(items)
        return self._get_items[topic, group]

    # Sampling and forgetting.

    def sample(self, now_ms: int) -> None:
        """Take the samples that are due; a clock that was set back starts over."""
        self._settle_gets()
        before_ms, self._last_sample_ms = self._last_sample_ms, now_ms
        if now_ms <= before_ms:
            if now_ms < before_ms:
                for rate in self._rates.values():
                    rate.start_over()
            return
        for rate in self._rates.values():
            rate.sample(now_ms)
        for window, (interval_ms, _) in enumerate(_WINDOWS):
            if before_ms // interval_ms != now_ms // interval_ms:
                self._settle()
                for item in self._all_items():
                    item.sample(window, now_ms)
        if before_ms // _MINUTE_MS != now_ms // _MINUTE_MS:
            self._last_times, self._times = self._times, _PutTimes()
        self._mark_morning(now_ms)

    def _all_items(self) -> Iterator[StatItem]:
        for items in self._items.values():
            yield from items.values()

    def _mark_morning(self, now_ms: int) -> None:
        day = self._day_of(now_ms)
        if day != self._day:
            self._day = day
            for kind, (_, today) in self._marks.items():
                self._marks[kind] = (today, self.user_total(kind))

    def _day_of(self, now_ms: int) -> int:
        return (now_ms + self._utc_offset_ms) // _DAY_MS

    def topic_deleted(self, topic: str) -> None:
        """Forget the items of a topic."""
        self._settle()
        self._forget(lambda key: key == topic or key.startswith(f"{topic}@"))
        self._put_items.pop(topic, None)
        for kind in KIND_NAMES:
            self._stored.pop((topic, kind), None)
        self._forget_gets(lambda names: names[0] == topic)

    def group_deleted(self, group: str) -> None:
        """Forget the items of a group."""
        self._settle()
        self._forget(lambda key: key.endswith(f"@{group}"))
        self._forget_gets(lambda names: names[1] == group)

    def _forget_gets(self, is_gone: Callable[[tuple[str, str]], bool]) -> None:
        """Of a topic and a group; there is a tally before anything was found."""
        tables: tuple[dict[tuple[str, str], Any], ...] = (self._get_items, self._gets)
        for table in tables:
            for names in [names for names in table if is_gone(names)]:
                del table[names]

    def _forget(self, is_gone: Callable[[str], bool]) -> None:
        for name, items in self._items.items():
            if not name.startswith("BROKER_"):
                for key in [key for key in items if is_gone(key)]:
                    del items[key]

    # Asking.

    def stored_rows(self) -> list[tuple[tuple[str, int], list[int]]]:
        """By topic and kind: messages, bytes, and the messages of each class of sizes."""
        self._settle()
        return list(self._stored.items())

    def items(self, name: str) -> list[tuple[str, StatItem]]:
        """All items of a stat, by key."""
        self._settle()
        return list(self._items.get(name, {}).items())

    def find(self, name: str, key: str) -> StatItem | None:
        self._settle()
        return self._items.get(name, {}).get(key)

    def topic_put_per_second(self, topic: str) -> float:
        """How many messages of a topic were stored per second in the last minute."""
        found = self.find(TOPIC_PUT_NUMS, topic)
        return 0.0 if found is None else found.window(MINUTE).per_second

    def group_get_per_second(self, topic: str, group: str) -> float:
        """How many messages of a topic a group read per second in the last minute."""
        found = self.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if found is None else found.window(MINUTE).per_second

    @property
    def put_count(self) -> int:
        return self._put.total

    def user_total(self, kind: str) -> int:
        """Messages put or got since the start, but for those of system topics."""
        name = (
            BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC
            if kind == "put"
            else BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC
        )
        found = self.find(name, self._cluster)
        return 0 if found is None else found.value

    def morning_totals(self, kind: str) -> tuple[int, int]:
        """``user_total`` as it was yesterday morning and this morning."""
        return self._marks[kind]

    def rates(self, name: str) -> str:
        """Per second over 10, 60 and 600 seconds; a span without enough samples stays blank."""
        found = [self._rates[name].per_second(span_s) for span_s in RATE_SPANS_S]
        return " ".join("" if rate is None else str(rate) for rate in found)

    def get_rates(self) -> str:
        """The rates of all gets, found or missed."""
        found = [
            (self._found.per_second(span_s) or 0.0) + (self._miss.per_second(span_s) or 0.0)
            for span_s in RATE_SPANS_S
        ]
        return " ".join(str(rate) for rate in found)

    def put_time_ranges(self) -> str:
        """How many appends of the last whole minute fell into each range."""
        return self._last_times.ranges_text()

    def put_time_below_ms(self, share: float) -> float:
        """The time below which this share of the last whole minute's appends stayed."""
        return self._last_times.quantile_ms(share)


class _PutTimes:
    """How long the appends of one minute took."""

    def __init__(self) -> None:
        self._ranges = [0] * len(_RANGE_NAMES)
        self._buckets = [0] * (len(_BUCKETS_MS) + 1)

    def add(self, elapsed_ms: int) -> None:
        self._ranges[bisect_right(_RANGES_MS, elapsed_ms)] += 1
        self._buckets[bisect_left(_BUCKETS_MS, elapsed_ms)] += 1

    def ranges_text(self) -> str:
        pairs = zip(_RANGE_NAMES, self._ranges, strict=True)
        return "".join(f"{name}:{count} " for name, count in pairs)

    def quantile_ms(self, share: float) -> float:
        """Interpolated within the bucket in which the wanted append lies."""
        wanted, passed, low = int(sum(self._buckets) * share), 0, 0
        for high, count in zip(_BUCKETS_MS, self._buckets, strict=False):
            if wanted <= passed + count:
                return low + ((high - low) * (wanted - passed) / count if count else 0.0)
            passed += count
            low = high
        return float(low)


def _per_second(count: int, elapsed_ms: int) -> float:
    return count * _SECOND_MS / elapsed_ms if elapsed_ms > 0 else 0.0
