"""How the admin client asks: one broker, all masters at once, or the NameServers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from contrail.client import instances
from contrail.client.admin_values import BrokerAddress
from contrail.client.instance import ClientInstance
from contrail.client.refusals import refused
from contrail.client.settings import DEFAULT_INSTANCE, ClientSettings
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ClientClosed,
    ClientError,
    NoBroker,
    RequestRejected,
    SomeFailed,
)
from contrail.model.topic import is_closed_topic
from contrail.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import MessageQueue
from contrail.protocol.signing import CredentialSource
from contrail.wire.addresses import split_address

# How long calls about single queues trust a remembered route, and how many routes are kept.
_ROUTE_AGE_S = 30.0
_ROUTES_MAX = 1_000

T = TypeVar("T")
R = TypeVar("R")

_FIXES: Mapping[int, str] = {
    ResponseCode.TOPIC_NOT_EXIST: "create it with `contrail topic create`, or correct its name",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create it with create_group(), or correct its name",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this release of the server cannot do it",
}


class AdminAsking:
    """The admin client's connections. Needs no group; shares the client instance of its cluster."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 5_000,
        instance_name: str = DEFAULT_INSTANCE,
        unit_name: str | None = None,
        client_ip: str | None = None,
        tls: bool | ssl.SSLContext = False,
        credentials: CredentialSource | None = None,
    ) -> None:
        """``timeout_ms`` is how long each server has to answer.

        Raises:
            ConfigError: no NameServer is given, or an address is invalid.
        """
        self._settings = ClientSettings.of(
            namesrv,
            instance_name=instance_name,
            unit_name=unit_name,
            client_ip=client_ip,
            tls=tls,
            credentials=credentials,
        )
        self._timeout_ms = timeout_ms
        # Not the instance's routes, which are kept fresh for as long as it lives.
        self._routes: dict[str, tuple[float, TopicRouteData]] = {}
        self._joined: ClientInstance | None = None

    # Life.

    async def start(self) -> None:
        """Get ready; done by ``async with``. Connections are made when they are needed."""
        if self._joined is None:
            self._joined = instances.join(self._settings)

    async def close(self) -> None:
        """Leave; connections that no other client uses are closed."""
        instance, self._joined = self._joined, None
        if instance is not None:
            await instances.leave(instance)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _instance(self) -> ClientInstance:
        if self._joined is None:
            raise ClientClosed("this Admin is not started: use it inside its `with` block")
        self._joined.require_open()
        return self._joined

    # The choice of brokers.

    async def cluster_info(self) -> ClusterInfo:
        """Every broker by name, and the names of each cluster, as a NameServer knows them."""
        answer = await self._ask_name_server(
            RequestCode.GET_BROKER_CLUSTER_INFO, {}, "the cluster's brokers"
        )
        return decoded(ClusterInfo.decode, answer, "the cluster's brokers")

    async def _masters(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[BrokerAddress]:
        """All masters, the masters of one cluster, or the named broker.

        Raises:
            BrokerUnknown: no broker fits; the message names the registered brokers.
        """
        info = await self.cluster_info()
        if broker is not None:
            return [_find_broker(info, broker)]
        return [one for one in _addresses(info, cluster) if one.is_master]

    async def _every_broker(self, cluster: str | None) -> list[BrokerAddress]:
        """Masters and replicas; raises ``BrokerUnknown`` for a cluster without brokers."""
        return _addresses(await self.cluster_info(), cluster)

    async def _topic_brokers(self, topic: str) -> list[BrokerAddress]:
        """One broker for each broker name that has a topic: its master, else its first replica.

        Raises:
            RouteMissing: no broker has the topic.
        """
        return list(one_of_each_name((await self.topic_route(topic)).brokers).values())

    async def topic_route(self, topic: str) -> TopicRouteData:
        """A topic's route, as a NameServer knows it now.

        Raises:
            RouteMissing: no broker has the topic.
        """
        route = await self._instance.name_servers.route(topic)
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (asyncio.get_running_loop().time(), route)
        return route

    async def _recent_route(self, topic: str) -> TopicRouteData:
        """A topic's route, remembered for a moment: for calls that come in numbers."""
        asked_s, route = self._routes.get(topic, (float("-inf"), None))
        if route is not None and asyncio.get_running_loop().time() - asked_s < _ROUTE_AGE_S:
            return route
        return await self.topic_route(topic)

    async def _broker_of(self, queue: MessageQueue) -> BrokerAddress:
        """The broker with a queue; raises ``BrokerUnknown`` when the topic's route has none."""
        brokers = one_of_each_name((await self._recent_route(queue.topic)).brokers)
        if queue.broker_name not in brokers:
            raise BrokerUnknown(
                f"broker {queue.broker_name!r} has no queues of topic {queue.topic!r}; the route "
                f"names {', '.join(brokers)}"
            )
        return brokers[queue.broker_name]

    # Asking brokers.

    async def ask_broker(
        self,
        broker: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> ReceivedResponse:
        """Send any request code to a broker by name or address; the raw answer, if a success.

        Raises:
            BrokerRefused: the broker answered with an error.
        """
        (address,) = await self._masters(broker=broker)
        request = RequestCode(code)
        return await self._ask(address, request, fields or {}, request.name, body=body)

    async def _ask(
        self,
        broker: BrokerAddress,
        code: RequestCode,
        fields: Mapping[str, str],
        what: str,
        *,
        body: bytes = b"",
        timeout_ms: int | None = None,
        accepted: Iterable[ResponseCode] = (ResponseCode.SUCCESS,),
    ) -> ReceivedResponse:
        """Ask one broker; ``what`` names the question, with the topic or group, in errors.

        Raises:
            BrokerRefused: the broker answered with a code that is not ``accepted``.
            ClientError: the broker did not answer.
        """
        try:
            answer = await self._instance.call(
                broker.address, code, fields, body, timeout_ms=timeout_ms or self._timeout_ms
            )
        except CallFailed as error:
            raise ClientError(f"{what}: {broker} did not answer: {error}") from error
        return _checked(answer, what, str(broker), accepted)

    async def _list_system(
        self, broker: BrokerAddress, topic: str, fields: Mapping[str, str], what: str
    ) -> ReceivedResponse | None:
        """A page of a topic that no client may read; None if clients may read the topic.

        Contrail's brokers list the messages of such topics on their own host. Apache's brokers do
        not know the request, and let every client pull.
        """
        if not is_closed_topic(topic):
            return None
        answer = await self._ask(
            broker,
            RequestCode.LIST_SYSTEM_MESSAGES,
            {"topic": topic, **fields},
            what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        return answer if answer.code == ResponseCode.SUCCESS else None

    async def _ask_each(
        self,
        brokers: Sequence[BrokerAddress],
        ask: Callable[[BrokerAddress], Awaitable[T]],
        combine: Callable[[dict[str, T]], R],
        what: str,
        *,
        allow_partial: bool = False,
    ) -> R:
        """Ask all brokers concurrently and combine the answers, keyed by broker name (or address).

        Raises:
            SomeFailed: some brokers failed; it names them, and has the result of the others.
            BrokerRefused: all brokers refused for the same reason.
        """
        outcomes = await asyncio.gather(*(ask(one) for one in brokers), return_exceptions=True)
        answers: dict[str, T] = {}
        failures: dict[str, ClientError] = {}
        for broker, outcome in zip(brokers, outcomes, strict=True):
            name = broker.broker_name if broker.is_master else broker.address
            if isinstance(outcome, ClientError):
                failures[name] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[name] = outcome
        if failures and not (allow_partial and answers):
            raise _failure(what, failures, combine(answers), len(brokers))
        return combine(answers)

    # Asking NameServers.

    async def _ask_name_server(
        self,
        code: RequestCode,
        fields: dict[str, str],
        what: str,
        *,
        accepted: Iterable[ResponseCode] = (ResponseCode.SUCCESS,),
    ) -> ReceivedResponse:
        """Ask any NameServer: for facts that all NameServers know.

        Raises:
            NameServerUnreachable: no NameServer answered.
            BrokerRefused: a NameServer answered with an error.
        """
        answer = await self._instance.name_servers.call(code, fields)
        return _checked(answer, what, "a NameServer", accepted)

    async def _ask_name_servers(
        self,
        code: RequestCode,
        fields: Mapping[str, str],
        what: str,
        *,
        body: bytes = b"",
        accepted: Iterable[ResponseCode] = (ResponseCode.SUCCESS,),
    ) -> dict[str, ReceivedResponse]:
        """Ask all NameServers, for facts that each keeps for itself; the answers by address.

        Raises:
            SomeFailed: some NameServers failed.
            BrokerRefused: all NameServers refused for the same reason.
        """

        async def ask(server: BrokerAddress) -> ReceivedResponse:
            try:
                answer = await self._instance.caller.call(
                    server.address, code, fields, body, timeout_ms=self._timeout_ms
                )
            except CallFailed as error:
                text = f"{what}: NameServer {server.address} did not answer: {error}"
                raise ClientError(text) from error
            return _checked(answer, what, f"NameServer {server.address}", accepted)

        servers = [BrokerAddress("", one, 0, one) for one in self._settings.namesrv]
        return await self._ask_each(servers, ask, lambda answers: answers, what)


def decoded(decode: Callable[[bytes], T], answer: ReceivedResponse, what: str) -> T:
    """An answer's body; raises ``ClientError`` if the body cannot be read."""
    try:
        return decode(answer.body)
    except RequestRejected as error:
        raise ClientError(f"{what}: the answer cannot be read: {error}") from error


def number_field(answer: ReceivedResponse, name: str, what: str) -> int:
    """A number in an answer's header; raises ``ClientError`` when it is missing or not a number."""
    try:
        return int(answer.fields[name])
    except (KeyError, ValueError) as error:
        raise ClientError(f"{what}: the answer has no number {name}") from error


def _checked(
    answer: ReceivedResponse, what: str, who: str, accepted: Iterable[ResponseCode]
) -> ReceivedResponse:
    if answer.code in tuple(accepted):
        return answer
    plain = refused(answer, what, who)
    fix = _FIXES.get(answer.code)
    if fix is None:
        raise plain
    raise BrokerRefused(f"{plain}. Fix: {fix}", code=plain.code, remark=plain.remark)


def _failure(
    what: str, failures: Mapping[str, ClientError], partial: object, asked_count: int
) -> ClientError:
    first = next(iter(failures.values()))
    codes = {getattr(error, "code", None) for error in failures.values()}
    is_unanimous = asked_count == 1 or (len(codes) == 1 and None not in codes)
    if len(failures) == asked_count and is_unanimous:
        return first
    told = "; ".join(f"{name}: {error}" for name, error in failures.items())
    return SomeFailed(
        f"{what}: {len(failures)} of {asked_count} servers failed ({', '.join(failures)}): {told}",
        failures=dict(failures),
        partial=partial,
    )


def _addresses(info: ClusterInfo, cluster: str | None) -> list[BrokerAddress]:
    if cluster is not None and cluster not in info.clusters:
        known = ", ".join(sorted(info.clusters)) or "none"
        raise BrokerUnknown(f"there is no cluster {cluster!r}; the NameServer knows: {known}")
    names = None if cluster is None else info.clusters[cluster]
    chosen = [one for name, one in info.brokers.items() if names is None or name in names]
    found = _brokers(chosen)
    if not found:
        raise NoBroker(
            "no broker is registered with the NameServer: start one with `contrail broker`, or "
            "check its namesrvAddr"
        )
    return found


def _brokers(data: Iterable[BrokerData]) -> list[BrokerAddress]:
    return sorted(
        BrokerAddress(one.cluster, one.broker_name, broker_id, address)
        for one in data
        for broker_id, address in one.addresses.items()
    )


def one_of_each_name(data: Iterable[BrokerData]) -> dict[str, BrokerAddress]:
    found: dict[str, BrokerAddress] = {}
    for one in _brokers(data):
        found.setdefault(one.broker_name, one)
    return found


def _find_broker(info: ClusterInfo, broker: str) -> BrokerAddress:
    """A broker by its name or its address; an address that is not registered is tried as given."""
    every = _brokers(info.brokers.values())
    for one in every:
        if broker == one.address or (broker == one.broker_name and one.is_master):
            return one
    try:
        split_address(broker)
    except ValueError:
        known = ", ".join(str(one) for one in every) or "none"
        raise BrokerUnknown(
            f"no broker is named {broker!r}, or it has no master now; the NameServer knows: {known}"
        ) from None
    return BrokerAddress("", broker, 0, broker)
