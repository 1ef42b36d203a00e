"""The writers of ``format("rocketmq")``, as Spark calls them.

``write`` runs in a task on an executor, ``commit`` and ``abort`` on the driver, in other processes:
they share only the commit messages. Spark runs tasks again, replays whole batches,
and may abort a batch whose commit it began; see ``sink_batch`` for why that is harmless.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from contrail.client.sink_requests import Participants
from contrail.errors import OptionInvalid, SinkRefused
from contrail.pipeline import sink_batch
from contrail.pipeline.options import Idempotence, SinkSettings
from contrail.pipeline.sink_apache import warn_once
from contrail.pipeline.sink_calls import Calls, connection_for
from contrail.pipeline.sink_rows import RowPlan, plan_rows
from contrail.pipeline.sink_task import TaskOutcome, write_rows
from contrail.pipeline.task_identity import (
    TaskIdentity,
    batch_identity,
    current_task,
    nameless_identity,
    stream_identity,
)

_log = logging.getLogger(__name__)

_SINK_ID_CHARS_MAX = 128


def batch_writer(schema: StructType, settings: SinkSettings) -> BatchWriter:
    """The writer of ``df.write``.

    Raises:
        OptionInvalid: a column or an option does not fit; no task was started.
    """
    if settings.sink_id is not None:
        raise OptionInvalid("sinkId: it is for streams: a batch write is known by its writeId")
    return BatchWriter(plan_rows(schema, settings.topic), _with_write_id(settings))


def _with_write_id(settings: SinkSettings) -> SinkSettings:
    """The settings with a write id: without one, the rows of a second run are not recognised."""
    _check_id("writeId", settings.write_id)
    mode = settings.idempotence
    if settings.write_id is not None or settings.dedupe_by_keys or mode is Idempotence.NONE:
        return settings
    if mode is Idempotence.TRANSACTIONAL:
        # A transactional write needs an id, if only for this one run.
        return replace(settings, write_id=f"write-{uuid.uuid4().hex}")
    if mode is Idempotence.DEDUPE:
        raise OptionInvalid(
            "writeId: idempotence=dedupe needs it for a batch write: give a name that is the same "
            "when the job runs again, such as the run's id"
        )
    warn_once(
        "this batch write has no writeId: rows may be there twice after a retry, and are when the "
        "job runs again"
    )
    return replace(settings, idempotence=Idempotence.NONE)


def stream_writer(schema: StructType, settings: SinkSettings) -> StreamWriter:
    """The writer of ``df.writeStream``.

    Raises:
        OptionInvalid: a column or an option does not fit; no task was started.
    """
    if settings.write_id is not None:
        raise OptionInvalid("writeId: it is for batch writes: a stream is known by its sinkId")
    _check_id("sinkId", settings.sink_id)
    return StreamWriter(plan_rows(schema, settings.topic), settings)


def _check_id(option: str, text: str | None) -> None:
    if text is None:
        return
    if len(text) > _SINK_ID_CHARS_MAX or not text.isprintable():
        raise OptionInvalid(
            f"{option}={text!r}: give at most {_SINK_ID_CHARS_MAX} printable characters"
        )


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver: counts and its identity, never rows."""

    sink_id: str
    batch_id: int
    partition: int
    attempt: str
    outcome: TaskOutcome


class BatchWriter(DataSourceArrowWriter):
    """One batch write; its only batch is number 0."""

    def __init__(self, plan: RowPlan, settings: SinkSettings) -> None:
        self._plan = plan
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        write_id = self._settings.write_id
        identity = batch_identity(task, write_id) if write_id else nameless_identity(task)
        return write(connection_for(self._settings), self._settings, self._plan, identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._settings, messages)
        told = left_out_text(self._settings.write_id, messages)
        if told:
            _log.warning("%s", told)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._settings, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. Spark makes two writers for each batch."""

    def __init__(self, plan: RowPlan, settings: SinkSettings) -> None:
        self._plan = plan
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        identity = (
            nameless_identity(task)
            if self._settings.idempotence is Idempotence.NONE
            else stream_identity(task, self._settings.sink_id)
        )
        return write(connection_for(self._settings), self._settings, self._plan, identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._settings, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(self._settings, messages)


# The rules, without Spark.


def write(
    calls: Calls,
    settings: SinkSettings,
    plan: RowPlan,
    identity: TaskIdentity,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    """Send the rows of one task."""
    outcome = write_rows(calls, settings, plan, identity, batches)
    return Written(
        identity.sink_id, identity.batch_id, identity.partition, identity.attempt, outcome
    )


def commit(settings: SinkSettings, messages: Sequence[WriterCommitMessage | None]) -> None:
    prepared = prepared_of(messages)
    if prepared:
        commit_prepared(connection_for(settings), prepared)


def left_out_text(
    write_id: str | None, messages: Sequence[WriterCommitMessage | None]
) -> str | None:
    """The warning about rows that were left out because their write was known; None without any."""
    outcomes = [one.outcome for one in messages if isinstance(one, Written)]
    dropped_count = sum(one.dropped_count for one in outcomes)
    decided_count = sum(one.was_decided for one in outcomes)
    if decided_count:
        return (
            f"writeId {write_id!r}: it was committed before, and the rows of {decided_count} of "
            f"{len(messages)} tasks were left out; new rows need a writeId of their own"
        )
    if not dropped_count or write_id is None:
        return None
    row_count = sum(one.row_count for one in outcomes)
    return (
        f"writeId {write_id!r}: {dropped_count} of {row_count} rows were already stored under this "
        "id and were left out; new rows need a writeId of their own"
    )


def abort(settings: SinkSettings, messages: Sequence[WriterCommitMessage | None]) -> None:
    prepared = prepared_of(messages)
    if prepared:
        all_wrote = all(message is not None for message in messages)
        abort_prepared(connection_for(settings), prepared, all_wrote=all_wrote)


def prepared_of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The tasks that prepared rows for a decision, or found the batch decided."""
    return [
        one
        for one in messages
        if isinstance(one, Written) and (one.outcome.prepared_at or one.outcome.was_decided)
    ]


def commit_prepared(calls: Calls, prepared: Sequence[Written]) -> None:
    """Make a batch visible as a whole. May be repeated.

    Raises:
        ClientError: a broker does not answer; the batch may be decided, a replay completes it.
    """
    first, coordinator = prepared[0], coordinator_of(prepared)
    if any(one.outcome.was_decided for one in prepared):
        brokers = {name for one in prepared for name in one.outcome.prepared_at}
        sink_batch.complete_batch(calls, coordinator, first.sink_id, first.batch_id, also=brokers)
    else:
        participants = participants_of(prepared)
        sink_batch.commit_batch(calls, coordinator, first.sink_id, first.batch_id, participants)


def coordinator_of(prepared: Sequence[Written]) -> str:
    """The coordinator that the tasks found for their batch.

    Raises:
        SinkRefused: the tasks found several.
    """
    deciders = {one.outcome.coordinator for one in prepared if one.outcome.was_decided}
    names = deciders or {one.outcome.coordinator for one in prepared}
    if len(names) > 1:
        first = prepared[0]
        raise SinkRefused(
            f"tasks of batch {first.batch_id} of sink {first.sink_id!r} found several brokers "
            f"that coordinate it: {', '.join(sorted(names))}. Nothing was decided; go on with "
            "another sinkId or writeId"
        )
    return names.pop()


def participants_of(prepared: Sequence[Written]) -> Participants:
    """The attempt of each partition whose rows are delivered, by broker."""
    found: dict[str, dict[int, str]] = {}
    for one in prepared:
        for name in one.outcome.prepared_at:
            found.setdefault(name, {})[one.partition] = one.attempt
    return found


def abort_prepared(calls: Calls, prepared: Sequence[Written], *, all_wrote: bool) -> None:
    """Roll back the prepared rows of tasks, unless the batch is or may yet be decided.

    If all tasks wrote, the commit failed, and the decision may be under way: nothing is rolled
    back then. Rows that stay prepared end with the next batch, or by their age.
    """
    first = prepared[0]
    if any(
        sink_batch.complete_batch(calls, name, first.sink_id, first.batch_id)
        for name in sorted({one.outcome.coordinator for one in prepared})
    ):
        _log.warning("batch %d of sink %s is committed", first.batch_id, first.sink_id)
        return
    if all_wrote:
        return
    attempts: dict[str, list[str]] = {}
    for one in prepared:
        for name in one.outcome.prepared_at:
            attempts.setdefault(name, []).append(one.attempt)
    sink_batch.roll_back(calls, first.sink_id, first.batch_id, attempts)
