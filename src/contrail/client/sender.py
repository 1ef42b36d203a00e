"""Sends prepared messages: chooses queues, asks brokers, tries again by RocketMQ's rules."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from contrail.client.back_pressure import Slots
from contrail.client.hooks import SendHook
from contrail.client.instance import (
    TEMPLATE_QUEUES,
    TEMPLATE_TOPIC,
    VERSION_5,
    ClientInstance,
)
from contrail.client.message import MessageQueue, SendReceipt, SendStatus
from contrail.client.outgoing import TIMER_PROPERTIES, Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.client.refusals import refused
from contrail.client.send_frames import SendFrames
from contrail.client.state.latency_fault import LatencyFaults
from contrail.client.state.leader_changes import Waits
from contrail.client.state.queue_picking import QueuePicker
from contrail.client.state.routes import TopicRoute
from contrail.client.state.send_retry import Failure, Next, RetryRules, RetryStyle, SendCourse
from contrail.errors import (
    BackPressure,
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ClientError,
    MessageInvalid,
    NameServerUnreachable,
    RouteMissing,
)
from contrail.model.properties import MSG_REGION, TRACE_ON, UNIQ_KEY
from contrail.protocol.bodies.heartbeat import Heartbeat, encode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse
from contrail.wire.connection import Connection

_log = logging.getLogger(__name__)

_STATUSES = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_DEFAULT_REGION = "DefaultRegion"
# One-way sends never wait: after this many bytes the event loop gets a turn.
_ONE_WAY_BURST_BYTES = 256 << 10
_PICKERS_MAX = 10_000
_USUAL_TEMPLATE = (TEMPLATE_TOPIC, TEMPLATE_QUEUES)
_GO_AWAY = int(ResponseCode.GO_AWAY)

# Chooses the queue of a message among the topic's queues.
Choose = Callable[[Sequence[MessageQueue]], MessageQueue]


class Sender:
    """Sends on behalf of one producer group. Belongs to the event loop of its instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ProducerSettings | None = None,
        *,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        self._instance = instance
        # Asking for the running loop is a system call each time.
        self._loop = instance.loop
        self._settings = settings = settings or ProducerSettings()
        self.hooks: list[SendHook] = list(hooks)
        self.slots = Slots(
            count_max=settings.in_flight_count_max, bytes_max=settings.in_flight_bytes_max
        )
        self._frames = SendFrames(
            group, settings, instance.caller.language, instance.settings.credentials
        )
        self._pickers: dict[str, tuple[TopicRoute, QueuePicker]] = {}
        self._template = (settings.create_topic_key, settings.default_topic_queue_nums)
        self._faults = LatencyFaults() if settings.send_latency_fault_enable else None

    # Sending.

    async def send(
        self,
        outgoing: Outgoing,
        *,
        queue: MessageQueue | None = None,
        choose: Choose | None = None,
        timeout_ms: int | None = None,
        retry: RetryStyle = "sync",
    ) -> SendReceipt:
        """Send, and wait for the broker's answer. ``timeout_ms`` covers all attempts.

        ``choose`` picks the queue once the topic's queues are known.

        Raises:
            RouteMissing: no broker has the topic.
            NameServerUnreachable: no NameServer gave the topic's route.
            SendFailed: no attempt went through; ``SendTimedOut`` when the message may be stored
                anyway.
            BackPressure: no room for another send within ``timeout_ms``.
        """
        self._instance.require_open()
        began_s = self._loop.time()
        deadline_s = began_s + self._limit_ms(timeout_ms) / 1000
        size = len(outgoing.body)
        slots = self.slots
        if not slots.take(size):
            await slots.wait(size, deadline_s)
        try:
            chosen = queue
            if chosen is None:
                topic = outgoing.topic
                route = self._known_route(topic) or await self._route(topic, deadline_s)
                if choose is None:
                    chosen = self._pick(route)
                else:
                    chosen = queue = choose(route.write_queues)
            rules = self._rules(retry, queue)
            return await self._see_through(outgoing, chosen, rules, began_s, deadline_s)
        finally:
            slots.give_back(size)

    def _limit_ms(self, timeout_ms: int | None) -> int:
        """How long all attempts may take."""
        return self._settings.send_timeout_ms if timeout_ms is None else timeout_ms

    async def _see_through(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        rules: RetryRules,
        began_s: float,
        deadline_s: float,
    ) -> SendReceipt:
        """The result of the first attempt, or of the retries after it."""
        try:
            receipt = await self._attempt(outgoing, queue, deadline_s)
        except (CallFailed, BrokerUnknown, BrokerRefused) as error:
            course = SendCourse(outgoing.topic, rules)
            step = self._failed(course, queue, error, began_s)
        else:
            is_fine = receipt.status is SendStatus.SEND_OK
            if is_fine or not (self._settings_seek_better and rules.seeks_better()):
                return receipt
            course = SendCourse(outgoing.topic, rules)
            step = course.stored(receipt, self._ms_since(began_s))
        return await self._go_on(outgoing, course, step, queue, began_s, deadline_s)

    async def _go_on(
        self,
        outgoing: Outgoing,
        course: SendCourse,
        step: Next,
        last: MessageQueue,
        began_s: float,
        deadline_s: float,
    ) -> SendReceipt:
        """The attempts after the first."""
        loop = self._loop
        while step is not Next.STOP and loop.time() < deadline_s:
            started_s = loop.time()
            if step is Next.OTHER_BROKER:
                elsewhere = await self._elsewhere(last, deadline_s)
                if elsewhere is None:
                    break
                last = elsewhere
            elif step is Next.NEXT_LEADER:
                last = await self._next_leader(course, last, deadline_s)
            try:
                receipt = await self._attempt(outgoing, last, deadline_s)
            except (CallFailed, BrokerUnknown, BrokerRefused) as error:
                step = self._failed(course, last, error, started_s)
            else:
                if receipt.status is SendStatus.SEND_OK or not self._settings_seek_better:
                    return receipt
                step = course.stored(receipt, self._ms_since(started_s))
        return course.outcome(self._ms_since(began_s))

    async def _elsewhere(self, failed: MessageQueue, deadline_s: float) -> MessageQueue | None:
        """A queue to try next, on another broker if there is one; None when there is no route."""
        instance, topic = self._instance, failed.topic
        try:
            known = instance.routes.routes.get(topic)
            if known is None or known.broker_names == (failed.broker_name,):
                # The known route has no other broker: a newer route may have.
                await self._newest_route(topic, deadline_s)
            return self._pick(await self._route(topic, deadline_s), failed.broker_name)
        except ClientError as error:
            _log.info("no other broker for topic %s is to be found: %s", topic, error)
            return None

    async def _next_leader(
        self, course: SendCourse, failed: MessageQueue, deadline_s: float
    ) -> MessageQueue:
        """The queue to try next after the master of a name is lost: after a pause, on any broker.

        A queue on another name needs no pause. A send that has a queue of its own, or is
        asynchronous, stays with its queue, wherever that is led by then.
        """
        may_roam = course.rules.style == "sync" and not course.rules.has_own_queue
        known = self._known_route(failed.topic)
        if may_roam and known is not None:
            elsewhere = self._picker(known).next_where(
                lambda queue: queue.broker_name not in course.leaderless
            )
            if elsewhere is not None:
                return elsewhere
        pause_s = course.waits.next_s(knows_leader=course.knows_leader)
        if not pause_s:
            return failed
        await asyncio.sleep(min(pause_s, max(deadline_s - self._loop.time(), 0.0)))
        course.leaderless.clear()
        try:
            route = await self._newest_route(failed.topic, deadline_s)
        except ClientError as error:
            _log.info("the leader of %s is not known yet: %s", failed.broker_name, error)
            return failed
        return self._pick(route) if may_roam and route.write_queues else failed

    def _rules(self, retry: RetryStyle, queue: MessageQueue | None) -> RetryRules:
        settings = self._settings
        count = (
            settings.retry_times_when_send_async_failed
            if retry == "async"
            else settings.retry_times_when_send_failed
        )
        return RetryRules(style=retry, retry_count=count, has_own_queue=queue is not None)

    @property
    def _settings_seek_better(self) -> bool:
        return self._settings.retry_another_broker_when_not_store_ok

    def _failed(
        self, course: SendCourse, queue: MessageQueue, failure: Failure, started_s: float
    ) -> Next:
        instance, name = self._instance, queue.broker_name
        instance.refresh_soon(course.topic)
        is_replicated = name in instance.routes.replicated
        cost_ms = self._ms_since(started_s)
        step = course.failed(name, failure, cost_ms, is_replicated=is_replicated)
        if step is Next.NEXT_LEADER and isinstance(failure, BrokerRefused):
            course.knows_leader = instance.believe_leader(name, failure.leader)
        _log.info("a send to %s failed, next: %s: %s", queue, step.value, failure)
        return step

    # One attempt.

    def _attempt(
        self, outgoing: Outgoing, queue: MessageQueue, deadline_s: float
    ) -> Coroutine[Any, Any, SendReceipt]:
        if self.hooks or self._faults is not None:
            return self._watched(outgoing, queue, deadline_s)
        return self._exchange(outgoing, queue, deadline_s)

    async def _watched(
        self, outgoing: Outgoing, queue: MessageQueue, deadline_s: float
    ) -> SendReceipt:
        started_s = self._loop.time()
        self._tell_before(outgoing, queue)
        receipt: SendReceipt | None = None
        failure: BaseException | None = None
        try:
            receipt = await self._exchange(outgoing, queue, deadline_s)
            return receipt
        except BaseException as error:
            failure = error
            raise
        finally:
            cost_ms = self._ms_since(started_s)
            self._note(queue.broker_name, failure, cost_ms)
            self._tell_after(outgoing, queue, receipt, failure, cost_ms)

    def _note(self, broker_name: str, failure: BaseException | None, cost_ms: int) -> None:
        if self._faults is not None:
            self._faults.note(
                broker_name,
                latency_ms=cost_ms,
                failed=isinstance(failure, CallFailed | BrokerRefused),
                reachable=not isinstance(failure, BrokerRefused),
                now_ms=self._instance.clock.now_ms(),
            )

    async def _exchange(
        self, outgoing: Outgoing, queue: MessageQueue, deadline_s: float
    ) -> SendReceipt:
        connection = self._open_connection(queue)
        if connection is None:
            connection = await self._connect(queue, deadline_s)
        if not TIMER_PROPERTIES.isdisjoint(outgoing.properties):
            await self._require_timers(queue, deadline_s)
        if outgoing.is_batch and await self._is_old(queue, deadline_s):
            # Such brokers copy the batch's properties to each message: all would get this one id.
            outgoing.properties.pop(UNIQ_KEY, None)
        response = await self._ask(connection, outgoing, queue, deadline_s)
        if response.code == _GO_AWAY:
            response = await self._ask_anew(connection, outgoing, queue, deadline_s)
        status = _STATUSES.get(response.code)
        if status is None:
            what = f"a message for topic {outgoing.topic!r}"
            raise refused(response, what, f"broker {queue.broker_name} ({connection.address})")
        return _receipt(outgoing, queue, status, response)

    def _ask(
        self, connection: Connection, outgoing: Outgoing, queue: MessageQueue, deadline_s: float
    ) -> asyncio.Future[ReceivedResponse]:
        left_ms = int((deadline_s - self._loop.time()) * 1000)
        if left_ms <= 0:
            raise CallFailed(f"{connection.address} was not asked: no time was left")
        opaque = connection.take_opaque()
        frame = self._frames.encode(
            outgoing, queue, opaque=opaque, flag=0, now_ms=self._instance.clock.now_ms()
        )
        return connection.ask(opaque, frame, outgoing.code, left_ms)

    async def _ask_anew(
        self, connection: Connection, outgoing: Outgoing, queue: MessageQueue, deadline_s: float
    ) -> ReceivedResponse:
        """After GO_AWAY: repeat the send over a new connection, if a broker still accepts one."""
        caller = self._instance.caller
        address = self._instance.master_of(queue.broker_name)
        if caller.open_connection(address) is connection:
            caller.retire(address, "going away")
        renewed = await self._connect(queue, deadline_s)
        return await self._ask(renewed, outgoing, queue, deadline_s)

    async def _require_timers(self, queue: MessageQueue, deadline_s: float) -> None:
        if await self._is_old(queue, deadline_s):
            raise MessageInvalid(
                f"broker {queue.broker_name} is older than RocketMQ 5.0 and would deliver a "
                "message with delay= or deliver_at= at once: use delay_level="
            )

    async def _is_old(self, queue: MessageQueue, deadline_s: float) -> bool:
        """Whether the queue's broker is older than RocketMQ 5.0.

        Raises:
            CallFailed: the broker did not answer.
        """
        address = self._instance.master_of(queue.broker_name)
        version = self._instance.broker_versions.get(address)
        if version is None:
            version = await self._ask_version(address, deadline_s)
        return version < VERSION_5

    async def _ask_version(self, address: str, deadline_s: float) -> int:
        """Brokers give their version in every answer; an empty heartbeat has no other effect."""
        instance = self._instance
        body = encode_heartbeat(Heartbeat(client_id=instance.client_id))
        left_ms = max(int((deadline_s - self._loop.time()) * 1000), 1)
        try:
            answer = await instance.call(
                address, RequestCode.HEART_BEAT, {}, body, timeout_ms=left_ms
            )
        except CallFailed as error:
            # The message was certainly not sent.
            raise CallFailed(f"{address} did not say which release it is: {error}") from error
        instance.broker_versions[address] = answer.version
        return answer.version

    # One way.

    async def send_oneway(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None = None,
        *,
        choose: Choose | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a message one-way: the broker does not answer.

        Raises:
            RouteMissing: no broker has the topic.
            NameServerUnreachable: no NameServer gave the topic's route.
            SendFailed: there is no connection to the broker.
            BackPressure: earlier bytes were not taken by the broker within ``timeout_ms``.
        """
        self._instance.require_open()
        began_s = self._loop.time()
        deadline_s = began_s + self._limit_ms(timeout_ms) / 1000
        size = len(outgoing.body)
        if not self.slots.take(size):
            await self.slots.wait(size, deadline_s)
        try:
            chosen = queue
            if chosen is None:
                route = await self._route(outgoing.topic, deadline_s)
                chosen = self._pick(route) if choose is None else choose(route.write_queues)
            try:
                connection = await self._connect(chosen, deadline_s)
            except (CallFailed, BrokerUnknown) as error:
                course = SendCourse(outgoing.topic, self._rules("never", queue))
                self._failed(course, chosen, error, began_s)
                course.outcome(self._ms_since(began_s))
                return
            self._tell_before(outgoing, chosen)
            self._hand_over(connection, outgoing, chosen)
            self._tell_after(outgoing, chosen, None, None, 0)
            await self._until_taken(connection, deadline_s)
        finally:
            self.slots.give_back(size)

    def _hand_over(self, connection: Connection, outgoing: Outgoing, queue: MessageQueue) -> None:
        frame = self._frames.encode(
            outgoing,
            queue,
            opaque=connection.take_opaque(),
            flag=FLAG_ONE_WAY,
            now_ms=self._instance.clock.now_ms(),
        )
        connection.send_whole(frame)

    async def _until_taken(self, connection: Connection, deadline_s: float) -> None:
        if connection.queued_bytes >= _ONE_WAY_BURST_BYTES:
            connection.flush()
            await asyncio.sleep(0)
        if connection.slow_since_s is not None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await connection.writable()
            except TimeoutError as error:
                raise BackPressure(
                    f"broker {connection.address} does not read what is sent to it: send more "
                    "slowly, or use send(), which waits for each answer"
                ) from error

    # Routes and connections.

    @property
    def topics(self) -> Collection[str]:
        """The topics that were sent to."""
        return self._pickers.keys()

    def _known_route(self, topic: str) -> TopicRoute | None:
        known = self._instance.routes.routes.get(topic)
        return known if known is not None and known.write_queues else None

    async def _route(self, topic: str, deadline_s: float) -> TopicRoute:
        known = self._known_route(topic)
        if known is not None:
            return known
        if self._template != _USUAL_TEMPLATE:
            self._instance.templates[topic] = self._template
        route = await self._newest_route(topic, deadline_s)
        waits = Waits()
        while route.awaits_master and not route.write_queues and self._loop.time() < deadline_s:
            await asyncio.sleep(min(waits.next_s(), max(deadline_s - self._loop.time(), 0.0)))
            route = await self._newest_route(topic, deadline_s)
        if not route.write_queues:
            raise RouteMissing(
                f"topic {topic!r} has no queue that may be written: its brokers "
                f"({', '.join(sorted({queue.broker_name for queue in route.data.queues}))}) have "
                "no master, or forbid writing to it; see `contrail topic route "
                f"{topic}`",
                topic=topic,
            )
        return route

    async def _newest_route(self, topic: str, deadline_s: float) -> TopicRoute:
        instance = self._instance
        try:
            async with asyncio.timeout_at(deadline_s):
                return await instance.refresh_route(topic, template=True)
        except TimeoutError as error:
            addresses = ", ".join(instance.settings.namesrv)
            raise NameServerUnreachable(
                f"no NameServer of {addresses} told in time where topic {topic!r} is: check that "
                "they are up, or give a longer timeout_ms"
            ) from error

    async def publish_queues(
        self, topic: str, timeout_ms: int | None = None
    ) -> tuple[MessageQueue, ...]:
        """The queues that messages of a topic may be sent to.

        Raises:
            RouteMissing: the topic has no route.
            NameServerUnreachable: no NameServer answered in time.
        """
        deadline_s = self._loop.time() + self._limit_ms(timeout_ms) / 1000
        return (await self._route(topic, deadline_s)).write_queues

    def _pick(self, route: TopicRoute, failed_broker: str | None = None) -> MessageQueue:
        picker = self._picker(route)
        if self._faults is not None:
            if failed_broker is not None:
                picker.restart(random.getrandbits(31))
            return self._faults.pick(picker, failed_broker, self._instance.clock.now_ms())
        if failed_broker is None:
            return picker.next()
        return picker.next_elsewhere(failed_broker)

    def _picker(self, route: TopicRoute) -> QueuePicker:
        entry = self._pickers.get(route.topic)
        if entry is not None and entry[0] is route:
            return entry[1]
        if len(self._pickers) >= _PICKERS_MAX:
            self._pickers.clear()
        # Clients that start together must not all begin with the same queue.
        start = entry[1].index if entry is not None else random.getrandbits(31)
        picker = QueuePicker(route.write_queues, start)
        self._pickers[route.topic] = (route, picker)
        if self._faults is not None:
            self._faults.forget_all_but(self._instance.routes.addresses)
        return picker

    def _open_connection(self, queue: MessageQueue) -> Connection | None:
        """The connection to a queue's master, if it is open."""
        instance = self._instance
        address = instance.routes.master_of(queue.broker_name)
        return None if address is None else instance.caller.open_connection(address)

    async def _connect(self, queue: MessageQueue, deadline_s: float) -> Connection:
        """The connection to a queue's master, made now if there is none.

        Raises:
            CallFailed: it cannot be made in time.
            BrokerUnknown: no route names the broker.
        """
        connection = self._open_connection(queue)
        if connection is not None:
            return connection
        instance = self._instance
        instance.require_open()
        if instance.routes.master_of(queue.broker_name) is None:
            await self._newest_route(queue.topic, deadline_s)
        address = instance.master_of(queue.broker_name)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await instance.caller.connection_to(address)
        except TimeoutError as error:
            raise CallFailed(f"{address} could not be reached in time") from error

    def _ms_since(self, started_s: float) -> int:
        return int((self._loop.time() - started_s) * 1000)

    # Hooks.

    def _tell_before(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        for hook in self.hooks:
            try:
                hook.before_send(outgoing, queue)
            except Exception:
                _log.exception("a hook failed before a send; the send goes on")

    def _tell_after(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        for hook in self.hooks:
            try:
                hook.after_send(outgoing, queue, receipt, error, cost_ms)
            except Exception:
                _log.exception("a hook failed after a send")


def _receipt(
    outgoing: Outgoing, queue: MessageQueue, status: SendStatus, response: ReceivedResponse
) -> SendReceipt:
    fields = response.fields
    try:
        queue_id = int(fields["queueId"])
        queue_offset = int(fields["queueOffset"])
    except (KeyError, ValueError) as error:
        raise CallFailed(
            f"broker {queue.broker_name} stored a message and did not say where: {fields}"
        ) from error
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    message_id = outgoing.unique_id
    if outgoing.is_batch and "batchUniqId" in fields:
        # The batch is stored as one record, under the one id of the whole.
        message_id = outgoing.properties[UNIQ_KEY]
    return SendReceipt(
        status,
        message_id,
        queue,
        queue_offset,
        fields.get("msgId", ""),
        fields.get("transactionId"),
        fields.get("recallHandle"),
        fields.get(MSG_REGION) or _DEFAULT_REGION,
        fields.get(TRACE_ON) != "false",
    )
