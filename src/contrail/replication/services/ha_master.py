"""Sends the log to slaves as it grows, and believes their reports as far as they can be true.

After an append the broker calls ``appended``. At the end of the loop's turn every slave whose push
is due gets what it lacks, as views of the log; ``slave_pacing`` has the times. Bytes that are on
the disk only are read in by a thread before they are looked at.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from contrail.clock import Clock
from contrail.errors import ConfigError, RemoteProtocolError
from contrail.protocol.handshake import Agreement
from contrail.replication.config import HaMasterConfig
from contrail.replication.services.slave_link import SlaveLink
from contrail.replication.state.ha_master import (
    Beat,
    Close,
    Frame,
    HaMasterState,
    LogRange,
    SlaveProgress,
)
from contrail.replication.state.in_sync import NO_LIMIT, InSync
from contrail.replication.state.refusals import Refusal, Refusals
from contrail.replication.state.slave_pacing import SlavePacing
from contrail.replication.status import HaMasterStatus, SlaveStatus
from contrail.store import MessageStore
from contrail.wire.cluster_port import ClusterPort, Link

# The bytes that a thread brings in together for a slave that reads old segments.
_BRING_IN_BYTES = 2 << 20
_SWEEP_S = 0.25
_THREADS = 2
# Of the threads that bring old segments in, where the loop wants the same core.
_NICENESS = 10
_WARNING_INTERVAL_MS = 1000
_log = logging.getLogger(__name__)


def _yield_to_sends() -> None:
    """Let this thread run behind the loop: a slave that catches up delays no send for a core."""
    if sys.platform == "linux":
        # A thread has a niceness of its own there; a sandbox may forbid to set it.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class HaMaster:
    """The master's side of replication; belongs to the loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        config: HaMasterConfig,
        clock: Clock,
        *,
        on_progress: Callable[[], None] = lambda: None,
        make_nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """``on_progress`` is called when slaves came, went or let answers go."""
        self._store = store
        self._config = config
        self._now_ms = clock.elapsed_ms
        self._on_progress = on_progress
        self._make_nonce = make_nonce
        self._state = HaMasterState(config.limits)
        self._in_sync = InSync(config.in_sync)
        self._pacing = SlavePacing(is_awaited=config.in_sync.is_synchronous)
        trust = config.trust
        self._port = ClusterPort(self, tls=trust.server_tls, certificate=trust.server_certificate)
        self._links: dict[Link, SlaveLink] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._fetches: set[asyncio.Future[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusals = Refusals()
        # By reason: when a refusal was logged last; ``status`` counts them all.
        self._warned_ms: dict[str, int] = {}
        # The call of the next turn, at once or when a push is due.
        self._next_turn: asyncio.Handle | None = None
        self._follow_acknowledgements()

    # Called by the broker.

    async def start(self) -> int:
        """Open the HA port and return its number.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._loop = asyncio.get_running_loop()
        try:
            port = await self._port.listen(self._config.listen_address, self._config.listen_port)
        except ConfigError as error:
            raise ConfigError(
                f"the port for slaves: {error}; set haListenPort to a free one"
            ) from error
        self._sweeper = self._loop.create_task(self._sweep_forever(), name="ha-master-sweep")
        return port

    async def stop(self) -> None:
        """Close the port and all links."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._port.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self._loop = None

    def appended(self) -> None:
        """The log grew: push at the end of this turn of the loop."""
        if self._links and self._next_turn is None and self._loop is not None:
            self._next_turn = self._loop.call_soon(self._turn)

    def flushed(self) -> None:
        """The log was synced: under SYNC_FLUSH more of it may go out, now."""
        if self._links:
            self._turn()

    @property
    def slave_count(self) -> int:
        """How many slaves receive the log."""
        return len(self._state.acknowledged_ends())

    @property
    def in_sync_count(self) -> int:
        """How many brokers are in sync, this master included."""
        ends = self._state.acknowledged_ends()
        return self._in_sync.in_sync_count(ends, self._store.physical_end)

    @property
    def needed_count(self) -> int:
        """How many brokers must have a record before its send is acknowledged."""
        ends = self._state.acknowledged_ends()
        return self._in_sync.needed_count(ends, self._store.physical_end)

    def status(self) -> HaMasterStatus:
        now_ms, physical_end = self._now_ms(), self._store.physical_end
        replicated_end = self._store.positions.replicated_end
        return HaMasterStatus(
            port=self._port.port,
            physical_end=physical_end,
            replicated_end=None if replicated_end == NO_LIMIT else replicated_end,
            in_sync_count=self.in_sync_count,
            needed_count=self.needed_count,
            slaves=tuple(
                self._slave_status(slave, physical_end, now_ms)
                for slave in self._state.slaves.values()
            ),
            refusals=dict(self._state.counts),
            last_refusal=self._refusals.told(now_ms),
        )

    def _slave_status(self, slave: SlaveProgress, physical_end: int, now_ms: int) -> SlaveStatus:
        return SlaveStatus(
            address=slave.address,
            broker_id=slave.broker_id,
            is_plain=slave.is_plain,
            is_receiving=slave.is_receiving,
            acknowledged_end=slave.acknowledged_end,
            next_offset=slave.next_offset,
            lag_bytes=physical_end - slave.acknowledged_end,
            last_report_ms=now_ms - slave.heard_ms,
            is_in_sync=slave.is_receiving
            and self._in_sync.is_in_sync(slave.acknowledged_end, physical_end),
            sent_bytes=slave.sent_bytes,
        )

    # Called by links.

    def opened(self, link: Link) -> None:
        crowded_out = self._state.make_room()
        if crowded_out is not None:
            self._carry_out(crowded_out)
        slave = self._state.connected(link.address, self._now_ms())
        if isinstance(slave, str):
            self._note_refusal(
                link.address,
                slave,
                "as many slaves as a master keeps are connected",
                is_slave=False,
            )
            link.close(slave)
            return
        known = SlaveLink(
            link,
            slave,
            self._config,
            make_nonce=self._make_nonce,
            facts=self._facts,
            tail=self._tail,
            on_proved=lambda agreement: self._proved(known, agreement),
        )
        self._links[link] = known

    def received(self, link: Link, data: bytes) -> None:
        known = self._links.get(link)
        if known is None:
            return
        try:
            physical_end = known.feed(data)
        except RemoteProtocolError as error:
            self._carry_out(self._state.refused(known.number, error.reason, str(error)))
            return
        if physical_end is not None:
            self._reported(known, physical_end)

    def resumed(self, link: Link) -> None:
        known = self._links.get(link)
        if known is not None:
            self._go_on(known)

    def lost(self, link: Link, reason: str) -> None:
        known = self._links.pop(link, None)
        if known is not None:
            self._state.lost(known.number)
            _log.info("the slave at %s is gone: %s", link.address, reason)
            self._note_progress()

    # The effects of reports.

    def _proved(self, known: SlaveLink, agreement: Agreement) -> None:
        for close in self._state.proved(known.number, agreement.peer.broker_id):
            self._carry_out(close)

    def _reported(self, known: SlaveLink, physical_end: int) -> None:
        slave, now_ms = known.slave, self._now_ms()
        if not slave.is_receiving:
            self._begin(known, physical_end, now_ms)
            return
        refusal = self._state.reported(slave, physical_end, now_ms)
        if refusal is not None:
            self._carry_out(refusal)
        elif self._config.in_sync.is_synchronous:
            # The slave's next bytes first: answers leave while it writes them.
            if slave.next_offset < self._store.kept_end and not slave.owes_report:
                self._turn()
            if self._follow_acknowledgements():
                self._on_progress()

    def _begin(self, known: SlaveLink, physical_end: int, now_ms: int) -> None:
        refusal = self._state.begun(known.slave, physical_end, self._log(), now_ms)
        if refusal is not None:
            self._carry_out(refusal)
            return
        _log.info("the slave at %s gets the log from %d", known.link.address, physical_end)
        self.appended()
        self._note_progress()

    def _note_progress(self) -> None:
        self._follow_acknowledgements()
        self._on_progress()

    def _follow_acknowledgements(self) -> bool:
        """Move the position that answers wait for; returns whether it moved."""
        ends = self._state.acknowledged_ends()
        positions = self._store.positions
        before = positions.replicated_end
        positions.replicated_end = self._in_sync.replicated_end(ends, self._store.physical_end)
        return positions.replicated_end != before

    def _log(self) -> LogRange:
        store = self._store
        return LogRange(store.physical_min, store.kept_end, store.segment_bytes)

    def _facts(self) -> dict[str, str]:
        """The facts that a Contrail slave gets with its master's welcome."""
        store = self._store
        return {
            **self._config.facts,
            "physicalMin": str(store.physical_min),
            "physicalEnd": str(store.kept_end),
            "segmentBytes": str(store.segment_bytes),
        }

    def _tail(self, physical_end: int, byte_count: int) -> bytes | None:
        """The bytes before a place, to compare; None if they are not all in one segment here.

        Read from the disk if need be: 4 KiB, once per link.
        """
        start = physical_end - byte_count
        log = self._log()
        is_here = log.physical_min <= start and physical_end <= log.sendable_end
        if not is_here or start // log.segment_bytes != (physical_end - 1) // log.segment_bytes:
            return None
        return self._store.log_bytes(start, byte_count)

    # Pushing.

    def _turn(self) -> None:
        """Push to the slaves whose time has come, and come again at the next one's."""
        loop = self._loop
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if loop is None:
            return
        # Pushes are spaced by the loop's time, which its timers go by.
        loop_ms, sendable_end = int(loop.time() * 1000), self._store.kept_end
        waits_ms = []
        for known in list(self._links.values()):
            slave = known.slave
            if slave.next_offset >= sendable_end or not known.may_push:
                continue
            wait_ms = self._pacing.wait_ms(slave, loop_ms)
            if not wait_ms:
                slave.pushed_ms = loop_ms
                self._push(known, slave)
                if not slave.is_behind:
                    continue
            # A slave that is behind gets its next share in the next turn.
            waits_ms.append(wait_ms)
        if waits_ms:
            wait_ms = min(waits_ms)
            self._next_turn = (
                loop.call_later(wait_ms / 1000, self._turn)
                if wait_ms
                else loop.call_soon(self._turn)
            )

    def _push(self, known: SlaveLink, slave: SlaveProgress) -> None:
        """Send one slave what it lacks, up to a turn's share."""
        store, log, now_ms = self._store, self._log(), self._now_ms()
        parts: list[bytes | memoryview] = []
        pushed_bytes = 0
        takes_files = known.takes_files
        turn_bytes_max = known.turn_bytes_max(log.sendable_end - slave.next_offset)
        body_bytes_max = min(known.body_bytes_max, turn_bytes_max)
        while pushed_bytes < turn_bytes_max:
            frame = self._state.next_frame(slave, log, body_bytes_max=body_bytes_max)
            if not isinstance(frame, Frame):
                if frame is not None:
                    self._carry_out(frame)
                break
            physical_offset, byte_count = frame
            view = store.log_view(physical_offset, byte_count)
            if view is None:
                self._fetch(known, physical_offset)
                break
            place = store.log_place(physical_offset) if takes_files else None
            if place is not None and not parts:
                known.send_file(physical_offset, view, *place)
            else:
                parts += known.transfer(physical_offset, view)
            self._state.pushed(slave, byte_count, now_ms)
            pushed_bytes += byte_count
            if slave.next_offset >= log.sendable_end:
                break
        slave.is_behind = pushed_bytes >= turn_bytes_max
        if parts:
            known.link.send(parts)

    def _fetch(self, known: SlaveLink, physical_offset: int) -> None:
        """Bring old bytes in by a thread, then push on."""
        part = self._store.log_part(physical_offset, _BRING_IN_BYTES)
        assert part is not None and self._loop is not None, "a frame lies in a segment"
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                _THREADS, thread_name_prefix="ha-bring-in", initializer=_yield_to_sends
            )
        known.is_fetching = True
        fetch = self._loop.run_in_executor(self._threads, self._store.bring_in, part)
        self._fetches.add(fetch)
        fetch.add_done_callback(lambda fetch: self._fetched(known, fetch))

    def _fetched(self, known: SlaveLink, fetch: asyncio.Future[None]) -> None:
        self._fetches.discard(fetch)
        known.is_fetching = False
        if fetch.cancelled():
            return
        error = fetch.exception()
        if error is not None and known.number in self._state.slaves:
            # Retention may have removed the file meanwhile, or the disk fails.
            self._carry_out(self._state.refused(known.number, "unreadable", str(error)))
        else:
            self._go_on(known)

    def _go_on(self, known: SlaveLink) -> None:
        """Give a slave more that had to wait in the middle of its share."""
        slave = self._state.slaves.get(known.number)
        if slave is not None:
            slave.is_behind = True
            self._turn()

    # Time.

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for effect in self._state.expire(self._now_ms()):
                self._carry_out(effect)
            # A slave that reports nothing falls out of sync as the log grows.
            if self._follow_acknowledgements():
                self._on_progress()

    def _note_refusal(self, address: str, reason: str, text: str, *, is_slave: bool) -> None:
        """Log one refusal of a reason each second: strangers may come by the thousand."""
        now_ms = self._now_ms()
        last_ms = self._warned_ms.get(reason)
        if last_ms is None or now_ms - last_ms >= _WARNING_INTERVAL_MS:
            self._warned_ms[reason] = now_ms
            _log.warning("the link to the slave at %s ends (%s): %s", address, reason, text)
        told = Refusal(reason, f"the slave at {address}: {text}", now_ms)
        self._refusals.note(told, is_slave=is_slave)

    def _carry_out(self, effect: Close | Beat) -> None:
        known = next((one for one in self._links.values() if one.number == effect.number), None)
        if known is None:
            return
        if isinstance(effect, Beat):
            known.link.send(known.transfer(effect.physical_offset))
            return
        address, is_slave = known.link.address, known.is_admitted
        self._note_refusal(address, effect.reason, effect.text, is_slave=is_slave)
        known.close(effect.reason, effect.text)
        self._note_progress()
