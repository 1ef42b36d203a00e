"""Makes the log durable: one thread that calls ``fdatasync``; no send is acknowledged before.

Under SYNC_FLUSH the next sync starts as soon as any send waits, so many sends share one sync and a
lone send starts its own. Under ASYNC_FLUSH the thread wakes by interval. With the transient pool it
also commits memory to the file, more often than it syncs. A failed write or sync is final: the
flushed position stays, every waiter gets the error and the store is poisoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from contrail.clock import monotonic_ms
from contrail.errors import LogCut, StorePoisoned
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.segments import SegmentList
from contrail.store.services.pooled_writes import PooledWrites
from contrail.store.state.flush import Rounds, is_due
from contrail.store.state.positions import Positions


class _Waiter:
    """A call of ``wait`` under way; ``is_cut`` once its bytes were cut off."""

    def __init__(self, physical_end: int) -> None:
        self.physical_end = physical_end
        self.is_cut = False


class Flusher:
    """Moves the flushed position. ``written`` and ``wait`` may be called from any thread."""

    def __init__(
        self,
        files: FileSystem,
        segments: SegmentList,
        config: StoreConfig,
        positions: Positions,
        *,
        pooled: PooledWrites | None = None,
        on_flushed: Callable[[int], None] | None = None,
        on_failed: Callable[[StorePoisoned], None],
        is_stepped: bool = False,
    ) -> None:
        """If it ``is_stepped`` there is no thread: ``flush_now`` and ``wait`` sync at once."""
        self._is_stepped = is_stepped
        self._files = files
        self._segments = segments
        self._config = config
        self._positions = positions
        self._pooled = pooled
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._syncs_before_ack = config.syncs_before_ack
        # One lock, two conditions: the flusher waits for work, callers of ``wait`` for the flusher.
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._written = self._wanted = positions.physical_end
        # Held for the length of a sync, with the call of its listener.
        self._syncing = threading.Lock()
        self._waiting: set[_Waiter] = set()
        self._failure: StorePoisoned | None = None
        self._stopping = False
        # Called after each append, on the thread that appends.
        self.on_written: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="log-flush", daemon=True)

    def start(self) -> None:
        if not self._is_stepped:
            self._thread.start()

    def flush_now(self) -> None:
        """Make durable what is written, on this thread."""
        with self._syncing:
            self._flush()

    def written(self, physical_end: int) -> None:
        """The log now reaches ``physical_end``; under SYNC_FLUSH this starts a sync."""
        positions = self._positions
        positions.physical_end = physical_end
        if self._pooled is None:
            positions.committed_end = physical_end
        if self._syncs_before_ack:
            with self._work:
                self._written = self._wanted = physical_end
                self._work.notify()
        else:
            self._written = physical_end
        if self.on_written is not None:
            self.on_written()

    def begin_at(self, physical_offset: int) -> None:
        """An empty log begins elsewhere: everything below counts as written and durable."""
        with self._work:
            self._written = self._wanted = physical_offset
            positions = self._positions
            positions.physical_end = positions.committed_end = physical_offset
            positions.flushed_end = physical_offset

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a sync under way end, with the call of its listener, and begin no other within."""
        with self._syncing:
            yield

    def cut(self, physical_end: int) -> None:
        """The log ends at ``physical_end`` now; call it with the flusher ``held``."""
        with self._done:
            positions = self._positions
            positions.physical_end = positions.committed_end = physical_end
            positions.flushed_end = min(positions.flushed_end, physical_end)
            positions.cut_count += 1
            self._written = self._wanted = physical_end
            for waiter in self._waiting:
                waiter.is_cut = waiter.physical_end > physical_end
            self._done.notify_all()

    def wait(self, physical_end: int, timeout_ms: int | None = None) -> bool:
        """Block until the log is durable up to ``physical_end``; False if the timeout passes first.

        Raises:
            LogCut: the bytes up to there were cut off meanwhile.
            StorePoisoned: a write or sync failed before that position became durable.
        """
        timeout = None if timeout_ms is None else timeout_ms / 1000
        if self._is_stepped:
            self.flush_now()
        waiter = _Waiter(physical_end)
        with self._done:
            if self._wanted < physical_end:
                self._wanted = physical_end
                self._work.notify()
            self._waiting.add(waiter)
            try:
                self._done.wait_for(
                    lambda: (
                        self._positions.flushed_end >= physical_end
                        or self._failure is not None
                        or waiter.is_cut
                    ),
                    timeout,
                )
            finally:
                self._waiting.discard(waiter)
            if waiter.is_cut:
                raise LogCut(f"the log was cut below {physical_end}: a later leader replaced it")
            if self._positions.flushed_end >= physical_end:
                return True
            if self._failure is not None:
                raise StorePoisoned(*self._failure.args) from self._failure.__cause__
            return False

    def fail(self, failure: StorePoisoned) -> None:
        """Stop for good and wake every waiter with ``failure``."""
        with self._done:
            self._failure = self._failure or failure
            self._work.notify()
            self._done.notify_all()

    def stop(self) -> None:
        """Flush what was written, then end the thread."""
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        config = self._config
        commits = Rounds(config.commit_thorough_interval_ms, monotonic_ms())
        intervals = Rounds(config.flush_interval_ms, monotonic_ms())
        thorough_rounds = Rounds(config.flush_thorough_interval_ms, monotonic_ms())
        while self._failure is None:
            stopping = self._await_work()
            now_ms = monotonic_ms()
            asked = stopping or self._is_asked()
            if self._pooled is not None and (asked or self._commit_is_due(commits, now_ms)):
                self._commit(self._pooled)
            # With the pool the thread wakes for commits more often than for syncs.
            on_time = self._pooled is None or intervals.is_thorough(now_ms)
            thorough = thorough_rounds.is_thorough(now_ms)
            if asked or (on_time and self._flush_is_due(thorough)):
                with self._syncing:
                    self._flush()
            if stopping and self._positions.flushed_end >= self._written:
                return

    def _await_work(self) -> bool:
        with self._work:
            self._work.wait_for(
                lambda: self._is_asked() or self._stopping or self._failure is not None,
                self._pause_s(),
            )
            return self._stopping

    def _pause_s(self) -> float | None:
        if self._syncs_before_ack:
            return None
        if self._pooled is not None:
            return self._config.commit_interval_ms / 1000
        return self._config.flush_interval_ms / 1000

    def _is_asked(self) -> bool:
        """Whether a waiter wants bytes that are written and not synced."""
        return min(self._wanted, self._written) > self._positions.flushed_end

    def _commit_is_due(self, commits: Rounds, now_ms: int) -> bool:
        return is_due(
            self._positions.committed_end,
            self._written,
            pages_min=self._config.commit_pages_min,
            thorough=commits.is_thorough(now_ms),
        )

    def _flush_is_due(self, thorough: bool) -> bool:
        return is_due(
            self._positions.flushed_end,
            self._positions.committed_end,
            pages_min=self._config.flush_pages_min,
            thorough=thorough,
        )

    def _commit(self, pooled: PooledWrites) -> None:
        target = self._written
        try:
            pooled.commit()
        except OSError as error:
            self._give_up(f"committing the transient pool to the log failed: {error}", error)
            return
        self._positions.committed_end = target

    def _flush(self) -> None:
        if self._failure is not None:
            return
        target = self._positions.committed_end
        crashpoint("flush.before_sync")
        try:
            synced = self._segments.between(self._positions.flushed_end, target)
            for segment in synced:
                self._files.fdatasync(segment.fd)
        except OSError as error:
            self._give_up(f"fdatasync of the commit log failed: {error}", error)
            return
        crashpoint("flush.after_sync")
        for segment in synced:
            if segment.end <= target:
                segment.close_descriptor()
        with self._done:
            self._positions.flushed_end = target
            self._done.notify_all()
        self._tell(target)

    def _tell(self, target: int) -> None:
        if self._on_flushed is None:
            return
        try:
            self._on_flushed(target)
        except Exception as error:
            # Sends that wait for these calls would wait for ever: poison the store instead.
            self._give_up(f"the listener for flushes raised {error!r}", error)

    def _give_up(self, problem: str, error: Exception) -> None:
        failure = StorePoisoned(problem)
        failure.__cause__ = error
        # The store refuses appends first: a waiter that gets the error may append right away.
        self._on_failed(failure)
        self.fail(failure)
