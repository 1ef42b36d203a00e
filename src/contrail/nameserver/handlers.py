"""The NameServer's answers: registrations, routes, topic lists, KV table and settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from functools import partial

from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import SYNC_BROKER_MEMBER_PREFIX
from contrail.nameserver.changes import Begin, RouteChanges, RunningLoop, WorkerThread
from contrail.nameserver.state.kv import ORDER_TOPIC_NAMESPACE, KvTable
from contrail.nameserver.state.routes import (
    BrokerKey,
    Registration,
    RouteTables,
    keep_zone,
    present_acting_masters,
)
from contrail.nameserver.state.settings import RuntimeSettings
from contrail.protocol.bodies.properties_text import decode_settings, render_properties
from contrail.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from contrail.protocol.bodies.routes import QueueData, TopicRouteData
from contrail.protocol.bodies.tables import KVTable, TopicList
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import body_errors, decode_body, encode_body
from contrail.runtime.durable_changes import DurableChanges
from contrail.wire.peer import LATER, Answer, Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_log = logging.getLogger(__name__)

KvChanges = DurableChanges[tuple[str, str], str]
"""Values by namespace and key."""
SettingsChanges = DurableChanges[str, str]
"""Texts of settings by name."""

# Clients from V4_9_4 on get routes in the strict style.
_STRICT_ROUTE_VERSION = 401
# The thread decodes larger registrations; decoding this many bytes takes about a millisecond.
DECODED_AT_ONCE_BYTES_MAX = 16 << 10
# A compressed body holds some 15 times its size, and at most 200 times.
INFLATED_AT_ONCE_BYTES_MAX = 512
_UNIT_FLAG = 1
_UNIT_SUB_FLAG = 2


class RegistrationHandlers:
    """Requests of brokers: registrations, single topics, heartbeats, unregistrations."""

    def __init__(
        self,
        tables: RouteTables,
        kv: KvTable,
        settings: RuntimeSettings,
        clock: Clock,
        changes: RouteChanges | None = None,
    ) -> None:
        self._tables = tables
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._changes = RouteChanges(RunningLoop(), WorkerThread()) if changes is None else changes

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self.handle_register,
            RequestCode.UNREGISTER_BROKER: self.handle_unregister,
            RequestCode.QUERY_DATA_VERSION: self.handle_query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.handle_heartbeat,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.handle_register_topic,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.handle_member_group,
        }

    def handle_register(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        name = _named(fields, "brokerName")

        def prepare() -> Begin:
            return partial(self._registering, _registration(request, fields), peer)

        if _is_decoded_at_once(request, fields):
            return self._changes.make(name, request, peer, begin=prepare(), ends_with_peer=True)
        return self._changes.make(name, request, peer, prepare=prepare, ends_with_peer=True)

    def _registering(self, registration: Registration, peer: Peer) -> Steps:
        result = yield from self._tables.registering(
            registration,
            peer,
            self._clock.now_ms(),
            delete_missing_topics=self._settings.config.delete_topics_with_registration,
        )
        if result.is_new or result.is_ignored:
            _log.info(
                "broker %r (id %d) at %r, cluster %r, %s",
                registration.broker_name,
                registration.broker_id,
                registration.key.address,
                registration.key.cluster,
                "registered" if result.is_new else "ignored: the owner of its id has a newer state",
            )
        if result.displaced is not None:
            _log.warning(
                "broker %r (id %d) at %r takes the place of the one at %r, which is still "
                "connected: no two brokers may have one name and id; stop one of them, or give it "
                "another brokerId or brokerName",
                registration.broker_name,
                registration.broker_id,
                registration.key.address,
                result.displaced,
            )
        answer = {"haServerAddr": result.ha_address, "masterAddr": result.master_address}
        return Response(
            fields={name: text for name, text in answer.items() if text is not None},
            body=self._order_config(),
        )

    def handle_unregister(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        key, name = _broker_key(fields), fields.text("brokerName")
        return self._changes.make(name, request, peer, begin=lambda: self._unregistering(key, name))

    def _unregistering(self, key: BrokerKey, broker_name: str) -> Steps:
        if (yield from self._tables.unregistering(key, broker_name)):
            _log.info("broker %r of cluster %r unregistered", key.address, key.cluster)
        return Response()

    def handle_query_data_version(self, request: Request, peer: Peer) -> Answer:
        key = _broker_key(HeaderFields(request))
        asked = _data_version(request.body)
        known = self._tables.data_version(key)
        self._tables.heard(key, self._clock.now_ms())
        is_changed = known is None or known != asked
        return Response(
            fields={"changed": "true" if is_changed else "false"},
            body=b"" if known is None else encode_body(known.to_fields()),
        )

    def handle_heartbeat(self, request: Request, peer: Peer) -> Answer:
        self._tables.heard(_broker_key(HeaderFields(request)), self._clock.now_ms())
        return Response()

    def handle_register_topic(self, request: Request, peer: Peer) -> Answer:
        topic = HeaderFields(request).text("topic")
        route = TopicRouteData.decode(request.body) if request.body else TopicRouteData()
        if self._tables.register_topic(topic, route.queues):
            for queues in route.queues:
                again = partial(self._put_again, topic, queues)
                self._changes.again_behind([queues.broker_name], again)
        else:
            _log.warning("topic %r names a broker that is not registered; it is left out", topic)
        return Response()

    def _put_again(self, topic: str, queues: QueueData, broker_name: str) -> None:
        self._tables.register_topic(topic, [queues])

    def handle_member_group(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        group = self._tables.member_group(fields.text("clusterName"), fields.text("brokerName"))
        return Response(body=group.encode())

    def _order_config(self) -> bytes:
        if not self._settings.config.order_config_to_brokers:
            return b""
        table = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return b"" if table is None else KVTable(table).encode()


class RouteHandlers:
    """Requests for routes, and for the lists of brokers and topics."""

    def __init__(
        self,
        tables: RouteTables,
        kv: KvTable,
        settings: RuntimeSettings,
        clock: Clock,
        changes: RouteChanges | None = None,
        in_slices: InSlices = in_one_go,
    ) -> None:
        self._tables = tables
        self._kv = kv
        self._settings = settings
        self._clock = clock
        self._changes = RouteChanges(RunningLoop(), WorkerThread()) if changes is None else changes
        self._in_slices = in_slices
        self._started_ms = clock.now_ms()

    def table(self) -> dict[int, Handler]:
        in_slices = self._in_slices
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.handle_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.handle_cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.handle_wipe_write,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.handle_add_write,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.handle_delete_topic,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: in_slices(self.all_topics),
            RequestCode.GET_TOPICS_BY_CLUSTER: in_slices(self.topics_by_cluster),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.handle_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: in_slices(self.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: in_slices(self.unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._in_slices(
                self.unit_sub_only_topics
            ),
        }

    def handle_route(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        self._require_warm()
        topic = fields.text("topic")
        route = self._route(topic)
        zone = fields.text("__ZONE_NAME", "").strip()
        if zone and fields.boolean("__ZONE_MODE"):
            # RocketMQ rewrites the answer here, and its new answer is not in the strict style.
            return Response(body=keep_zone(route, zone).encode())
        standard_only = fields.boolean("acceptStandardJsonOnly")
        strict = standard_only or request.version >= _STRICT_ROUTE_VERSION
        return Response(body=route.encode(strict=strict))

    def handle_cluster_info(self, request: Request, peer: Peer) -> Answer:
        return Response(body=self._tables.cluster_info().encode())

    def handle_wipe_write(self, request: Request, peer: Peer) -> Answer:
        name = HeaderFields(request).text("brokerName")

        def wiping() -> Steps:
            count = yield from self._tables.topics.wiping_write(name)
            _log.info(
                "write permission of broker %r taken in %d topics by %s", name, count, peer.address
            )
            return Response(fields={"wipeTopicCount": str(count)})

        return self._changes.make(name, request, peer, begin=wiping)

    def handle_add_write(self, request: Request, peer: Peer) -> Answer:
        name = HeaderFields(request).text("brokerName")

        def adding() -> Steps:
            count = yield from self._tables.topics.adding_write(name)
            _log.info(
                "write permission of broker %r given in %d topics by %s", name, count, peer.address
            )
            return Response(fields={"addTopicCount": str(count)})

        return self._changes.make(name, request, peer, begin=adding)

    def handle_delete_topic(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        topic, cluster = fields.text("topic"), fields.optional_text("clusterName")
        self._tables.delete_topic(topic, cluster)
        self._changes.again_behind(
            self._tables.broker_names(cluster) if cluster else None,
            lambda broker_name: self._tables.topics.delete_on(topic, (broker_name,)),
        )
        return Response()

    def all_topics(self, request: Request, peer: Peer) -> Steps:
        _require_enabled(self._settings.config.all_topic_list_enabled, "enableAllTopicList")
        return (yield from self._topics_where(lambda _: True))

    def topics_by_cluster(self, request: Request, peer: Peer) -> Steps:
        self._require_topic_list()
        names = self._tables.broker_names(HeaderFields(request).text("cluster"))
        return (yield from self._topics_where(lambda brokers: not names.isdisjoint(brokers)))

    def handle_system_topics(self, request: Request, peer: Peer) -> Answer:
        """The topics named like clusters and brokers; any broker knows the other system topics."""
        info = self._tables.cluster_info()
        topics = frozenset(info.clusters).union(*info.clusters.values())
        addresses = [a for b in info.brokers.values() for a in b.addresses.values()]
        return _topic_list(topics, addresses[0] if addresses else None)

    def unit_topics(self, request: Request, peer: Peer) -> Steps:
        self._require_topic_list()
        return (yield from self._topics_flagged(lambda flag: bool(flag & _UNIT_FLAG)))

    def unit_sub_topics(self, request: Request, peer: Peer) -> Steps:
        self._require_topic_list()
        return (yield from self._topics_flagged(lambda flag: bool(flag & _UNIT_SUB_FLAG)))

    def unit_sub_only_topics(self, request: Request, peer: Peer) -> Steps:
        self._require_topic_list()
        both = _UNIT_FLAG | _UNIT_SUB_FLAG
        return (yield from self._topics_flagged(lambda flag: flag & both == _UNIT_SUB_FLAG))

    def _topics_flagged(self, holds: Callable[[int], bool]) -> Steps:
        """Topics by system flag. It is the same on all brokers of a topic, so one row decides."""
        return self._topics_where(lambda brokers: holds(next(iter(brokers.values())).sys_flag))

    def _topics_where(
        self, holds: Callable[[Mapping[str, QueueData]], bool]
    ) -> Generator[None, None, Response]:
        topics = yield from self._tables.topics.listing(holds)
        return Response(body=(yield from TopicList.encoding(topics)))

    def _route(self, topic: str) -> TopicRouteData:
        config = self._settings.config
        route = self._tables.route(topic)
        if route is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no route for topic {topic!r}: no broker that is alive has registered it",
            )
        if config.acting_master_supported and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX):
            route = present_acting_masters(route)
        if config.order_config_in_routes:
            order_config = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
            route = route.with_order_config(order_config)
        return route

    def _require_warm(self) -> None:
        config = self._settings.config
        waited_ms = self._clock.now_ms() - self._started_ms
        if config.wait_for_service and waited_ms < config.wait_for_service_seconds * 1000:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                "this NameServer has just started and still waits for brokers to register",
            )

    def _require_topic_list(self) -> None:
        _require_enabled(self._settings.config.topic_list_enabled, "enableTopicList")


class KvHandlers:
    """Requests for the KV table; a change takes effect, and is answered, once it is durable."""

    def __init__(self, kv: KvTable, changes: KvChanges | None = None) -> None:
        self._kv = kv
        self._changes: KvChanges = changes or DurableChanges()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self.handle_put,
            RequestCode.GET_KV_CONFIG: self.handle_get,
            RequestCode.DELETE_KV_CONFIG: self.handle_delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.handle_list,
        }

    def handle_put(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        entry = fields.text("namespace"), fields.text("key"), fields.text("value")
        self._kv.check_put(*entry, planned_count=self._changes.planned_count)
        answer = _SavedAnswer(request, peer)
        self._changes.submit({entry[:2]: entry[2]}, 0, lambda: self._kv.put(*entry), answer.done)
        return answer.given()

    def handle_delete(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        place = fields.text("namespace"), fields.text("key")
        answer = _SavedAnswer(request, peer)
        self._changes.submit({place: None}, 0, lambda: self._kv.delete(*place), answer.done)
        return answer.given()

    def handle_get(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        namespace, key = fields.text("namespace"), fields.text("key")
        value = self._kv.get(namespace, key)
        if value is None:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND, f"namespace {namespace!r} has no key {key!r}"
            )
        return Response(fields={"value": value})

    def handle_list(self, request: Request, peer: Peer) -> Answer:
        namespace = HeaderFields(request).text("namespace")
        table = self._kv.namespace(namespace)
        if table is None:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND, f"nothing was ever put in namespace {namespace!r}"
            )
        return Response(body=KVTable(table).encode())


class SettingsHandlers:
    """Requests for the NameServer's own settings; only those in a closed list can be changed."""

    def __init__(self, settings: RuntimeSettings, changes: SettingsChanges | None = None) -> None:
        self._settings = settings
        self._changes: SettingsChanges = changes or DurableChanges()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_NAMESRV_CONFIG: self.handle_update,
            RequestCode.GET_NAMESRV_CONFIG: self.handle_get,
        }

    def handle_update(self, request: Request, peer: Peer) -> Answer:
        properties = decode_settings(request.body)
        if not properties:
            return Response()
        address = peer.address

        def believe() -> None:
            for name, (old, new) in self._settings.change(properties).items():
                _log.info("setting %s changed from %r to %r by %s", name, old, new, address)

        answer = _SavedAnswer(request, peer)
        self._changes.submit(self._settings.checked(properties), 0, believe, answer.done)
        return answer.given()

    def handle_get(self, request: Request, peer: Peer) -> Answer:
        return Response(body=render_properties(self._settings.config.to_properties()).encode())


def _is_decoded_at_once(request: Request, fields: HeaderFields) -> bool:
    is_compressed = fields.boolean("compressed")
    bytes_max = INFLATED_AT_ONCE_BYTES_MAX if is_compressed else DECODED_AT_ONCE_BYTES_MAX
    return len(request.body) <= bytes_max


def _registration(request: Request, fields: HeaderFields) -> Registration:
    expected_crc = fields.integer("bodyCrc32", 0)
    if expected_crc and body_crc32(request.body) != expected_crc:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the body's CRC-32 is {body_crc32(request.body)}, the header says {expected_crc}",
        )
    return Registration(
        key=_broker_key(fields),
        broker_name=_named(fields, "brokerName"),
        broker_id=fields.long("brokerId"),
        ha_address=fields.text("haServerAddr", ""),
        zone=fields.optional_text("__ZONE_NAME"),
        heartbeat_timeout_ms=fields.optional_long("heartbeatTimeoutMillis"),
        acting_master=fields.optional_boolean("enableActingMaster"),
        body=RegisterBrokerBody.decode(
            request.body, compressed=fields.boolean("compressed"), version=request.version
        ),
    )


def _broker_key(fields: HeaderFields) -> BrokerKey:
    return BrokerKey(_named(fields, "clusterName"), _named(fields, "brokerAddr"))


def _named(fields: HeaderFields, name: str) -> str:
    text = fields.text(name)
    if not text.strip():
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"{name} is blank; name it")
    return text


def _data_version(body: bytes) -> DataVersion | None:
    if not body:
        return None
    what = "a DataVersion"
    fields = decode_body(body, what)
    with body_errors(what):
        return DataVersion.from_fields(fields)


def _topic_list(topics: frozenset[str], broker_address: str | None = None) -> Response:
    return Response(body=TopicList(topics, broker_address).encode())


def _require_enabled(is_enabled: bool, setting: str) -> None:
    if not is_enabled:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"topic lists are disabled here; {setting} is false"
        )


class _SavedAnswer:
    """The answer to a change of a file: given once the file was written, or the write failed."""

    def __init__(self, request: Request, peer: Peer) -> None:
        self._request = request
        self._peer = peer
        self._early: Response | None = None
        self._is_late = False

    def done(self, problem: Exception | None) -> None:
        response = Response()
        if problem is not None:
            remark = f"nothing was changed, because the file could not be written: {problem}"
            response = Response(ResponseCode.SYSTEM_ERROR, remark)
        if self._is_late:
            self._peer.reply(self._request, response)
        else:
            self._early = response

    def given(self) -> Answer:
        """For the handler to return: the answer if the write has ended already."""
        self._is_late = True
        return LATER if self._early is None else self._early
