"""One link between two members of a group: the handshake of links, a word of each, then messages.

The member that dials takes the slave's part in the handshake. Behind it the two exchange
``MemberHello``: the acceptor's comes with its ``WELCOME``, the dialer's is the first frame after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from contrail.errors import RemoteProtocolError
from contrail.protocol.group_frames import (
    GROUP_FRAME_BYTES_MAX,
    Decoded,
    MemberHello,
    Ping,
    agree,
    decode,
    encode,
)
from contrail.protocol.group_messages import Fetch, Fetched, Message
from contrail.protocol.handshake import Agreement, Introduction, MasterHandshake, SlaveHandshake
from contrail.protocol.link_frames import (
    GREETING_BYTES_MAX,
    PREFACE,
    Kind,
    LinkReader,
    LinkWriter,
    Seal,
)
from contrail.wire.cluster_port import Link

_TEXT_CHARS_MAX = 1000


class MemberRefused(RemoteProtocolError):
    """The other member ended the link and said why."""


class MemberLink:
    """Turns a link's bytes into messages and back; ``peer`` is known once the link is open."""

    def __init__(
        self, link: Link, own: Introduction, secret: bytes, hello: MemberHello, *, is_dialer: bool
    ) -> None:
        self.link = link
        self.peer: MemberHello | None = None
        self.heard_ms = 0
        self.features: frozenset[str] = frozenset()
        self._hello = hello
        self._is_dialer = is_dialer
        self._reader = LinkReader(frame_bytes_max=GREETING_BYTES_MAX)
        self._writer = LinkWriter()
        self._agreement: Agreement | None = None
        self._preface = b"" if is_dialer else PREFACE
        self._slave: SlaveHandshake | None = None
        self._master: MasterHandshake | None = None
        if is_dialer:
            self._slave = SlaveHandshake(own, secret, channel=link.channel)
            link.send([PREFACE, *self._writer.frame(Kind.HELLO, self._slave.hello)])
        else:
            self._master = MasterHandshake(own, secret, channel=link.channel)

    @property
    def is_open(self) -> bool:
        """Whether both have proved the secret and said who they are."""
        return self.peer is not None

    def feed(self, data: bytes) -> Iterator[Decoded | MemberHello]:
        """The messages that ``data`` completes; the peer's word about itself comes first.

        Raises:
            RemoteProtocolError: the peer is no member of this group, or broke the protocol.
        """
        if self._preface:
            if not self._preface.startswith(data[: len(self._preface)]):
                raise RemoteProtocolError("stranger", "the peer speaks no language of members")
            taken = min(len(data), len(self._preface))
            self._preface, data = self._preface[taken:], data[taken:]
        self._reader.feed(data)
        while (found := self._reader.take()) is not None:
            kind, payload = found
            if kind is Kind.REFUSED:
                raise _refusal(payload)
            if self.peer is not None:
                yield decode(kind, payload)
            elif (hello := self._greeted(kind, payload)) is not None:
                self.features = agree(self._hello, hello).features
                self._reader.frame_bytes_max = GROUP_FRAME_BYTES_MAX
                self.peer = hello
                yield hello

    def _greeted(self, kind: Kind, payload: memoryview) -> MemberHello | None:
        """Take one step of the handshake; its last one brings the peer's word."""
        slave, master = self._slave, self._master
        if slave is not None and kind is Kind.ANSWER and self._agreement is None:
            proof, agreement = slave.answered(bytes(payload))
            self.link.send(self._writer.frame(Kind.PROOF, proof))
            self._agreed(agreement)
        elif slave is not None and kind is Kind.WELCOME and self._agreement is not None:
            self.link.send(self._writer.frame(Kind.MEMBER, self._hello.encode()))
            return self._word_of(self._agreement, payload)
        elif master is not None and kind is Kind.HELLO and self._agreement is None:
            self.link.send(self._writer.frame(Kind.ANSWER, master.greeted(bytes(payload))))
        elif master is not None and kind is Kind.PROOF and self._agreement is None:
            self._agreed(master.proved(bytes(payload)))
            self.link.send(self._writer.frame(Kind.WELCOME, self._hello.encode()))
        elif master is not None and kind is Kind.MEMBER and self._agreement is not None:
            return self._word_of(self._agreement, payload)
        else:
            raise RemoteProtocolError("handshake", f"a frame {kind.name} out of turn")
        return None

    def _agreed(self, agreement: Agreement) -> None:
        self._agreement = agreement
        if agreement.is_sealed:
            self._writer.seal = Seal(agreement.sending_key)
            self._reader.seal = Seal(agreement.receiving_key)

    def _word_of(self, agreement: Agreement, payload: memoryview) -> MemberHello:
        hello = MemberHello.decode(payload)
        if hello.self_id != agreement.peer.member:
            raise RemoteProtocolError(
                "member", f"{agreement.peer.member} says that it is {hello.self_id}"
            )
        return hello

    def send(
        self,
        message: Message | Ping | Fetch | Fetched,
        data: Sequence[bytes | memoryview] = (),
        *,
        names_voters: bool = False,
    ) -> None:
        """Send a message; ``data`` are the log's bytes of an ``Append``, which leave uncopied."""
        kind, payload = encode(message, names_voters=names_voters)
        self.link.send(self._writer.frame(kind, payload, *data))

    def refuse(self, reason: str, text: str) -> None:
        """End the link and tell the peer why."""
        told = json.dumps({"reason": reason, "text": text}).encode()
        self.link.close(reason, last=self._writer.frame(Kind.REFUSED, told))


def _refusal(payload: memoryview) -> MemberRefused:
    try:
        told: Any = json.loads(bytes(payload[:GREETING_BYTES_MAX]))
        reason, text = str(told["reason"]), str(told["text"])
    except (ValueError, KeyError, TypeError, RecursionError):
        reason, text = "refused", "no reason given"
    readable = "".join(one if one.isprintable() else "?" for one in text[:_TEXT_CHARS_MAX])
    return MemberRefused(reason if reason.isidentifier() else "refused", readable)
