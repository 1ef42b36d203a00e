"""The store's periodic duties: writing rows out, checkpoints, retention, scrubbing.

The owner calls ``tick`` as often as it likes; ``tick`` does the duties that are due. One worker
thread syncs and writes the checkpoint files; the owner captures their content first.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from contrail.errors import DiskFull, StorePoisoned, StoreReadOnly
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import OUT_OF_DESCRIPTORS, OUT_OF_SPACE
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.marker_files import ApacheCheckpoint
from contrail.store.disk.queue_table import QueueTable
from contrail.store.services.append import Appender
from contrail.store.services.checkpoint import CheckpointFiles, DerivedMark
from contrail.store.services.dispatch import Dispatcher
from contrail.store.services.flush import Flusher
from contrail.store.services.retention import Retention
from contrail.store.services.scrub import Scrubber, ScrubBudget
from contrail.store.state.append import AppendState
from contrail.store.state.record_crc import RecordCrcRule

_CHECKPOINT_INTERVAL_MS = 1000
# With thousands of queues, how many are written at a time: a few milliseconds of the owner's time.
# Only a checkpoint needs all of them; without one under way fewer are written at a time.
_QUEUES_AT_ONCE = 200
_QUEUES_IN_PASSING = 20
_BETWEEN_QUEUES_MS = 100
# The index is written once in this many rounds of rows. Its keys are spread over all its slots, so
# the keys of a second change nearly as many pages as those of a minute.
_ROWS_PER_INDEX = 10
# How much slower the scrubber is while more bytes are appended than it may check.
_BUSY_SCRUB_SLOWNESS = 8
# A pass over a short log takes little time, but ends with reading all slots of the newest index.
_SCRUB_REST_MS = 10 * 60 * 1000
_INTERVAL_MS = 100
_SCRUB_INTERVAL_MS = 10


class _LogSnapshot(NamedTuple):
    physical_end: int
    named_end: int
    last_record_offset: int | None
    store_timestamp_ms: int
    commit_hint: int | None


_P = ParamSpec("_P")
_T = TypeVar("_T")


class _AtOnce(Executor):
    """Does its work on the thread that asks for it."""

    def submit(self, work: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        done: Future[_T] = Future()
        done.set_result(work(*args, **kwargs))
        return done


class Upkeep:
    """Knows which duties are due and the content of the last checkpoint."""

    def __init__(
        self,
        config: StoreConfig,
        state: AppendState,
        appender: Appender,
        flusher: Flusher,
        dispatcher: Dispatcher,
        queues: QueueTable,
        index: KeyIndex | None,
        checkpoints: CheckpointFiles,
        retention: Retention,
        scrubber: Scrubber,
        *,
        apache: ApacheCheckpoint,
        crc_rule: RecordCrcRule,
        offset_floors: dict[tuple[bytes, int], int],
        commit_hint: Callable[[], int | None],
        on_failed: Callable[[StorePoisoned], None],
        on_refused: Callable[[StoreReadOnly | None], None],
        is_stepped: bool = False,
    ) -> None:
        """If it ``is_stepped`` there is no thread: ``tick`` writes checkpoints by itself."""
        self._config = config
        self._state = state
        self._appender = appender
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._queues = queues
        self._index = index
        self._checkpoints = checkpoints
        self._retention = retention
        self._scrubber = scrubber
        self._apache = apache
        self._crc_rule = crc_rule
        self.offset_floors = offset_floors
        self._commit_hint = commit_hint
        self._on_failed = on_failed
        self._on_refused = on_refused
        self._worker: Executor = (
            _AtOnce()
            if is_stepped
            else ThreadPoolExecutor(1, thread_name_prefix="store-checkpoint")
        )
        self._running: Future[None] | None = None
        # The end and the commit hint that the last mark names.
        self._marked: tuple[int, int | None] = (-1, None)
        # Whether rows that are due are not written yet.
        self._rows_wait = False
        self._rows_again_ms = 0
        self._index_waits = False
        # The content of the next checkpoint, which is written once its rows are.
        self._promised: DerivedMark | None = None
        # The first tick, not the opening, checkpoints what recovery found: the opener waits.
        self._due: dict[str, int] = {"thorough": 0}
        self._scrub_budget = ScrubBudget(config.scrub_bytes_per_second)
        self._scrubbed_at_end = state.physical_end

    def tick(self, now_ms: int) -> None:
        """Do the duties that are due. Cheap when none is."""
        config = self._config
        removed = False
        again_ms = self._retention.due_again_ms
        if self._is_due("clean", now_ms, config.clean_interval_ms) or (
            again_ms is not None and again_ms <= now_ms
        ):
            removed = bool(self._retention.run_once(now_ms))
        if self._is_due("rows", now_ms, config.queue_flush_interval_ms):
            self._queues.cool_idle()
            self._rows_wait = True
            self._retention.judge_disk()
        if self._is_due("index", now_ms, config.queue_flush_interval_ms * _ROWS_PER_INDEX):
            self._rows_wait = self._index_waits = True
        # After a removal the marks must not name the removed files for a minute: begin a checkpoint
        # now. Otherwise a checkpoint under way is finished first: with many new queues that may
        # take longer than a minute.
        thorough_ms = config.queue_flush_thorough_interval_ms
        if removed or (self._promised is None and self._is_due("thorough", now_ms, thorough_ms)):
            self._promise()
        # Also when the clock was set back.
        if self._rows_wait and not 0 < self._rows_again_ms - now_ms <= _BETWEEN_QUEUES_MS:
            self._rows_again_ms = now_ms + _BETWEEN_QUEUES_MS
            self._write_rows()
        if self._promised is not None and not self._queues.is_owing:
            self._hand_over(self._promised)
            self._promised = None
        elif self._is_due("mark", now_ms, _CHECKPOINT_INTERVAL_MS):
            self._hand_over(None)
        self._scrub(now_ms)

    def _is_due(self, duty: str, now_ms: int, interval_ms: int) -> bool:
        due_ms = self._due.setdefault(duty, now_ms + interval_ms)
        # A clock that is set back must not delay a duty by as much.
        if now_ms < due_ms and due_ms - now_ms <= interval_ms:
            return False
        self._due[duty] = now_ms + interval_ms
        return True

    def interval_ms(self, now_ms: int) -> int:
        """How soon to call again; often during a scrub pass, so that each step is short."""
        return _INTERVAL_MS if self._is_resting(now_ms) else _SCRUB_INTERVAL_MS

    def _is_resting(self, now_ms: int) -> bool:
        return 0 <= now_ms - self._scrubber.counters.pass_ended_ms < _SCRUB_REST_MS

    def _scrub(self, now_ms: int) -> None:
        """Run a step of the scrubber; slower while much is appended, which has precedence."""
        if self._is_resting(now_ms):
            return
        bytes_max = self._scrub_budget.available(now_ms)
        if bytes_max:
            appended = self._state.physical_end - self._scrubbed_at_end
            self._scrubbed_at_end = self._state.physical_end
            slowness = _BUSY_SCRUB_SLOWNESS if appended > bytes_max else 1
            cost = self._scrubber.run_once(bytes_max // slowness).cost_bytes
            self._scrub_budget.spend(cost * slowness)

    def _promise(self) -> None:
        """Capture the content of the next checkpoint; its rows are written from now on."""
        try:
            if self._index is not None:
                self._index.write_pending()
        except OSError as error:
            self._index_waits = True
            self.derived_failed(error)
            return
        self._promised = self._captured_derived()
        self._rows_wait = True

    def _write_rows(self) -> None:
        """Write some derived rows to their files; an error that may pass is not fatal."""
        self._rows_wait = False
        queues_max = _QUEUES_AT_ONCE if self._queues.is_owing else _QUEUES_IN_PASSING
        try:
            self._rows_wait = not self._queues.write_pending(queues_max=queues_max)
            if self._index is not None and self._index_waits:
                self._index.write_pending()
        except OSError as error:
            self.derived_failed(error)
            return
        self._index_waits = False
        self._on_refused(None)

    def derived_failed(self, error: OSError) -> None:
        """A derived file could not be written: refuse appends, or poison if it cannot pass."""
        refusal = _refusal_for_now(error)
        if refusal is not None:
            self._on_refused(refusal)
            return
        failure = StorePoisoned(f"writing a derived file failed: {error}")
        failure.__cause__ = error
        self._on_failed(failure)

    def _captured_log(self) -> _LogSnapshot:
        return _LogSnapshot(
            self._state.physical_end,
            self._appender.named_end,
            self._appender.last_record_offset,
            self._appender.last_store_timestamp_ms,
            self._commit_hint(),
        )

    def _captured_derived(self) -> DerivedMark:
        """Valid once the index and the rows that the queues owe are written and synced."""
        return DerivedMark(
            self._dispatcher.dispatched_end,
            self._queues.owe(),
            self._index.marks() if self._index is not None else [],
            dict(self._queues.tombstones),
            {
                (topic, queue_id): floor
                for (topic, queue_id), floor in self.offset_floors.items()
                if floor > self._queue_offset_max(topic, queue_id)
            },
        )

    def _queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return queue.queue_offset_max if queue is not None else 0

    def _hand_over(self, derived: DerivedMark | None) -> None:
        if self._running is not None and not self._running.done():
            return
        log = self._captured_log()
        if derived is None and (log.physical_end, log.commit_hint) == self._marked:
            return
        apache = self._next_apache(log, derived)
        self._running = self._worker.submit(self._write_reporting, log, derived, apache)

    def _next_apache(self, log: _LogSnapshot, derived: DerivedMark | None) -> ApacheCheckpoint:
        apache = self._apache._replace(
            physic_timestamp_ms=log.store_timestamp_ms,
            confirm_physical_offset=log.last_record_offset or 0,
        )
        if derived is None:
            return apache
        index_ms = self._index.last_timestamp_ms if self._index is not None else 0
        return apache._replace(
            logics_timestamp_ms=self._dispatcher.last_store_timestamp_ms,
            index_timestamp_ms=index_ms,
        )

    def _write_reporting(
        self, log: _LogSnapshot, derived: DerivedMark | None, apache: ApacheCheckpoint
    ) -> None:
        try:
            self._write(log, derived, apache, clean=False)
        except StorePoisoned:
            return  # The poisoning was reported when it happened.
        except OSError as error:
            self.derived_failed(error)

    def _write(
        self,
        log: _LogSnapshot,
        derived: DerivedMark | None,
        apache: ApacheCheckpoint,
        *,
        clean: bool,
    ) -> None:
        """Sync the log, then queues and index, then write the checkpoints: never another order."""
        self._flusher.wait(log.physical_end)
        crashpoint("checkpoint.log_flushed")
        if derived is not None:
            self._queues.sync()
            crashpoint("checkpoint.queues_synced")
            if self._index is not None:
                self._index.sync()
            crashpoint("checkpoint.index_synced")
            self._checkpoints.write_derived(derived)
        self._checkpoints.write_log(
            log.named_end,
            log.last_record_offset,
            apache,
            clean=clean,
            record_crc_from=self._crc_rule.present_from,
            commit_hint=log.commit_hint,
        )
        self._apache = apache
        self._marked = (log.physical_end, log.commit_hint)

    def checkpoint(self, *, clean: bool = False) -> None:
        """Write and sync everything now, on this thread.

        Raises:
            StorePoisoned: the log could not be made durable.
            OSError: a derived file could not be written.
        """
        if self._running is not None:
            self._running.result()
        self._queues.write_pending()
        if self._index is not None:
            self._index.write_pending()
        crashpoint("checkpoint.rows_written")
        self._promised = None
        log, derived = self._captured_log(), self._captured_derived()
        self._write(log, derived, self._next_apache(log, derived), clean=clean)

    def drain(self) -> None:
        """Let a checkpoint under way end: it waits for bytes that a cut may remove."""
        if self._running is not None:
            self._running.result()

    def lower_mark(self, physical_end: int) -> None:
        """Durably promise no byte from ``physical_end`` on; no checkpoint may be under way.

        The marks of queues and index stay: they speak of committed bytes alone.
        """
        apache = self._apache._replace(
            confirm_physical_offset=min(self._apache.confirm_physical_offset, physical_end)
        )
        hint = self._commit_hint()
        self._checkpoints.write_log(
            physical_end,
            None,
            apache,
            record_crc_from=self._crc_rule.present_from,
            commit_hint=hint,
        )
        self._apache = apache
        self._marked = (physical_end, hint)

    def stop(self) -> None:
        self._worker.shutdown(wait=True)


def _refusal_for_now(error: OSError) -> StoreReadOnly | None:
    """The error for appends while a failure lasts that may pass by itself; None for others."""
    if error.errno in OUT_OF_SPACE:
        return DiskFull(
            f"no room for consume queues or index: {error}; appends resume by themselves"
        )
    if error.errno in OUT_OF_DESCRIPTORS:
        return StoreReadOnly(
            f"too many open files to write consume queues or index: {error}; appends resume by "
            "themselves; raise the limit (ulimit -n) or lower contrailOpenFilesMax"
        )
    return None
