"""Pulls that bring records as bytes, many on their way at once, over a connection of their own.

For jobs that read a range of a queue from end to end and have no group: they block instead of
awaiting, and leave the records to a decoder of thousands at once.
"""

from __future__ import annotations

import os
import select
import threading
from collections import defaultdict
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from contrail.client.admin_messages import TOOLS_GROUP
from contrail.client.name_servers import route_missing
from contrail.client.pulling import SUBSCRIPTION_FLAG
from contrail.client.refusals import refused
from contrail.client.settings import ClientSettings
from contrail.client.state.pull_ahead import Ask
from contrail.client.state.routes import MASTER_ID
from contrail.clock import monotonic_ms
from contrail.errors import (
    BrokerUnknown,
    CallFailed,
    ClientError,
    NameServerUnreachable,
    RequestRejected,
)
from contrail.model.record import QUEUE_OFFSET_POSITION
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.bulk_pulls import BULK_FIELD
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request, frame_prefix
from contrail.protocol.json_style import MessageQueue, encode_body
from contrail.protocol.signing import CredentialSource, current, signed_fields
from contrail.wire.blocking_connection import BlockingConnection

_IDLE_PER_ADDRESS_MAX = 4
_ROUTE_AGE_MS_MAX = 2_000
_ROUTES_MAX = 1_000
_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
# Codes of a broker that is starting, stopping or overloaded.
BUSY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
_PREFIX_BYTES = 8
_MARK = "?"
_OPAQUE = b'"opaque":%d,'
_LONG = Struct(">q")
_INT = Struct(">i")


class RawAnswer(NamedTuple):
    """A broker's answer to a pull; ``body`` is records laid end to end."""

    ask: Ask
    code: int
    remark: str
    queue_offset_next: int
    queue_offset_min: int
    queue_offset_max: int
    body: bytes


_Kind = tuple[str, object, object]


def _kind_of(address: str, settings: ClientSettings) -> _Kind:
    """Connections of one kind may stand in for each other."""
    return address, settings.tls, settings.credentials


class IdleConnections:
    """Idle connections of this process; each is taken by one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        self._idle: defaultdict[_Kind, list[BlockingConnection]] = defaultdict(list)

    def take(self, address: str, settings: ClientSettings) -> BlockingConnection:
        """An idle connection, or a new one; raises ``CallFailed`` when none can be made."""
        with self._lock:
            self._leave_to_parent()
            idle = self._idle[_kind_of(address, settings)]
            while idle:
                connection = idle.pop()
                if not _has_news(connection):
                    return connection
                connection.close()
        return BlockingConnection(
            address, tls=settings.tls_context, credentials=settings.credentials
        )

    def give_back(self, connection: BlockingConnection, settings: ClientSettings) -> None:
        """Keep a connection without outstanding answers for the next reader."""
        with self._lock:
            self._leave_to_parent()
            idle = self._idle[_kind_of(connection.address, settings)]
            if connection.is_closed or len(idle) >= _IDLE_PER_ADDRESS_MAX:
                connection.close()
            else:
                idle.append(connection)

    def _leave_to_parent(self) -> None:
        """Close the copies of connections that the parent opened before it forked."""
        if self._process_id != os.getpid():
            self._process_id = os.getpid()
            self._close_all()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            self._close_all()

    def _close_all(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


def _has_news(connection: BlockingConnection) -> bool:
    """Whether an idle connection was closed: without a request, readable means its end."""
    poll = select.poll()
    poll.register(connection.file_number, select.POLLIN)
    return bool(poll.poll(0))


IDLE_CONNECTIONS = IdleConnections()


class RecentRoutes:
    """Routes that this process asked for a moment ago: neighbouring slices have one topic."""

    def __init__(self) -> None:
        self._routes: dict[tuple[tuple[str, ...], str], tuple[int, TopicRouteData]] = {}

    def get(self, settings: ClientSettings, topic: str) -> TopicRouteData | None:
        """The route of a topic, if it is recent."""
        asked_ms, route = self._routes.get((settings.namesrv, topic), (0, None))
        return route if monotonic_ms() - asked_ms <= _ROUTE_AGE_MS_MAX else None

    def put(self, settings: ClientSettings, topic: str, route: TopicRouteData) -> None:
        """Remember a route; when too many are remembered, all others are forgotten."""
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[settings.namesrv, topic] = monotonic_ms(), route


RECENT_ROUTES = RecentRoutes()


class RawPulls:
    """Pulls of one queue. ``connect`` first, and again after every ``CallFailed``."""

    def __init__(
        self,
        settings: ClientSettings,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        timeout_ms: int,
        idle: IdleConnections = IDLE_CONNECTIONS,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._subscription = subscription
        self._timeout_ms = timeout_ms
        self._idle = idle
        self._frames = frames_of(queue, subscription, settings.credentials)
        self._connection: BlockingConnection | None = None
        self._asked: dict[int, Ask] = {}
        # A replica may lack the newest messages, or refuse reads.
        self.is_master = True

    def connect(self, attempt: int) -> None:
        """Find the queue's broker and connect; later attempts try its replicas in turn.

        Raises:
            RouteMissing: the NameServers know no broker with the topic.
            BrokerUnknown: the NameServers know other brokers only.
            CallFailed: the broker cannot be reached.
            NameServerUnreachable: no NameServer can be reached.
            BrokerRefused: the broker refuses the SQL expression.
        """
        self.close()
        # Another attempt follows a failure: the route may have changed.
        by_id = addresses_of(self._settings, self._queue, self._idle, anew=attempt > 0)
        broker_id, address = by_id[attempt % len(by_id)]
        self.is_master = broker_id == MASTER_ID
        self._connection = self._idle.take(address, self._settings)
        if not self._subscription.by_tag:
            self._check_expression(self._connection)

    def _check_expression(self, connection: BlockingConnection) -> None:
        """Apache's brokers answer a pull with all messages when its expression is no SQL."""
        subscription = self._subscription
        body = {
            "clientId": f"{os.getpid()}@{TOOLS_GROUP}",
            "group": TOOLS_GROUP,
            "namespace": "",
            "subscriptionData": subscription.to_fields(),
        }
        answer = connection.call(
            RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(body), timeout_ms=self._timeout_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            what = f"the expression {subscription.sub_string!r} for topic {subscription.topic!r}"
            raise refused(answer, what, f"broker {self._queue.broker_name}")

    # Pulling.

    @property
    def asked_count(self) -> int:
        """How many answers are outstanding."""
        return len(self._asked)

    def ask(self, asks: Sequence[Ask]) -> None:
        """Send these pulls in one write.

        Raises:
            CallFailed: the connection broke.
        """
        connection = self._open_connection()
        frames = []
        for ask in asks:
            opaque = connection.next_opaque()
            self._asked[opaque] = ask
            frames.append(self._frames.frame(opaque, ask))
        connection.send_frames(b"".join(frames))

    def receive(self) -> RawAnswer:
        """The next answer, in the order of arrival.

        Raises:
            CallFailed: the connection broke, or no answer came in time.
            BrokerRefused: the broker answered with an error; the error carries its pull.
        """
        while True:
            answer = self._open_connection().receive(timeout_ms=self._timeout_ms)
            ask = self._asked.pop(answer.opaque, None)
            if ask is not None:
                return self._read(answer, ask)

    def _read(self, answer: ReceivedResponse, ask: Ask) -> RawAnswer:
        if answer.code not in _PULLED:
            raise refused(
                answer, f"a pull of {named(self._queue)}", f"broker {self._queue.broker_name}"
            )
        fields = answer.fields
        try:
            moved_by = int(fields.get("offsetDelta") or 0)
            return RawAnswer(
                ask,
                answer.code,
                answer.remark or "",
                int(fields["nextBeginOffset"]),
                int(fields["minOffset"]),
                int(fields["maxOffset"]),
                _moved(answer.body, moved_by) if moved_by else answer.body,
            )
        except (KeyError, ValueError) as error:
            raise ClientError(
                f"the answer of broker {self._queue.broker_name} to a pull of "
                f"{named(self._queue)} cannot be read: {error!r}"
            ) from error

    def _open_connection(self) -> BlockingConnection:
        if self._connection is None:
            raise CallFailed(f"{named(self._queue)} is not connected to its broker")
        return self._connection

    # The end.

    def release(self) -> None:
        """Leave the connection to the next reader, if no answer is outstanding."""
        connection, self._connection = self._connection, None
        if connection is not None and not self._asked:
            self._idle.give_back(connection, self._settings)
        elif connection is not None:
            connection.close()
        self._asked.clear()

    def close(self) -> None:
        """Close the connection; outstanding answers are lost."""
        connection, self._connection = self._connection, None
        self._asked.clear()
        if connection is not None:
            connection.close()


def addresses_of(
    settings: ClientSettings, queue: MessageQueue, idle: IdleConnections, *, anew: bool
) -> list[tuple[int, str]]:
    """The ids and addresses of a queue's broker, the master's first; ``anew`` asks in any case.

    Raises:
        RouteMissing: the NameServers know no broker with the topic.
        BrokerUnknown: the NameServers know other brokers only.
        NameServerUnreachable: no NameServer can be reached.
    """
    route = None if anew else RECENT_ROUTES.get(settings, queue.topic)
    if route is None:
        route = _asked_route(settings, queue.topic, idle)
        RECENT_ROUTES.put(settings, queue.topic, route)
    found = [one for one in route.brokers if one.broker_name == queue.broker_name]
    if not found or not found[0].addresses:
        raise BrokerUnknown(
            f"no route names broker {queue.broker_name!r}, which has {named(queue)}: check that it "
            "is up and registered with the NameServer"
        )
    return sorted(found[0].addresses.items())


def _asked_route(settings: ClientSettings, topic: str, idle: IdleConnections) -> TopicRouteData:
    problems = []
    answer: ReceivedResponse | None = None
    for address in settings.namesrv:
        try:
            answer = _answer_of(settings, address, topic, idle)
        except CallFailed as error:
            problems.append(str(error))
            continue
        # A restarted NameServer has no routes until the brokers register.
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            break
    if answer is None:
        raise NameServerUnreachable(f"no NameServer answered: {'; '.join(problems)}")
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise route_missing(topic)
    if answer.code != ResponseCode.SUCCESS:
        raise refused(answer, f"the route of topic {topic!r}", "a NameServer")
    try:
        return TopicRouteData.decode(answer.body)
    except RequestRejected as error:
        raise ClientError(f"the route of {topic!r} cannot be read: {error}") from error


def _answer_of(
    settings: ClientSettings, address: str, topic: str, idle: IdleConnections
) -> ReceivedResponse:
    connection = idle.take(address, settings)
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    answer = connection.call(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, timeout_ms=settings.api_timeout_ms
    )
    idle.give_back(connection, settings)
    return answer


def frames_of(
    queue: MessageQueue, subscription: SubscriptionData, credentials: CredentialSource | None
) -> PullFrames | SignedPullFrames:
    """The frames of a queue's pulls, signed if there are credentials."""
    if credentials is None:
        return PullFrames(queue, subscription)
    return SignedPullFrames(queue, subscription, credentials)


class SignedPullFrames:
    """The frames of pulls, each with a signature of its own."""

    def __init__(
        self, queue: MessageQueue, subscription: SubscriptionData, credentials: CredentialSource
    ) -> None:
        self._fields = _stable_fields(queue, subscription)
        self._credentials = credentials

    def frame(self, opaque: int, ask: Ask) -> bytes:
        numbers = {"queueOffset": str(ask.queue_offset), "maxMsgNums": str(ask.count_max)}
        fields = signed_fields({**self._fields, **numbers}, b"", current(self._credentials))
        return encode_request(Request(RequestCode.PULL_MESSAGE, opaque, fields, language="PYTHON"))


class PullFrames:
    """The frames of pulls that differ in their numbers only; other bytes are encoded once."""

    def __init__(self, queue: MessageQueue, subscription: SubscriptionData) -> None:
        fields = _stable_fields(queue, subscription)
        # The numbers come first, and the opaque is the last number of its kind: the text of a
        # subscription stands between them.
        given = {"queueOffset": _MARK, "maxMsgNums": _MARK, **fields}
        request = Request(RequestCode.PULL_MESSAGE, 0, given, language="PYTHON")
        header = encode_request(request)[_PREFIX_BYTES:]
        start, between, rest = header.split(_MARK.encode(), 2)
        middle, _, end = rest.rpartition(_OPAQUE % 0)
        self._pieces = start, between, middle, end

    def frame(self, opaque: int, ask: Ask) -> bytes:
        start, between, middle, end = self._pieces
        number, count = ask.queue_offset, ask.count_max
        header = b"%s%d%s%d%s%s%s" % (start, number, between, count, middle, _OPAQUE % opaque, end)
        return frame_prefix(len(header), 0) + header


def named(queue: MessageQueue) -> str:
    """A queue as errors call it."""
    return f"queue {queue.queue_id} of topic {queue.topic!r} on broker {queue.broker_name!r}"


def _stable_fields(queue: MessageQueue, subscription: SubscriptionData) -> dict[str, str]:
    """The fields that stay the same from pull to pull: no commit, no waiting at the broker."""
    return {
        "consumerGroup": TOOLS_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "sysFlag": str(SUBSCRIPTION_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": subscription.sub_string,
        "subVersion": str(subscription.sub_version),
        "expressionType": subscription.expression_type,
        "bname": queue.broker_name,
        BULK_FIELD: "true",
    }


def _moved(body: bytes, moved_by: int) -> bytes:
    """The records of a queue that has moved between brokers, with the offsets of its readers."""
    moved = bytearray(body)
    start = 0
    while start + QUEUE_OFFSET_POSITION + _LONG.size <= len(moved):
        place = start + QUEUE_OFFSET_POSITION
        _LONG.pack_into(moved, place, _LONG.unpack_from(moved, place)[0] + moved_by)
        (record_bytes,) = _INT.unpack_from(moved, start)
        if record_bytes <= 0:
            raise ValueError(f"a record of {record_bytes} bytes")
        start += record_bytes
    return bytes(moved)
