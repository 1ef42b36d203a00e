"""The identity of a running Spark task: the one module that reads Spark's local properties.

Their names are Spark's internals. They are the same in every release from 4.0 on, and a test
reads them in a real query.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from contrail.errors import SinkRefused

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"


class TaskIdentity(NamedTuple):
    """``sink_id``, ``batch_id`` and ``partition`` are the same when a task runs again.

    ``attempt`` is always new, also after a restart of the application.
    """

    sink_id: str
    batch_id: int
    partition: int
    attempt: str

    @property
    def key(self) -> str:
        return f"{self.sink_id}/{self.batch_id}/{self.partition}"


class RunningTask(Protocol):
    """The used part of Spark's ``TaskContext``."""

    def partitionId(self) -> int: ...
    def getLocalProperty(self, key: str) -> str | None: ...


def current_task() -> RunningTask:
    """The task that this process runs now.

    Raises:
        SinkRefused: the process runs no task.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise SinkRefused("the sink's write() runs outside of a Spark task: start it by df.write")
    return context


def stream_identity(task: RunningTask, sink_id: str | None) -> TaskIdentity:
    """A task of a streaming query; ``sink_id`` is the option, which replaces the query's id.

    Raises:
        SinkRefused: Spark does not give the query's id or the batch's number.
    """
    query_id = sink_id or task.getLocalProperty(QUERY_ID_PROPERTY)
    batch_id = task.getLocalProperty(BATCH_ID_PROPERTY)
    if not query_id:
        raise SinkRefused(
            f"Spark did not set the local property {QUERY_ID_PROPERTY}, by which a repeated batch "
            "is known: give the option sinkId, or set idempotence=none"
        )
    if batch_id is None or not batch_id.isdecimal():
        raise SinkRefused(
            f"Spark set the local property {BATCH_ID_PROPERTY} to {batch_id!r}, by which a "
            "repeated batch is known: use a release of Spark from 4.2 on, or set idempotence=none"
        )
    return TaskIdentity(query_id, int(batch_id), task.partitionId(), _new_attempt())


def batch_identity(task: RunningTask, write_id: str) -> TaskIdentity:
    """A task of a batch write, whose only batch is number 0."""
    return TaskIdentity(write_id, 0, task.partitionId(), _new_attempt())


def nameless_identity(task: RunningTask) -> TaskIdentity:
    """A task whose rows cannot be recognised when it runs again."""
    return TaskIdentity("", 0, task.partitionId(), _new_attempt())


def _new_attempt() -> str:
    return uuid.uuid4().hex
