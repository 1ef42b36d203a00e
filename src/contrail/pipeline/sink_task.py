"""One task of the sink: checks, places, encodes and sends its rows.

Two attempts of a task may send at the same time, if Spark gave up on an attempt that still runs.
Both have the same rows in the same order, each sends the next run of a queue only after the run
before is stored, and the broker drops rows that are not newer than its last: the first attempt
that sends a row stores it, and no row is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from contrail.client.sink_requests import SinkRequests, Stored
from contrail.errors import SinkRefused
from contrail.pipeline import sink_batch
from contrail.pipeline.options import Idempotence, SinkSettings
from contrail.pipeline.sink_apache import (
    Delivery,
    LookedUpSends,
    alone,
    choose_delivery,
    id_of_key,
    require_window,
    send_plainly,
)
from contrail.pipeline.sink_calls import Calls, Lanes, SendParcel
from contrail.pipeline.sink_lanes import Parcel
from contrail.pipeline.sink_layout import Indexes, QueueTable, RowWishes, layout_of
from contrail.pipeline.sink_rows import RowPlan, SinkRows, Where, read_rows
from contrail.pipeline.sink_units import Stamp, Units, cut_runs, encode_units
from contrail.pipeline.task_identity import TaskIdentity
from contrail.protocol.bodies.sinks import Queues, SinkStatus

_log = logging.getLogger(__name__)

# Brokers answer an ordinary batch with all its ids in one field.
_BATCH_ROWS_MAX = 1_000
# Brokers count a batch by its records, which are longer than units, and accept 4 MiB.
_BATCH_BYTES_MAX = 3 << 20
# The sink id in status requests of writes without a sink, to learn the brokers' abilities.
_NOBODY = "-"


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The outcome of a task's rows."""

    row_count: int = 0
    stored_count: int = 0
    dropped_count: int = 0
    # The brokers at which rows wait for the decision, and the coordinator.
    prepared_at: tuple[str, ...] = ()
    coordinator: str = ""
    # The batch was decided before this attempt, which sent no rows.
    was_decided: bool = False


class _Decided(Exception):
    """The batch is decided already, by the named broker."""

    def __init__(self, coordinator: str) -> None:
        super().__init__(coordinator)
        self.coordinator = coordinator


def write_rows(
    calls: Calls,
    settings: SinkSettings,
    plan: RowPlan,
    identity: TaskIdentity,
    batches: Iterator[pa.RecordBatch],
) -> TaskOutcome:
    """Send all rows of a task, and wait until they are stored.

    Raises:
        SinkRefused: a row cannot be sent, or the cluster cannot keep the sink's guarantee.
        ClientError: a broker refused rows, or did not answer for a long time.
    """
    first = next((one for one in batches if one.num_rows), None)
    if first is None:
        return TaskOutcome()
    task = _TaskWrite(calls, settings, plan, identity)
    try:
        for batch in chain((first,), batches):
            task.add(batch)
        return task.finish()
    except _Decided as found:
        return TaskOutcome(was_decided=True, coordinator=found.coordinator)
    except BaseException:
        task.give_up()
        raise


class _TaskWrite:
    def __init__(
        self, calls: Calls, settings: SinkSettings, plan: RowPlan, identity: TaskIdentity
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._plan = plan
        self._identity = identity
        # The brokers' statuses of the sink, for the first rows only: they become outdated.
        self._statuses = _ask(calls, settings, identity)
        self._delivery = choose_delivery(
            settings.idempotence,
            by_keys=settings.dedupe_by_keys,
            plain=sink_batch.plain_brokers(self._statuses or {}),
        )
        self._coordinator = ""
        self._stamp = _stamp(self._delivery, identity)
        self._tables: dict[str, QueueTable] = {}
        self._brokers: set[str] = set()
        self._row_count = 0
        self._lanes: Lanes = calls.open_lanes(_sender(self._delivery))

    def add(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; waits while too many bytes are under way."""
        if not batch.num_rows:
            return
        where = Where(self._identity.partition, self._row_count)
        rows = read_rows(batch, self._plan, where)
        if self._delivery is Delivery.PREPARED and rows.delayed is not None:
            where.refuse(
                pa.array(rows.delayed),
                "delayLevel or deliverTimestamp",
                "idempotence=transactional cannot delay a message: make it null",
            )
        wishes = RowWishes(
            rows.queue_ids,
            rows.broker_names,
            rows.sharding_keys,
            rows.keys if self._delivery.is_by_keys else None,
        )
        self._open_tables(rows.topics.texts)
        for code, topic in enumerate(rows.topics.texts):
            numbers = np.flatnonzero(rows.topics.codes == code)
            table = self._tables[topic]
            chosen = table.choose_many(wishes, numbers, where.partition, where.first_row)
            self._send(rows, numbers, table, chosen, where)
        self._row_count += batch.num_rows

    def _send(
        self,
        rows: SinkRows,
        numbers: Indexes,
        table: QueueTable,
        chosen: Indexes,
        where: Where,
    ) -> None:
        by_queue = np.argsort(chosen, kind="stable")
        order, queues = numbers[by_queue], chosen[by_queue]
        units = encode_units(
            rows, order, self._ids(rows, order, table.topic, where), self._stamp, where
        )
        bounds = [0, *(np.flatnonzero(np.diff(queues)) + 1).tolist(), len(order)]
        runs = [
            (table.queues[queues[start]], list(self._runs(rows, order, units, start, end)))
            for start, end in pairwise(bounds)
        ]
        # Queues in turn, so that all are busy from the start.
        for turn in range(max(len(parts) for _, parts in runs)):
            for queue, parts in runs:
                if turn < len(parts):
                    self._brokers.add(queue.broker_name)
                    start, end = parts[turn]
                    parcel = Parcel(queue, end - start, units.between(start, end))
                    self._lanes.submit(self._wrapped(parcel))

    def _runs(
        self, rows: SinkRows, order: Indexes, units: Units, start: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """The rows of a queue, cut into requests; ordinary batches may hold no delayed row."""
        bytes_max = min(self._settings.send_batch_bytes, _BATCH_BYTES_MAX)
        cuts = [start, end]
        if rows.delayed is not None and not self._delivery.is_stamped:
            late = np.flatnonzero(rows.delayed[order[start:end]]) + start
            cuts = sorted({start, end, *late.tolist(), *(late + 1).tolist()})
        for first, last in pairwise(cuts):
            yield from cut_runs(
                units.ends, first, last, bytes_max=bytes_max, count_max=_BATCH_ROWS_MAX
            )

    def _wrapped(self, parcel: Parcel) -> Parcel:
        """A parcel of one row as a single message, if batches are ordinary ones."""
        if self._delivery.is_stamped or parcel.row_count > 1:
            return parcel
        return Parcel(parcel.queue, 1, alone=alone(parcel.queue, parcel.units))

    def _ids(self, rows: SinkRows, order: Indexes, topic: str, where: Where) -> Sequence[str]:
        if not self._delivery.is_by_keys:
            return self._calls.take_ids(len(order))
        if rows.keys is None or (rows.keys.codes[order] < 0).any():
            bad = 0 if rows.keys is None else int(order[(rows.keys.codes[order] < 0).argmax()])
            where.refuse_row(bad, "keys", "it is null: dedupeBy=keys tells repeats by it")
        ids = [id_of_key(topic, key) for key in rows.keys.texts]
        return [ids[code] for code in rows.keys.codes[order].tolist()]

    # Layouts.

    def _open_tables(self, topics: Sequence[str]) -> None:
        """Get the layout of topics that had no rows before, and have the brokers record it."""
        fresh = [topic for topic in topics if topic not in self._tables]
        if not fresh:
            return
        if self._delivery is Delivery.KEYED:
            for topic in fresh:
                require_window(topic, self._calls.topic_attributes(topic))
        is_known = self._identity.sink_id and self._is_recorded
        layout = self._recorded(fresh) if is_known else {one: self._route(one) for one in fresh}
        self._tables |= {topic: QueueTable(topic, layout[topic]) for topic in fresh}

    def _route(self, topic: str) -> Queues:
        return layout_of(self._calls.publish_queues(topic, create=not self._is_recorded))

    def _recorded(self, topics: Sequence[str]) -> Mapping[str, Queues]:
        """The layout that the brokers hold: that of the first attempt."""
        identity, decides = self._identity, self._delivery is Delivery.PREPARED
        beginning = sink_batch.Beginning(
            self._calls, identity.sink_id, identity.batch_id, decides=decides
        )
        statuses, self._statuses = self._statuses, None
        begun = beginning.begin(topics, self._route, statuses)
        self._require_coordinator(begun.plan.coordinator, decides)
        if begun.is_decided:
            raise _Decided(begun.plan.coordinator)
        return begun.plan.topics

    def _require_coordinator(self, name: str, decides: bool) -> None:
        if decides and self._coordinator not in ("", name):
            raise SinkRefused(
                f"brokers {self._coordinator} and {name} both coordinate batch "
                f"{self._identity.batch_id} of sink {self._identity.sink_id!r}: run it again"
            )
        self._coordinator = name

    @property
    def _is_recorded(self) -> bool:
        """Whether brokers keep the layout, so that a replay has the same."""
        return self._delivery.is_stamped or self._delivery is Delivery.KEYED

    # The end.

    def finish(self) -> TaskOutcome:
        outcome = self._lanes.finish()
        is_prepared = self._delivery is Delivery.PREPARED
        return TaskOutcome(
            row_count=self._row_count,
            stored_count=outcome.stored_count,
            dropped_count=outcome.dropped_count,
            prepared_at=tuple(sorted(self._brokers)) if is_prepared else (),
            coordinator=self._coordinator,
        )

    def give_up(self) -> None:
        """Roll back the prepared rows: a failed attempt is never committed."""
        self._lanes.cancel()
        if self._delivery is Delivery.PREPARED and self._brokers:
            identity = self._identity
            attempts = {name: [identity.attempt] for name in self._brokers}
            sink_batch.roll_back(self._calls, identity.sink_id, identity.batch_id, attempts)


def _ask(
    calls: Calls, settings: SinkSettings, identity: TaskIdentity
) -> Mapping[str, SinkStatus | None] | None:
    """The brokers' statuses of the sink; None if they are not needed."""
    is_agreed = (identity.sink_id, identity.batch_id) in calls.plans
    if settings.idempotence is Idempotence.NONE or is_agreed:
        return None
    return sink_batch.ask_all(calls, identity.sink_id or _NOBODY)


def _stamp(delivery: Delivery, identity: TaskIdentity) -> Stamp:
    if not delivery.is_stamped:
        return Stamp()
    return Stamp(identity.key, identity.attempt if delivery is Delivery.PREPARED else None)


def _sender(delivery: Delivery) -> SendParcel:
    if delivery is Delivery.LOOKED_UP:
        return LookedUpSends()
    return _send_stamped(delivery is Delivery.PREPARED) if delivery.is_stamped else send_plainly


def _send_stamped(prepared: bool) -> SendParcel:
    async def send(requests: SinkRequests, parcel: Parcel) -> Stored:
        return await requests.send_stamped(parcel.queue, parcel.units, prepared=prepared)

    return send
