"""A broker's topics in its registration with a NameServer, in both forms.

The plain form is JSON. The compressed form is a zlib stream of:

    ==============================  ==========================================================
    ``length(4) text``              the data version as JSON
    ``count(4)``                    number of topics, then for each of them
    ``length(4) text``              ``name read write perm FILTER_TYPE {attributes}``
    ``length(4) text``              the filter servers as a JSON array
    ``count(4) (length(4) text)*``  queue mappings as JSON; absent below version 413
    ==============================  ==========================================================

The compressed form does not carry a topic's system flag and its order mark.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import NoReturn, Self

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError, Fields, loads, whole_number
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.routes import TopicQueueMapping
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ANNOUNCED_VERSION
from contrail.protocol.json_style import body_errors, decode_body, encode_body

INFLATED_BYTES_MAX = 64 << 20
INFLATE_RATIO_MAX = 200

# From V3_0_11 on the topics come with filter servers; before, the body was the topics alone.
_FULL_BODY_VERSION = 37
# From V5_0_0 on a compressed body ends with the queue mappings.
_MAPPINGS_VERSION = 413

_WHAT = "a RegisterBrokerBody"
_I32 = Struct(">i")


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """A broker's topics and their version; ``mappings`` are the mappings of static topics."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    filter_servers: tuple[str, ...] = ()
    mappings: Mapping[str, TopicQueueMapping] = field(default_factory=dict)
    mapping_version: DataVersion = field(default_factory=DataVersion)

    def encode(self, *, compressed: bool = False) -> bytes:
        return self._encode_compressed() if compressed else self._encode_plain()

    @classmethod
    def decode(
        cls, body: bytes, *, compressed: bool = False, version: int = ANNOUNCED_VERSION
    ) -> Self:
        """The registration in ``body``, sent by a broker of this version; empty without a body.

        Raises:
            RequestRejected: the body is malformed, or inflates beyond its bounds.
        """
        if not body:
            return cls()
        if version < _FULL_BODY_VERSION:
            fields = decode_body(body, _WHAT, is_table=True)
            with body_errors(_WHAT):
                return cls._from_wrapper(fields, ())
        return cls._decode_compressed(body, version) if compressed else cls._decode_plain(body)

    def _encode_plain(self) -> bytes:
        wrapper = {
            "dataVersion": self.data_version.to_fields(),
            "mappingDataVersion": self.mapping_version.to_fields(),
            "topicConfigTable": {name: topic.to_fields() for name, topic in self.topics.items()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {
                name: mapping.to_fields() for name, mapping in self.mappings.items()
            },
        }
        return encode_body(
            {"filterServerList": self.filter_servers, "topicConfigSerializeWrapper": wrapper}
        )

    @classmethod
    def _decode_plain(cls, body: bytes) -> Self:
        fields = decode_body(body, _WHAT, is_table=True)
        with body_errors(_WHAT):
            wrapper = fields.child("topicConfigSerializeWrapper") or Fields({}, _WHAT)
            servers = tuple(str(item) for item in fields.array("filterServerList"))
            return cls._from_wrapper(wrapper, servers)

    @classmethod
    def _from_wrapper(cls, wrapper: Fields, filter_servers: tuple[str, ...]) -> Self:
        topics = wrapper.children("topicConfigTable")
        mappings = wrapper.children("topicQueueMappingInfoMap")
        return cls(
            topics={name: TopicConfig.from_fields(child, name) for name, child in topics.items()},
            data_version=_data_version(wrapper, "dataVersion"),
            filter_servers=filter_servers,
            mappings={name: TopicQueueMapping.from_fields(m) for name, m in mappings.items()},
            mapping_version=_data_version(wrapper, "mappingDataVersion"),
        )

    def _encode_compressed(self) -> bytes:
        pieces = [_sized(encode_body(self.data_version.to_fields())), _I32.pack(len(self.topics))]
        pieces += [_sized(_topic_text(topic)) for topic in self.topics.values()]
        pieces.append(_sized(encode_body(self.filter_servers)))
        pieces.append(_I32.pack(len(self.mappings)))
        pieces += [_sized(encode_body(m.to_fields())) for m in self.mappings.values()]
        return zlib.compress(b"".join(pieces), level=9)

    @classmethod
    def _decode_compressed(cls, body: bytes, version: int) -> Self:
        sections = _Sections(_inflated(body))
        with body_errors(_WHAT):
            data_version = DataVersion.from_fields(Fields(loads(sections.take()), "dataVersion"))
            topics = [_parsed_topic(text) for text in sections.take_counted()]
            servers = loads(sections.take())
            mappings = sections.take_counted() if version >= _MAPPINGS_VERSION else ()
            found = [TopicQueueMapping.from_fields(Fields(loads(m), "mapping")) for m in mappings]
        return cls(
            topics={topic.topic: topic for topic in topics},
            data_version=data_version,
            filter_servers=tuple(str(s) for s in servers) if isinstance(servers, list) else (),
            mappings={mapping.topic: mapping for mapping in found},
        )


def body_crc32(body: bytes) -> int:
    """The checksum in the header of a registration: 31 bits, since Java's int is signed."""
    return zlib.crc32(body) & 0x7FFF_FFFF


def _data_version(fields: Fields, name: str) -> DataVersion:
    child = fields.child(name)
    return DataVersion() if child is None else DataVersion.from_fields(child)


def _topic_text(topic: TopicConfig) -> bytes:
    attributes = encode_body(topic.attributes).decode()
    return (
        f"{topic.topic} {topic.read_queue_count} {topic.write_queue_count} {int(topic.perm)} "
        f"{topic.filter_type} {attributes}"
    ).encode()


def _parsed_topic(text: bytes) -> TopicConfig:
    pieces = text.decode("utf-8", "replace").split(" ", 5)
    if len(pieces) < 5:
        raise FastJsonError(f"a topic has {len(pieces)} of its 5 settings: {text[:80]!r}")
    name, read_count, write_count, perm, filter_type = pieces[:5]
    attributes = loads(pieces[5]) if len(pieces) == 6 and pieces[5] else None
    return TopicConfig(
        topic=name,
        read_queue_count=whole_number(read_count, f"{name}.readQueueNums"),
        write_queue_count=whole_number(write_count, f"{name}.writeQueueNums"),
        perm=whole_number(perm, f"{name}.perm"),
        filter_type=filter_type,
        attributes=Fields({"attributes": attributes}, name).texts("attributes"),
    )


def _sized(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _inflated(body: bytes) -> bytes:
    """Inflates within the bounds of memory, whatever lengths the stream claims."""
    bytes_max = min(INFLATED_BYTES_MAX, INFLATE_RATIO_MAX * len(body))
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(body, bytes_max + 1)
    except zlib.error as error:
        _refuse(f"the compressed body does not inflate: {error}", error)
    if len(data) > bytes_max:
        _refuse(f"the compressed body of {len(body)} bytes inflates to over {bytes_max}")
    if not inflate.eof:
        _refuse("the compressed body is cut short")
    return data


class _Sections:
    """Walks the length-prefixed texts of an inflated body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self) -> bytes:
        byte_count = self._number()
        end = self._position + byte_count
        if byte_count < 0 or end > len(self._data):
            _refuse(f"a section of {byte_count} bytes reaches past the end of the body")
        section = self._data[self._position : end]
        self._position = end
        return section

    def take_counted(self) -> Iterator[bytes]:
        for _ in range(self._number()):
            yield self.take()

    def _number(self) -> int:
        end = self._position + _I32.size
        if end > len(self._data):
            _refuse("the inflated body is cut short")
        (value,) = _I32.unpack_from(self._data, self._position)
        self._position = end
        return int(value)


def _refuse(problem: str, cause: Exception | None = None) -> NoReturn:
    raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"{_WHAT}: {problem}") from cause
