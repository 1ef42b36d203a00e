"""Keeps a slave's log a copy of its master's: connects, takes whole records, reports their end.

The bytes of a record that is not whole yet wait in memory. Bytes that cannot be part of this log
are not written: the slave then counts as diverged, logs it and waits for an operator.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

from contrail.clock import Clock
from contrail.errors import (
    CallFailed,
    ConfigError,
    RawBytesRefused,
    RemoteProtocolError,
    StoreError,
)
from contrail.protocol.ha_frames import LogPiece
from contrail.protocol.handshake import NONCE_BYTES, SLAVE, HandshakeRefused
from contrail.protocol.link_frames import TAIL_BYTES_MAX, Begin
from contrail.replication.config import HaSlaveConfig
from contrail.replication.services.master_link import (
    MasterLink,
    MasterRefused,
    PlainMasterLink,
    SealedMasterLink,
)
from contrail.replication.state.ha_slave import HaSlaveState, Phase
from contrail.replication.status import HaSlaveStatus
from contrail.store import MessageStore
from contrail.wire.cluster_port import Dial, Link, dial

# Beside the one record that is not whole: the filler of a blank record is held as well, and is
# never longer than a split batch that did not fit its segment.
_HELD_BYTES_MAX = 64 << 20
# From this length on the bytes behind a cut record are not copied to join it.
_LARGE_BYTES = 64 << 10
_SIZE_BYTES = 4
_IGNORED_BYTES = 4096
_SWEEP_S = 0.1
# Words of a proven master that mean that this slave's log is not a part of its own.
_DIVERGED_REASONS = frozenset(("diverged", "future_offset", "reset_needed"))
# Ends of a link on which the master has said nothing.
_UNGREETED_REASONS = frozenset(("closed_by_peer", "handshake_late"))
_log = logging.getLogger(__name__)


class HaSlave:
    """The slave's side of replication; belongs to the loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        config: HaSlaveConfig,
        clock: Clock,
        *,
        master_address: str = "",
        rebuild_command: str = "",
        on_appended: Callable[[], None] = lambda: None,
        on_welcome: Callable[[Mapping[str, str]], None] = lambda facts: None,
        on_state: Callable[[HaSlaveStatus], None] = lambda status: None,
        make_nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """``rebuild_command`` is told an operator once the logs differ.

        ``on_welcome`` gets what a Contrail master says of itself; ``on_state`` each new phase.

        Raises:
            ConfigError: the master is to be spoken to in a way that the settings do not allow.
        """
        if config.is_plain and not config.trust.takes_plain:
            raise ConfigError("a plain HA link needs contrailHaCompat")
        if not config.is_plain and config.trust.secret is None:
            raise ConfigError(
                "a slave of a Contrail master needs contrailClusterSecretFile; for an Apache "
                "master set contrailHaCompat"
            )
        self._store = store
        self._config = config
        self._now_ms = clock.elapsed_ms
        self._master_address = master_address
        self._rebuild_command = rebuild_command
        self._on_appended = on_appended
        self._on_welcome = on_welcome
        self._on_state = on_state
        self._make_nonce = make_nonce
        # A way to the master that a test can cut.
        self.dial: Dial = dial
        self._state = HaSlaveState(
            config.limits, segment_bytes=store.segment_bytes, now_ms=self._now_ms()
        )
        self._link: Link | None = None
        self._speech: MasterLink | None = None
        # Received bytes that are no whole record yet, and where in the log they begin.
        self._held = bytearray()
        self._begin_at = 0
        # The link is open, and the request is not sent yet.
        self._asks_later = False
        self._master_end: int | None = None
        self._runner: asyncio.Task[None] | None = None

    # Called by the broker.

    async def start(self) -> None:
        """Begin to follow the master, and go on after every loss of the link."""
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="ha-slave")

    async def stop(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._disconnect("stopped")
        await asyncio.sleep(0)

    def follow(self, master_address: str) -> None:
        """The master's HA port is at ``host:port`` from now on; empty: there is none."""
        if master_address == self._master_address:
            return
        self._master_address = master_address
        self._state.connect_at_ms = self._now_ms()
        self._disconnect("another_master")

    def hurry(self) -> None:
        """The master says that it is there: do not wait until the next try is due."""
        if self._link is None:
            self._state.connect_at_ms = self._now_ms()

    def begin_at(self, physical_offset: int) -> None:
        """Where an empty log asks an Apache master to begin: its minimum, else its last segment."""
        self._begin_at = physical_offset

    def flushed(self) -> None:
        """The log was synced: under SYNC_FLUSH the master may be told now."""
        if self._asks_later:
            self._ask()
        self._report()

    @property
    def is_connected(self) -> bool:
        """Whether the master sends its log to this slave."""
        return self._state.phase is Phase.TRANSFER

    @property
    def has_diverged(self) -> bool:
        """Whether this log is not a part of the master's: nothing of the master is taken."""
        return self._state.phase is Phase.DIVERGED

    def status(self) -> HaSlaveStatus:
        state, now_ms = self._state, self._now_ms()
        return HaSlaveStatus(
            phase=state.phase,
            master_address=self._master_address,
            is_connected=self.is_connected,
            physical_end=self._store.physical_end,
            reported_end=state.reported_end,
            master_end=self._master_end,
            held_bytes=len(self._held),
            received_bytes=state.received_bytes,
            last_received_ms=now_ms - state.heard_ms,
            last_sent_ms=now_ms - state.sent_ms,
            problem=state.problem,
            problem_reason=state.problem_reason,
            events=dict(state.counts),
        )

    # Called by the link.

    def opened(self, link: Link) -> None:
        self._link = link
        self._held = bytearray()
        self._speech = self._speech_for(link)
        self._state.heard_ms = self._now_ms()
        self._speech.open()
        if self._speech.is_open:
            self._ask()

    def room(self, link: Link) -> memoryview:
        speech, store = self._speech, self._store
        if link is not self._link or speech is None:
            # Nothing of this link is read any more.
            return memoryview(bytearray(_IGNORED_BYTES))
        return speech.received.room(
            speech.wanted_bytes, written_end=store.physical_end, derived_end=store.dispatched_end
        )

    def filled(self, link: Link, byte_count: int) -> None:
        speech = self._speech
        if link is not self._link or speech is None:
            return
        try:
            speech.received.filled(byte_count)
            was_open = speech.is_open
            pieces = speech.take()
            if not was_open and isinstance(speech, SealedMasterLink) and speech.facts is not None:
                self._welcomed(speech.facts)
            self._take(pieces)
        except RemoteProtocolError as error:
            self._refused(link, error)

    def resumed(self, link: Link) -> None:
        """Reports are small: a master that does not read them ends the link by itself."""

    def lost(self, link: Link, reason: str) -> None:
        if link is not self._link:
            return
        was_open = self._speech is not None and self._speech.is_open
        self._link = self._speech = None
        self._asks_later = False
        self._held = bytearray()
        self._state.lost(reason, self._now_ms())
        if not was_open and reason in _UNGREETED_REASONS:
            self._fault(
                "no_handshake",
                f"{self._master_address} ends or ignores the link before a word of a master: it "
                "must be the HA port of a Contrail master (haListenPort, by default listenPort + "
                "1), and either both or none of master and slave use TLS",
            )
        _log.info("the link to the master at %s is gone: %s", self._master_address, reason)
        self._on_state(self.status())

    # The link's life.

    async def _run(self) -> None:
        no_master_at_ms = self._now_ms() + self._config.limits.reconnect_ms
        while True:
            now_ms = self._now_ms()
            if self._link is None and self._master_address and self._state.is_due(now_ms):
                await self._connect()
            elif self._link is not None:
                self._keep_alive(self._link, now_ms)
            elif not self._master_address and now_ms >= no_master_at_ms:
                identity = self._config.identity
                self._fault(
                    "no_master",
                    f"no NameServer names a master of brokerName={identity.broker_name} in "
                    f"brokerClusterName={identity.cluster}: start it with "
                    "contrailClusterSecretFile, or set haMasterAddress",
                )
            await asyncio.sleep(_SWEEP_S)

    async def _connect(self) -> None:
        address = self._master_address
        try:
            link = await self.dial(self, address, tls=self._config.trust.client_tls)
            if address != self._master_address:
                link.close("another_master")
        except CallFailed as error:
            self._fault("unreachable", str(error))
            self._state.lost("unreachable", self._now_ms())

    def _fault(self, reason: str, text: str) -> None:
        """Remember why there is no link; the same is logged once."""
        if self._state.problem != text:
            _log.warning("the master cannot be followed: %s", text)
        self._state.fault(reason, text)

    def _keep_alive(self, link: Link, now_ms: int) -> None:
        is_open = self._speech is not None and self._speech.is_open
        if not is_open and now_ms - self._state.heard_ms >= self._config.limits.first_report_ms:
            link.close("handshake_late")
        elif self._state.is_silent(now_ms):
            link.close("silent")
        elif self._asks_later:
            self._ask()
        else:
            self._report()

    def _speech_for(self, link: Link) -> MasterLink:
        trust = self._config.trust
        if self._config.is_plain:
            return PlainMasterLink(link)
        assert trust.secret is not None, "checked when the slave was made"
        own = trust.introduction(
            self._config.identity,
            SLAVE,
            self._make_nonce(NONCE_BYTES),
            is_protected=link.is_encrypted or link.is_this_host,
        )
        return SealedMasterLink(link, own, trust.secret)

    def _welcomed(self, facts: Mapping[str, str]) -> None:
        try:
            segment_bytes, physical_min = int(facts["segmentBytes"]), int(facts["physicalMin"])
            self._master_end = int(facts["physicalEnd"])
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError("handshake", f"the welcome lacks {error}") from error
        if segment_bytes != self._store.segment_bytes:
            raise HandshakeRefused(
                "segment_bytes",
                f"mappedFileSizeCommitLog is {segment_bytes} at the master and "
                f"{self._store.segment_bytes} here: they must be equal",
            )
        self._begin_at = physical_min
        self._on_welcome(facts)
        self._ask()

    def _ask(self) -> None:
        """Ask for what follows the end of this log, once that is as durable as is promised.

        The master takes the request for an acknowledgement as well.
        """
        store = self._store
        self._asks_later = store.kept_end < store.physical_end
        if self._asks_later or self._speech is None:
            return
        end = self._begin_at if store.is_empty else store.physical_end
        self._state.begin(end, self._now_ms(), is_empty=store.is_empty and not end)
        self._speech.begin(Begin.of(end, self._tail(end)))
        _log.info("following the master at %s from %d on", self._master_address, end)
        self._on_state(self.status())

    def _tail(self, physical_end: int) -> bytes:
        """The last bytes of the log, by which a Contrail master knows it for its own."""
        if self._store.is_empty:
            return b""
        segment_bytes = self._store.segment_bytes
        segment_start = (physical_end - 1) // segment_bytes * segment_bytes
        start = max(segment_start, physical_end - TAIL_BYTES_MAX, self._store.physical_min)
        return self._store.log_bytes(start, physical_end - start) if start < physical_end else b""

    # The log.

    def _take(self, pieces: list[LogPiece]) -> None:
        now_ms = self._now_ms()
        for piece in pieces:
            if not self._state.received(piece.physical_offset, len(piece.data), now_ms):
                raise RemoteProtocolError("mismatch", self._state.problem)
            if self._master_end is not None:
                self._master_end = max(self._master_end, piece.physical_offset + len(piece.data))
        before = self._store.physical_end
        self._write(pieces)
        if len(self._held) > _HELD_BYTES_MAX:
            raise RemoteProtocolError("held", f"{len(self._held)} bytes are no whole record")
        if self._store.physical_end > before:
            self._state.appended()
            self._report()
            self._on_appended()

    def _write(self, pieces: list[LogPiece]) -> None:
        """Write the whole records that are here now, and keep the rest of the last one."""
        if len(pieces) == 1:
            offset, data = pieces[0]
            if self._held and len(data) >= _LARGE_BYTES:
                # Only the record that was cut is put together, not all that follows it.
                missing = min(self._missing_bytes(), len(data))
                self._held += data[:missing]
                offset, data = offset + missing, data[missing:]
                self._write_held(offset)
            if not self._held:
                # Written from where it was received.
                self._held += data[self._append(offset, data) :]
                return
            pieces = [LogPiece(offset, data)]
        if pieces:
            for piece in pieces:
                self._held += piece.data
            self._write_held(pieces[-1].physical_offset + len(pieces[-1].data))

    def _missing_bytes(self) -> int:
        """How many bytes the record lacks whose beginning is held; 0 if that is not known."""
        held = self._held
        size = int.from_bytes(held[:_SIZE_BYTES], "big") if len(held) >= _SIZE_BYTES else 0
        return max(size - len(held), 0)

    def _write_held(self, physical_end: int) -> None:
        """Write the whole records of the held bytes, which end at this place in the log."""
        del self._held[: self._append(physical_end - len(self._held), self._held)]

    def _append(self, physical_offset: int, data: bytearray | memoryview) -> int:
        """Write the whole records in these bytes; returns how many bytes they have."""
        if not data:
            return 0
        try:
            # Received bytes stay in their buffer; held bytes move as more of them come.
            is_kept = data is not self._held
            return self._store.append_raw(physical_offset, data, is_kept=is_kept)
        except RawBytesRefused as error:
            self._state.diverged(error.reason, str(error))
            raise RemoteProtocolError("diverged", str(error)) from error
        except StoreError as error:
            # A full or failing disk: the bytes are asked for again once it takes them.
            raise RemoteProtocolError("store", str(error)) from error

    def _report(self) -> None:
        physical_end = self._state.due_report(self._store.kept_end, self._now_ms())
        if physical_end is not None and self._speech is not None:
            self._speech.report(physical_end)

    def _refused(self, link: Link, error: RemoteProtocolError) -> None:
        is_proven = isinstance(error, MasterRefused) and error.is_proven
        if is_proven and error.reason in _DIVERGED_REASONS:
            self._state.diverged(error.reason, str(error))
        self._state.fault(error.reason, str(error))
        if self._state.phase is Phase.DIVERGED:
            text = str(error)
            _log.error(
                "this slave has diverged from its master and writes nothing: %s; to rebuild it, "
                "stop it, run `%s` and start it again",
                text,
                self._rebuild_command,
            )
        else:
            _log.warning("the link to the master ends (%s): %s", error.reason, str(error))
        link.close(error.reason)

    def _disconnect(self, reason: str) -> None:
        if self._link is not None:
            self._link.close(reason)
