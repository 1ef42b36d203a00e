"""One slave's link at the master: tells plain HA from Contrail's handshake, and speaks both."""

from __future__ import annotations

import json
from collections.abc import Callable
from zlib import crc32

from contrail.errors import RemoteProtocolError
from contrail.protocol.ha_frames import ReportReader, encode_transfer_header
from contrail.protocol.handshake import (
    MASTER,
    NONCE_BYTES,
    Agreement,
    HandshakeRefused,
    MasterHandshake,
)
from contrail.protocol.link_frames import (
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    PREFACE,
    TRANSFER_BODY_BYTES_MAX,
    Begin,
    Kind,
    LinkReader,
    LinkWriter,
    Seal,
    decode_report,
    lone_report,
)
from contrail.replication.config import HaMasterConfig
from contrail.replication.state.ha_master import SlaveProgress
from contrail.wire.cluster_port import Link, is_listed

# A Contrail slave takes larger frames than Apache's are set to. Bytes that this process copies,
# seals or encrypts hold up the loop for longer than bytes that the system takes from a file.
_BODY_BYTES_MAX = 256 << 10
_FILE_BODY_BYTES_MAX = TRANSFER_BODY_BYTES_MAX
# A slave that lacks more than some pushes' worth catches up: sends go between its smaller shares.
_FOLLOWING_BYTES_MAX = 8 << 20


class SlaveLink:
    """Turns a slave's bytes into reports, and log bytes into frames, as the slave speaks."""

    def __init__(
        self,
        link: Link,
        slave: SlaveProgress,
        config: HaMasterConfig,
        *,
        make_nonce: Callable[[int], bytes],
        facts: Callable[[], dict[str, str]],
        tail: Callable[[int, int], bytes | None],
        on_proved: Callable[[Agreement], None],
    ) -> None:
        self.link = link
        self.slave = slave
        self.number = slave.number
        self.is_plain = True
        self.is_fetching = False
        self._config = config
        self._make_nonce = make_nonce
        self._facts = facts
        self._tail = tail
        self._on_proved = on_proved
        self._first = b""
        self._reports: ReportReader | None = None
        self._reader: LinkReader | None = None
        self._writer = LinkWriter()
        self._handshake: MasterHandshake | None = None
        self._agreement: Agreement | None = None
        # Both have proved the secret, and frames have no seals.
        self._is_open = False

    @property
    def is_admitted(self) -> bool:
        """Whether the peer proved the cluster secret, or is an Apache slave from a listed place."""
        return self._agreement is not None or self._reports is not None

    @property
    def may_push(self) -> bool:
        """Whether the slave asked for the log, and its link takes more of it now."""
        link = self.link
        is_ready = not (link.is_paused or self.is_fetching or link.is_closed)
        return is_ready and self.slave.is_receiving

    @property
    def body_bytes_max(self) -> int:
        if self.is_plain:
            return self._config.limits.transfer_batch_bytes
        return _FILE_BODY_BYTES_MAX if self.takes_files else _BODY_BYTES_MAX

    def turn_bytes_max(self, lacking_bytes: int) -> int:
        """The most bytes for the slave in one turn, so that its catching up delays no send."""
        is_following = lacking_bytes <= _FOLLOWING_BYTES_MAX
        return _FILE_BODY_BYTES_MAX if self.takes_files and is_following else _BODY_BYTES_MAX

    def feed(self, data: bytes) -> int | None:
        """Take bytes of the slave; returns its newest report, if there is one.

        Raises:
            RemoteProtocolError: the slave is no peer of ours, or broke the protocol.
        """
        if self._reports is not None:
            return self._reports.feed(data)
        if self._reader is None:
            self._first += data
            if len(self._first) < len(PREFACE):
                return None
            data, self._first = self._first, b""
            if not data.startswith(PREFACE):
                return self._begin_plain(data)
            self._begin_handshake()
            data = data[len(PREFACE) :]
        assert self._reader is not None
        if self._is_open and self._reader.is_between_frames:
            report = lone_report(data)
            if report is not None:
                return report
        self._reader.feed(data)
        return self._read_frames(self._reader)

    def _begin_plain(self, data: bytes) -> int | None:
        trust = self._config.trust
        if not trust.takes_plain or not is_listed(self.link, trust.networks):
            raise HandshakeRefused(
                "stranger",
                f"{self.link.address} speaks HA without the cluster secret: Apache's slaves are "
                "taken only with contrailHaCompat, from this host or contrailClusterAllowList",
            )
        self._reports = ReportReader()
        return self._reports.feed(data)

    def _begin_handshake(self) -> None:
        trust = self._config.trust
        if trust.secret is None:
            raise HandshakeRefused(
                "stranger", "this master has no contrailClusterSecretFile to prove itself by"
            )
        own = trust.introduction(
            self._config.identity,
            MASTER,
            self._make_nonce(NONCE_BYTES),
            is_protected=self.link.is_encrypted or self.link.is_this_host,
        )
        self.is_plain = False
        self._reader = LinkReader(frame_bytes_max=GREETING_BYTES_MAX)
        self._handshake = MasterHandshake(own, trust.secret, channel=self.link.channel)

    def _read_frames(self, reader: LinkReader) -> int | None:
        report = None
        while (found := reader.take()) is not None:
            taken = self._take(reader, *found)
            report = taken if taken is not None else report
        return report

    def _take(self, reader: LinkReader, kind: Kind, payload: memoryview) -> int | None:
        if self._agreement is not None and kind is Kind.REPORT:
            return decode_report(payload)
        if self._agreement is not None and kind is Kind.BEGIN:
            return self._begin_at(Begin.decode(payload))
        handshake = self._handshake
        if handshake is not None and kind is Kind.HELLO:
            self.link.send(self._writer.frame(Kind.ANSWER, handshake.greeted(bytes(payload))))
        elif handshake is not None and kind is Kind.PROOF:
            self._welcome(reader, handshake.proved(bytes(payload)))
        else:
            raise RemoteProtocolError("handshake", f"a frame {kind.name} out of turn")
        return None

    def _welcome(self, reader: LinkReader, agreement: Agreement) -> None:
        self._handshake, self._agreement = None, agreement
        self._is_open = not agreement.is_sealed
        reader.frame_bytes_max = FRAME_BYTES_MAX
        if agreement.is_sealed:
            self._writer.seal = Seal(agreement.sending_key)
            reader.seal = Seal(agreement.receiving_key)
        self._on_proved(agreement)
        facts = json.dumps(self._facts()).encode()
        self.link.send(self._writer.frame(Kind.WELCOME, facts))

    def _begin_at(self, begin: Begin) -> int:
        """The slave's request, once the end of its log is found to be ours as well."""
        tail = self._tail(begin.physical_end, begin.tail_bytes) if begin.tail_bytes else None
        if tail is not None and crc32(tail) != begin.tail_crc:
            raise RemoteProtocolError(
                "diverged",
                f"the {begin.tail_bytes} bytes before {begin.physical_end} differ from the "
                "master's: this slave has records that the master never had",
            )
        return begin.physical_end

    def transfer(
        self, physical_offset: int, body: memoryview | bytes = b""
    ) -> list[bytes | memoryview]:
        """The parts of a frame with these bytes of the log; without bytes it is a heartbeat."""
        if not self.is_plain:
            return self._writer.transfer(physical_offset, body)
        header = encode_transfer_header(physical_offset, len(body))
        return [header, body] if body else [header]

    @property
    def takes_files(self) -> bool:
        """Whether frames can leave by ``send_file``: large ones, and nothing computed of them."""
        return self._is_open and not self.link.is_encrypted

    def send_file(self, physical_offset: int, body: memoryview, fd: int, position: int) -> None:
        """The frame of ``transfer``, its body taken from the log's file."""
        head = self._writer.transfer_head(physical_offset, len(body))
        self.link.send_file(head, body, fd, position)

    def close(self, reason: str, text: str) -> None:
        """End the link; a Contrail slave is told why."""
        if self.is_plain:
            self.link.close(reason)
            return
        told = json.dumps({"reason": reason, "text": text}).encode()
        self.link.close(reason, last=self._writer.frame(Kind.REFUSED, told))
