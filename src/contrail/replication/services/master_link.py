"""A slave's link to its master, in both languages: plain HA, and Contrail's own frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from contrail.errors import RemoteProtocolError
from contrail.protocol.ha_frames import LogPiece, TransferReader, encode_report
from contrail.protocol.handshake import Agreement, Introduction, SlaveHandshake
from contrail.protocol.link_frames import (
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    PREFACE,
    Begin,
    Kind,
    LinkWriter,
    PlacedLinkReader,
    Seal,
    decode_transfer,
)
from contrail.protocol.received_bytes import ReceivedBytes
from contrail.wire.cluster_port import Link

_FACTS_BYTES_MAX = 64 << 10


_TEXT_CHARS_MAX = 1000
# The words of a master without a proof yet; a stranger at its address may say anything.
_GREETING_REASONS = frozenset(
    (
        *("secret", "version", "stranger", "broker_id", "features", "proof", "handshake"),
        *("too_many", "crowded_out", "first_report_late"),
    )
)


class MasterRefused(RemoteProtocolError):
    """The master ended the link and said why; ``reason`` is the master's word.

    ``is_proven`` says whether it had proved the cluster secret before.
    """

    def __init__(self, reason: str, text: str, *, is_proven: bool) -> None:
        is_known = reason in _GREETING_REASONS or (is_proven and reason.isidentifier())
        readable = "".join(one if one.isprintable() else "?" for one in text[:_TEXT_CHARS_MAX])
        super().__init__(reason if is_known else "refused", readable)
        self.is_proven = is_proven


class MasterLink(Protocol):
    """A slave's side of its link, in the language of Contrail or of Apache."""

    def open(self) -> None:
        """Begin to speak; ``is_open`` says when a request may follow."""

    @property
    def is_open(self) -> bool: ...

    def begin(self, begin: Begin) -> None:
        """Ask for the log from an end on."""

    def report(self, physical_end: int) -> None: ...

    @property
    def received(self) -> ReceivedBytes:
        """The memory that what arrives next goes to."""
        ...

    @property
    def wanted_bytes(self) -> int:
        """How many of the unread bytes must fit together."""
        ...

    def take(self) -> list[LogPiece]:
        """The pieces of the log in what was received.

        Raises ``RemoteProtocolError`` if the master broke the protocol or refused us.
        """
        ...


class PlainMasterLink:
    """To an Apache master: fixed layouts, no handshake."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._reader = TransferReader()
        self.received = ReceivedBytes()
        self.wanted_bytes = 0
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def begin(self, begin: Begin) -> None:
        self.report(begin.physical_end)

    def report(self, physical_end: int) -> None:
        self._link.send([encode_report(physical_end)])

    def take(self) -> list[LogPiece]:
        unread = self.received.unread
        self.received.read(len(unread))
        return self._reader.feed(unread)


class SealedMasterLink:
    """To a Contrail master: both prove the cluster secret first."""

    def __init__(self, link: Link, own: Introduction, secret: bytes) -> None:
        self._link = link
        self._handshake = SlaveHandshake(own, secret, channel=link.channel)
        self._reader = PlacedLinkReader(frame_bytes_max=GREETING_BYTES_MAX)
        self._writer = LinkWriter()
        self._agreement: Agreement | None = None
        self.facts: Mapping[str, str] | None = None

    @property
    def is_open(self) -> bool:
        return self.facts is not None

    def open(self) -> None:
        self._link.send([PREFACE, *self._writer.frame(Kind.HELLO, self._handshake.hello)])

    def begin(self, begin: Begin) -> None:
        self._link.send(self._writer.frame(Kind.BEGIN, begin.encode()))

    def report(self, physical_end: int) -> None:
        self._link.send(self._writer.report(physical_end))

    @property
    def received(self) -> ReceivedBytes:
        return self._reader.received

    @property
    def wanted_bytes(self) -> int:
        return self._reader.wanted_bytes

    def take(self) -> list[LogPiece]:
        pieces: list[LogPiece] = []
        while (found := self._reader.take()) is not None:
            self._take(*found, pieces)
        return pieces

    def _take(self, kind: Kind, payload: memoryview, pieces: list[LogPiece]) -> None:
        if kind is Kind.TRANSFER and self.is_open:
            pieces.append(LogPiece(*decode_transfer(payload)))
        elif kind is Kind.REFUSED:
            told = _decode_texts(payload)
            raise MasterRefused(
                told.get("reason", "refused"),
                told.get("text", "no reason given"),
                is_proven=self.is_open,
            )
        elif kind is Kind.ANSWER and self._agreement is None:
            proof, self._agreement = self._handshake.answered(bytes(payload))
            self._link.send(self._writer.frame(Kind.PROOF, proof))
            self._reader.frame_bytes_max = FRAME_BYTES_MAX
            if self._agreement.is_sealed:
                self._writer.seal = Seal(self._agreement.sending_key)
                self._reader.seal = Seal(self._agreement.receiving_key)
        elif kind is Kind.WELCOME and self._agreement is not None and self.facts is None:
            self.facts = _decode_texts(payload)
        else:
            raise RemoteProtocolError("handshake", f"a frame {kind.name} out of turn")


def _decode_texts(payload: memoryview) -> dict[str, str]:
    """A JSON object of texts."""
    if len(payload) > _FACTS_BYTES_MAX:
        raise RemoteProtocolError("handshake", f"facts of {len(payload)} bytes")
    try:
        found: Any = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("handshake", f"no facts: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise RemoteProtocolError("handshake", "facts that are no texts")
    return found
