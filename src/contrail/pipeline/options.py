"""The options of ``format("rocketmq")``: their names, meanings and contradictions.

Spark passes options with lower-cased names, so names are matched without regard to case. The
settings made from them are plain values that Spark sends to executors.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from hashlib import blake2s
from typing import Any, Self

from contrail.errors import OptionInvalid
from contrail.model.duration import duration_ms
from contrail.pipeline.body_settings import BodyFormat, BodySettings
from contrail.protocol.signing import Credentials

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

# name -> default as text; "" for no default.
CLUSTER_OPTIONS: Mapping[str, str] = {
    "namesrvAddr": "",
    "tls.enable": "false",
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": "",
    "tls.client.certPath": "",
    "tls.client.keyPath": "",
    "tls.client.keyPassword": "",
    "accessKey": "",
    "secretKey": "",
}
SOURCE_OPTIONS: Mapping[str, str] = {
    "subscribe": "",
    "subscribePattern": "",
    "assign": "",
    "tags": "",
    "sqlFilter": "",
    "startingOffsets": "",
    "startingTimestamp": "",
    "startingOffsetsByTimestamp": "",
    "startingOffsetsByTimestampStrategy": "error",
    "endingOffsets": "latest",
    "endingTimestamp": "",
    "endingOffsetsByTimestamp": "",
    "maxOffsetsPerTrigger": "",
    "maxBytesPerTrigger": "",
    "minOffsetsPerTrigger": "",
    "maxTriggerDelay": "15m",
    "minPartitions": "",
    "maxRecordsPerPartition": "",
    "failOnDataLoss": "true",
    "failOnDecodeError": "false",
    "includeProperties": "false",
    "rawBody": "false",
    "pushdown": "false",
    "consumerGroup": "",
    "groupIdPrefix": "",
    "pullTimeoutMs": "10000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "1000",
    "storePath": "",
    "segmentBytes": "",
    "internalTopics": "false",
    "physicalOrder": "false",
    "bodyFormat": "",
    "bodySchema": "",
    "bodyMessage": "",
    "badBodies": "column",
}
# Those of typed bodies, all but the format.
BODY_OPTIONS = ("bodySchema", "bodyMessage", "badBodies")
SINK_OPTIONS: Mapping[str, str] = {
    "topic": "",
    "producerGroup": "spark-rocketmq-sink",
    "sendTimeoutMs": "10000",
    "sendBatchBytes": "1048576",
    "idempotence": "",
    "dedupeBy": "position",
    "sinkId": "",
    "writeId": "",
}
_GROUP_PREFIX = "group:"
# Other accepted spellings.
ALIASES: Mapping[str, str] = {"includeHeaders": "includeProperties"}

# Names of other connectors' options, and their names here; the first match counts.
_OTHER_NAMES = {
    "kafka.bootstrap.servers": ("namesrvAddr",),
    "kafka.group.id": ("consumerGroup", "producerGroup"),
    "kafkaconsumer.polltimeoutms": ("pullTimeoutMs",),
    "path": ("storePath", "topic"),
}
# Spark leaves its own options among those of a stream's sink.
_SPARK_OPTIONS = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)
_BATCH_ONLY = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "pushdown",
    "storePath",
)
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "consumerGroup",
    "groupIdPrefix",
)
_STORE_ONLY = ("segmentBytes", "physicalOrder")
_BROKER_ONLY = ("sqlFilter", "pushdown", "pullTimeoutMs")


class PlaceKind(StrEnum):
    """The way in which the options give a place in every queue."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a read begins or ends, for every queue."""

    kind: PlaceKind
    timestamp_ms: int = 0
    # (topic, broker name, queue id) -> a queue offset, -1, -2, or a time in milliseconds.
    by_queue: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    # The consumer group whose offsets are meant.
    group: str = ""
    # The option that gave it, for error texts.
    option: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The address, timeouts and TLS of a cluster."""

    namesrv_addr: str
    tls_enable: bool = False
    tls_auth_server: bool = True
    tls_trust_cert_path: str | None = None
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    # Without them the environment of each process says who signs.
    credentials: Credentials | None = None

    def tls(self) -> bool | ssl.SSLContext:
        """The ``tls=`` argument of clients; made in each process, since it cannot be pickled."""
        if not self.tls_enable:
            return False
        context = ssl.create_default_context(cafile=self.tls_trust_cert_path)
        if not self.tls_auth_server:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert_path is not None:
            context.load_cert_chain(self.tls_cert_path, self.tls_key_path, self.tls_key_password)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings of a read: topics or queues, first and last offsets, filters, limits."""

    cluster: ClusterSettings
    streaming: bool
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    # topic -> ((broker name, queue id), ...)
    assigned: Mapping[str, tuple[tuple[str, int], ...]] | None = None
    tags: str | None = None
    sql_filter: str | None = None
    starting: Place = Place(PlaceKind.EARLIEST)
    ending: Place = Place(PlaceKind.LATEST)
    latest_if_none_is_so_new: bool = False
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fail_on_decode_error: bool = False
    include_properties: bool = False
    raw_body: bool = False
    pushdown: bool = False
    consumer_group: str | None = None
    group_id_prefix: str | None = None
    pull_timeout_ms: int = 10_000
    fetch_retry_count: int = 3
    fetch_retry_interval_ms: int = 1_000
    store_path: str | None = None
    segment_bytes: int | None = None
    internal_topics: bool = False
    physical_order: bool = False
    # The schema of bodies, which gives typed columns.
    body: BodySettings | None = None

    @property
    def group(self) -> str | None:
        """The group whose consumer offsets show a stream's progress; None if it is not published.

        A group made from a prefix is the same for every run with these topics, so that restarts do
        not make more groups.
        """
        if self.consumer_group is not None or self.group_id_prefix is None:
            return self.consumer_group
        asked = repr((self.topics, self.topic_pattern, self.assigned, self.tags, self.sql_filter))
        return f"{self.group_id_prefix}-{blake2s(asked.encode(), digest_size=4).hexdigest()}"

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool) -> Self:
        """Settings from the options of a user.

        Raises:
            OptionInvalid: an option is unknown, malformed or contradicts another.
        """
        given = _Given(options, {**CLUSTER_OPTIONS, **SOURCE_OPTIONS}, other=SINK_OPTIONS)
        _check_source(given, streaming=streaming)
        pattern = given.text("subscribePattern")
        if pattern is not None:
            _check_pattern(pattern)
        starting, ending = _starting(given, streaming=streaming), _ending(given)
        _check_order(starting, ending)
        return cls(
            cluster=_cluster_settings(given),
            streaming=streaming,
            topics=_topics(given),
            topic_pattern=pattern,
            assigned=_assigned(given),
            tags=given.text("tags"),
            sql_filter=given.text("sqlFilter"),
            starting=starting,
            ending=ending,
            latest_if_none_is_so_new=given.choice(
                "startingOffsetsByTimestampStrategy", "error", "latest"
            )
            == "latest",
            max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
            max_bytes_per_trigger=given.number("maxBytesPerTrigger"),
            min_offsets_per_trigger=given.number("minOffsetsPerTrigger"),
            max_trigger_delay_ms=given.duration_ms("maxTriggerDelay"),
            min_partitions=given.number("minPartitions"),
            max_records_per_partition=given.number("maxRecordsPerPartition"),
            fail_on_data_loss=given.flag("failOnDataLoss"),
            fail_on_decode_error=given.flag("failOnDecodeError"),
            include_properties=given.flag("includeProperties"),
            raw_body=given.flag("rawBody"),
            pushdown=given.flag("pushdown"),
            consumer_group=given.text("consumerGroup"),
            group_id_prefix=given.text("groupIdPrefix"),
            pull_timeout_ms=given.needed_number("pullTimeoutMs"),
            fetch_retry_count=given.needed_number("fetchOffset.numRetries", least=0),
            fetch_retry_interval_ms=given.needed_number("fetchOffset.retryIntervalMs", least=0),
            store_path=given.text("storePath"),
            segment_bytes=given.number("segmentBytes"),
            internal_topics=given.flag("internalTopics"),
            physical_order=given.flag("physicalOrder"),
            body=_body(given),
        )


class Idempotence(StrEnum):
    """The sink's guarantee about repeated rows."""

    NONE = "none"
    DEDUPE = "dedupe"
    TRANSACTIONAL = "transactional"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The settings of a write: its cluster and topic, and its guarantee about repeated rows."""

    cluster: ClusterSettings
    topic: str | None = None
    producer_group: str = SINK_OPTIONS["producerGroup"]
    send_timeout_ms: int = 10_000
    send_batch_bytes: int = 1 << 20
    # None: the sink chooses by the abilities of the cluster's brokers.
    idempotence: Idempotence | None = None
    dedupe_by_keys: bool = False
    sink_id: str | None = None
    write_id: str | None = None
    async_progress: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Settings from the options of a user.

        Raises:
            OptionInvalid: an option is unknown, malformed or contradicts another.
        """
        given = _Given(options, {**CLUSTER_OPTIONS, **SINK_OPTIONS}, other=SOURCE_OPTIONS)
        _check_sink(given)
        mode = given.choice("idempotence", *Idempotence)
        return cls(
            cluster=_cluster_settings(given),
            topic=given.text("topic"),
            producer_group=given.needed_text("producerGroup"),
            send_timeout_ms=given.needed_number("sendTimeoutMs"),
            send_batch_bytes=given.needed_number("sendBatchBytes"),
            idempotence=Idempotence(mode) if mode else None,
            dedupe_by_keys=given.choice("dedupeBy", "position", "keys") == "keys",
            sink_id=given.text("sinkId"),
            write_id=given.text("writeId"),
            async_progress=given.async_progress,
        )


def body_settings(options: Mapping[str, str]) -> BodySettings | None:
    """How a read's options say that bodies are read; None without ``bodyFormat``."""
    table = {**CLUSTER_OPTIONS, **SOURCE_OPTIONS}
    return _body(_Given(options, table, other=SINK_OPTIONS))


def _body(given: _Given) -> BodySettings | None:
    found = given.choice("bodyFormat", *BodyFormat)
    if found is None:
        for name in BODY_OPTIONS:
            if given.has(name):
                raise OptionInvalid(f"{name}: it needs bodyFormat: give json, avro or protobuf")
        return None
    if given.flag("rawBody"):
        raise OptionInvalid("rawBody: bodyFormat reads bodies as they were sent: leave it out")
    if found != BodyFormat.PROTOBUF and given.has("bodyMessage"):
        raise OptionInvalid("bodyMessage: it is for bodyFormat=protobuf: leave it out")
    return BodySettings(
        format=BodyFormat(found),
        schema=given.needed_text("bodySchema"),
        message=given.text("bodyMessage"),
        refuses_bad=given.choice("badBodies", "column", "refuse") == "refuse",
    )


def wants_properties(options: Mapping[str, str]) -> bool:
    """Whether the default schema has the property map; refuses unknown options."""
    table = {**CLUSTER_OPTIONS, **SOURCE_OPTIONS}
    return _Given(options, table, other=SINK_OPTIONS).flag("includeProperties")


class _Given:
    """The given options, under the names of the table."""

    def __init__(
        self, options: Mapping[str, str], table: Mapping[str, str], *, other: Mapping[str, str]
    ) -> None:
        self._table = table
        self._values: dict[str, str] = {}
        lowered = {name.lower(): name for name in table}
        lowered |= {alias.lower(): name for alias, name in ALIASES.items() if name in table}
        elsewhere = {name.lower(): name for name in other}
        for key, value in options.items():
            name = lowered.get(key.lower())
            if name is None:
                _require_known(key, lowered, elsewhere)
                continue
            if self._values.setdefault(name, str(value).strip()) != str(value).strip():
                raise OptionInvalid(f"{name}: it is given twice, with different values: keep one")
        self.async_progress = (
            str(options.get("asyncProgressTrackingEnabled", "")).lower() == "true"
            or str(options.get("asyncprogresstrackingenabled", "")).lower() == "true"
        )

    def has(self, name: str) -> bool:
        """Whether an option is given with another value than its default."""
        return name in self._table and self.text(name) != (self._table[name] or None)

    def text(self, name: str) -> str | None:
        return self._values.get(name) or self._table[name] or None

    def needed_text(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            raise OptionInvalid(f"{name}: it is missing: give .option({name!r}, ...)")
        return text

    def number(self, name: str, *, least: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[+-]?\d+", text):
            raise OptionInvalid(f"{name}={text!r}: give a whole number")
        if int(text) < least:
            raise OptionInvalid(f"{name}={text}: it must be {least} or more")
        return int(text)

    def needed_number(self, name: str, *, least: int = 1) -> int:
        number = self.number(name, least=least)
        assert number is not None, name
        return number

    def flag(self, name: str) -> bool:
        return self.choice(name, "true", "false") == "true"

    def choice(self, name: str, *choices: str) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in choices:
            raise OptionInvalid(f"{name}={text!r}: give {' or '.join(choices)}")
        return text.lower() if text is not None else None

    def duration_ms(self, name: str) -> int:
        text = self.needed_text(name)
        found_ms = duration_ms(text)
        if found_ms is None:
            raise OptionInvalid(f"{name}={text!r}: give a time such as '30s', '15m' or '500ms'")
        return found_ms

    def json_of(self, name: str) -> dict[str, Any] | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise OptionInvalid(f"{name}={text!r}: it is not JSON: {error}") from error
        if not isinstance(value, dict) or not value:
            raise OptionInvalid(f'{name}={text!r}: give JSON such as {{"topic": ...}}')
        return value


def _require_known(key: str, lowered: Mapping[str, str], elsewhere: Mapping[str, str]) -> None:
    """Raises for an unknown option, and suggests the one that was probably meant."""
    plain = key.lower()
    if plain in _SPARK_OPTIONS:
        return
    if plain in elsewhere:
        side = "sink" if elsewhere[plain] in SINK_OPTIONS else "source"
        raise OptionInvalid(f"{elsewhere[plain]}: it is an option of the {side} only: leave it out")
    names = [name for name in _OTHER_NAMES.get(plain, ()) if name in lowered.values()]
    names += [lowered[near] for near in get_close_matches(plain, lowered, 1)]
    there = ", ".join(sorted(set(lowered.values())))
    fix = f"did you mean {names[0]}?" if names else f"there are {there}"
    raise OptionInvalid(f"{key}: there is no such option of format('rocketmq'): {fix}")


def _check_source(given: _Given, *, streaming: bool) -> None:
    if streaming:
        _refuse(given, _BATCH_ONLY, "a stream cannot have it: use it with spark.read")
    else:
        _refuse(given, _STREAM_ONLY, "only a stream can have it: use it with spark.readStream")
    offline = given.has("storePath")
    if offline:
        _refuse(given, CLUSTER_OPTIONS, "storePath reads files, not a cluster: give one of the two")
        _refuse(given, _BROKER_ONLY, "it needs a broker, and storePath reads without one")
    else:
        _refuse(given, _STORE_ONLY, "it is for storePath only: leave it out")
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.has(name)]
    if len(ways) > 1:
        raise OptionInvalid(f"{' and '.join(ways)}: they exclude each other: give one of them")
    if offline and (given.text("startingOffsets") or "").lower().startswith(_GROUP_PREFIX):
        raise OptionInvalid("startingOffsets: a store folder is read without groups: give offsets")
    if not ways and not offline:
        raise OptionInvalid("subscribe: it is missing: give subscribe, subscribePattern or assign")
    _exclude(given, "tags", "sqlFilter")
    _exclude(given, "consumerGroup", "groupIdPrefix")
    _check_trigger(given)


def _check_trigger(given: _Given) -> None:
    least, most = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionInvalid(
            f"minOffsetsPerTrigger={least}: it must not be above maxOffsetsPerTrigger={most}"
        )
    if given.has("maxTriggerDelay") and least is None:
        raise OptionInvalid("maxTriggerDelay: it needs minOffsetsPerTrigger beside it")


def _check_sink(given: _Given) -> None:
    mode = given.choice("idempotence", *Idempotence)
    if mode == Idempotence.NONE:
        _refuse(given, ("sinkId", "writeId"), "idempotence=none remembers nothing: leave it out")
    if mode not in (None, Idempotence.DEDUPE):
        _refuse(given, ("dedupeBy",), f"it is for idempotence=dedupe, not {mode}: leave it out")
    if given.async_progress and mode != Idempotence.NONE:
        raise OptionInvalid(
            "asyncProgressTrackingEnabled=true: a replayed batch may then have other rows, which "
            "idempotence cannot tell apart: leave it out, or set idempotence=none"
        )


def _refuse(given: _Given, names: Mapping[str, str] | tuple[str, ...], reason: str) -> None:
    for name in names:
        if given.has(name):
            raise OptionInvalid(f"{name}: {reason}")


def _exclude(given: _Given, first: str, second: str) -> None:
    if given.has(first) and given.has(second):
        raise OptionInvalid(f"{first} and {second}: they exclude each other: give one of them")


def _cluster_settings(given: _Given) -> ClusterSettings:
    if given.has("storePath"):
        return ClusterSettings(namesrv_addr="")
    key, certificate = given.text("tls.client.keyPath"), given.text("tls.client.certPath")
    if (key is None) != (certificate is None):
        raise OptionInvalid("tls.client.certPath and tls.client.keyPath: give both or neither")
    access_key, secret_key = given.text("accessKey"), given.text("secretKey")
    if (access_key is None) != (secret_key is None):
        raise OptionInvalid("accessKey and secretKey: give both or neither")
    return ClusterSettings(
        namesrv_addr=given.needed_text("namesrvAddr").replace(",", ";"),
        tls_enable=given.flag("tls.enable"),
        tls_auth_server=given.flag("tls.client.authServer"),
        tls_trust_cert_path=given.text("tls.client.trustCertPath"),
        tls_cert_path=certificate,
        tls_key_path=key,
        tls_key_password=given.text("tls.client.keyPassword"),
        credentials=Credentials(access_key, secret_key) if access_key and secret_key else None,
    )


def _topics(given: _Given) -> tuple[str, ...]:
    text = given.text("subscribe")
    if text is None:
        return ()
    topics = tuple(dict.fromkeys(piece.strip() for piece in text.split(",") if piece.strip()))
    if not topics:
        raise OptionInvalid(f"subscribe={text!r}: give topics, separated by commas")
    return topics


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionInvalid(
            f"subscribePattern={pattern!r}: no regular expression: {error}"
        ) from error


def parse_queue(option: str, text: object) -> tuple[str, int]:
    """``"broker-a:3"`` as a broker's name and a queue's id.

    Raises:
        OptionInvalid: the text has another form.
    """
    broker_name, _, queue_id = str(text).rpartition(":")
    if not broker_name or not queue_id.isdecimal():
        raise OptionInvalid(f"{option}: {text!r} is no queue: write it as 'broker-a:0'")
    return broker_name, int(queue_id)


def _assigned(given: _Given) -> Mapping[str, tuple[tuple[str, int], ...]] | None:
    value = given.json_of("assign")
    if value is None:
        return None
    assigned = {}
    for topic, queues in value.items():
        if not isinstance(queues, list) or not queues:
            raise OptionInvalid(f'assign: give {topic!r} a list of queues, such as ["broker-a:0"]')
        assigned[topic] = tuple(dict.fromkeys(parse_queue("assign", queue) for queue in queues))
    return assigned


def _starting(given: _Given, *, streaming: bool) -> Place:
    default = PlaceKind.LATEST if streaming else PlaceKind.EARLIEST
    place = _place(given, "starting", default)
    if not streaming and _names(place, PlaceKind.LATEST, LATEST_OFFSET):
        raise OptionInvalid(
            f"{place.option}: a batch cannot start at latest (-1): give another place"
        )
    return place


def _ending(given: _Given) -> Place:
    place = _place(given, "ending", PlaceKind.LATEST)
    if _names(place, PlaceKind.EARLIEST, EARLIEST_OFFSET):
        raise OptionInvalid(
            f"{place.option}: a batch cannot end at earliest (-2): give another place"
        )
    return place


def _check_order(starting: Place, ending: Place) -> None:
    """Refuse an end before its start if the options alone show it; other cases are found later."""
    if starting.kind is ending.kind is PlaceKind.TIMESTAMP:
        if ending.timestamp_ms < starting.timestamp_ms:
            raise OptionInvalid(
                f"{ending.option}: {ending.timestamp_ms} is before {starting.option}, "
                f"{starting.timestamp_ms}: give an end that is not before the start"
            )
        return
    if starting.kind is not ending.kind:
        return
    for queue, start in starting.by_queue.items():
        end = ending.by_queue.get(queue, LATEST_OFFSET)
        if 0 <= end < start:
            topic, broker_name, queue_id = queue
            raise OptionInvalid(
                f"{ending.option}: {topic} {broker_name}:{queue_id} would end at {end}, before "
                f"{start}, where {starting.option} begins: give an end that is not before the start"
            )


def _names(place: Place, kind: PlaceKind, mark: int) -> bool:
    marked = place.kind is PlaceKind.OFFSETS and mark in place.by_queue.values()
    return place.kind is kind or marked


def _place(given: _Given, side: str, default: PlaceKind) -> Place:
    """A time for all queues wins, then times by queue, then offsets: as in Kafka's connector."""
    timestamp = given.number(f"{side}Timestamp", least=0)
    if timestamp is not None:
        return Place(PlaceKind.TIMESTAMP, timestamp_ms=timestamp, option=f"{side}Timestamp")
    option = f"{side}OffsetsByTimestamp"
    times = given.json_of(option)
    if times is not None:
        return Place(PlaceKind.TIMESTAMPS, by_queue=_by_queue(option, times, 0), option=option)
    option = f"{side}Offsets"
    text = given.text(option)
    if text is None:
        return Place(default, option=option)
    if text.lower() in (PlaceKind.EARLIEST, PlaceKind.LATEST):
        return Place(PlaceKind(text.lower()), option=option)
    if text.lower().startswith(_GROUP_PREFIX):
        group = text[len(_GROUP_PREFIX) :].strip()
        if side != "starting" or not group:
            raise OptionInvalid(
                f"{option}={text!r}: a read begins where a group stands: give startingOffsets and "
                "the group's name after group:"
            )
        return Place(PlaceKind.GROUP, group=group, option=option)
    offsets = given.json_of(option) or {}
    by_queue = _by_queue(option, offsets, EARLIEST_OFFSET)
    return Place(PlaceKind.OFFSETS, by_queue=by_queue, option=option)


def _by_queue(option: str, value: dict[str, Any], least: int) -> dict[tuple[str, str, int], int]:
    found = {}
    for topic, queues in value.items():
        if not isinstance(queues, dict):
            raise OptionInvalid(f'{option}: give {topic!r} an object such as {{"broker-a:0": 12}}')
        for queue, number in queues.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise OptionInvalid(
                    f"{option}: {topic!r} {queue!r} has {number!r}: give a number from {least} on"
                )
            found[(topic, *parse_queue(option, queue))] = number
    return found
