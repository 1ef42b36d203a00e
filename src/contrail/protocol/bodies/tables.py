"""Two simple bodies: a table of texts and a list of topics."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from contrail.protocol.json_style import body_errors, decode_body, encode_body


@dataclass(frozen=True, slots=True)
class KVTable:
    """Texts by name."""

    table: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_body({"table": self.table})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ``RequestRejected`` for a body that is no such table."""
        what = "a KVTable"
        fields = decode_body(body, what, is_table=True)
        with body_errors(what):
            return cls(fields.texts("table"))


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topic names, and the address of a broker if the request was for system topics."""

    topics: frozenset[str] = frozenset()
    broker_address: str | None = None

    @classmethod
    def of(cls, topics: Iterable[str], broker_address: str | None = None) -> Self:
        return cls(frozenset(topics), broker_address)

    def encode(self) -> bytes:
        return encode_body({"brokerAddr": self.broker_address, "topicList": self.topics})

    @staticmethod
    def encoding(topics: Iterable[str]) -> Generator[None, None, bytes]:
        """The body of a list of these topics in this order; a step a topic."""
        texts: list[bytes] = []
        for topic in topics:
            texts.append(encode_body(topic))
            yield
        head, _, tail = TopicList().encode().rpartition(b"[]")
        return b"%b[%b]%b" % (head, b",".join(texts), tail)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ``RequestRejected`` for a body that is no such list."""
        what = "a TopicList"
        fields = decode_body(body, what, is_table=True)
        with body_errors(what):
            topics = frozenset(str(topic) for topic in fields.array("topicList"))
            return cls(topics, fields.text("brokerAddr", "") or None)
