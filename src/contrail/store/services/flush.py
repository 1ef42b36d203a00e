"""Makes the log durable: one thread, ``fdatasync``, and nobody acknowledged before it returned.

Under SYNC_FLUSH the next sync starts as soon as anything waits, so a crowd of waiters shares one
sync and a lone one never idles. Under ASYNC_FLUSH the thread wakes by interval. A failed sync is
final: the flushed position stays, every waiter learns of it and the store is poisoned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from contrail.clock import monotonic_ms
from contrail.errors import StorePoisoned
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.segments import SegmentList

_PAGE_BYTES = 4096


class Flusher:
    """Owns the flushed position. ``written`` and ``wait`` may be called from any thread."""

    def __init__(
        self,
        files: FileSystem,
        segments: SegmentList,
        config: StoreConfig,
        *,
        physical_end: int,
        on_flushed: Callable[[int], None] | None = None,
        on_failed: Callable[[StorePoisoned], None],
    ) -> None:
        self._files = files
        self._segments = segments
        self._config = config
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._syncs_before_ack = config.syncs_before_ack
        # One lock, two crowds: the flusher waits for work, everybody else for the flusher.
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._done = threading.Condition(lock)
        self._written = self._wanted = self.flushed_end = physical_end
        self._failure: StorePoisoned | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="log-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def written(self, physical_end: int) -> None:
        """The log now reaches ``physical_end``; under SYNC_FLUSH a sync begins at once."""
        if self._syncs_before_ack:
            with self._work:
                self._written = self._wanted = physical_end
                self._work.notify()
        else:
            self._written = physical_end

    def wait(self, physical_end: int, timeout_ms: int | None = None) -> bool:
        """Block until the log is durable up to there. False when the time ran out.

        Raises:
            StorePoisoned: a write or sync failed before that position became durable.
        """
        timeout = None if timeout_ms is None else timeout_ms / 1000
        with self._done:
            if self._wanted < physical_end:
                self._wanted = physical_end
                self._work.notify()
            self._done.wait_for(
                lambda: self.flushed_end >= physical_end or self._failure is not None, timeout
            )
            if self.flushed_end >= physical_end:
                return True
            if self._failure is not None:
                raise self._failure
            return False

    def fail(self, failure: StorePoisoned) -> None:
        """Stop for good and tell everyone who waits."""
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
        thorough_at_ms = monotonic_ms() + self._config.flush_thorough_interval_ms
        while self._failure is None:
            stopping = self._await_work()
            thorough = stopping or monotonic_ms() >= thorough_at_ms
            if thorough:
                thorough_at_ms = monotonic_ms() + self._config.flush_thorough_interval_ms
            if self._is_due(thorough):
                self._flush()
            elif stopping:
                return

    def _await_work(self) -> bool:
        interval = None if self._syncs_before_ack else self._config.flush_interval_ms / 1000
        with self._work:
            self._work.wait_for(
                lambda: (
                    self._wanted > self.flushed_end or self._stopping or self._failure is not None
                ),
                interval,
            )
            return self._stopping

    def _is_due(self, thorough: bool) -> bool:
        if self._wanted > self.flushed_end:
            return True
        pages = self._written // _PAGE_BYTES - self.flushed_end // _PAGE_BYTES
        least = 1 if thorough else self._config.flush_pages_min
        return self._written > self.flushed_end and (thorough or pages >= least)

    def _flush(self) -> None:
        target = self._written
        crashpoint("flush.before_sync")
        try:
            for segment in self._segments.between(self.flushed_end, target):
                self._files.fdatasync(segment.fd)
        except OSError as error:
            failure = StorePoisoned(f"fdatasync of the commit log failed: {error}")
            failure.__cause__ = error
            self.fail(failure)
            self._on_failed(failure)
            return
        crashpoint("flush.after_sync")
        with self._done:
            self.flushed_end = target
            self._done.notify_all()
        if self._on_flushed is not None:
            self._on_flushed(target)
