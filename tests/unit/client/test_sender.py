"""Sends against brokers in memory: where they go, and what happens when they fail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from contrail.client.message import MessageQueue, SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.client.sender import Sender
from contrail.client.settings import ClientSettings
from contrail.client.state.routes import RouteTable, TopicRoute
from contrail.clock import ManualClock
from contrail.errors import (
    BackPressure,
    BrokerRefused,
    CallFailed,
    CallTimedOut,
    MessageInvalid,
    NameServerUnreachable,
    RouteMissing,
    SendFailed,
    SendTimedOut,
)
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.command import ReceivedResponse, Request
from contrail.protocol.frames import FrameDecoder

T = TypeVar("T")
Answer = int | Exception | None
"""A response code, the exception of the call, or None for no answer."""


class FakeConnection:
    """Answers sends as its broker's script says; success when there is none."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.address = broker.address
        self.slow_since_s: float | None = None
        self.queued_bytes = 0
        self._opaque = 0

    def take_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    def ask(
        self, opaque: int, frame: bytes, code: int, timeout_ms: int
    ) -> asyncio.Future[ReceivedResponse]:
        (item,) = FrameDecoder().feed(frame)
        self.broker.asked.append(item)
        future: asyncio.Future[ReceivedResponse] = asyncio.get_running_loop().create_future()
        answer = self.broker.script.popleft() if self.broker.script else 0
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            fields = {"msgId": "AB", "queueId": "1", "queueOffset": "7", **self.broker.fields}
            future.set_result(
                ReceivedResponse(answer, opaque, f"remark {answer}", fields, b"", 479, "JAVA")
            )
        return future

    def send_whole(self, frame: bytes) -> None:
        self.broker.asked.extend(FrameDecoder().feed(frame))

    def flush(self) -> None:
        self.queued_bytes = 0

    async def writable(self) -> None:
        await asyncio.get_running_loop().create_future()


class FakeBroker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.address = f"{name}:10911"
        self.script: deque[Answer] = deque()
        self.fields: dict[str, str] = {}
        self.asked: list[Any] = []
        self.is_down = False
        self.connection: FakeConnection | None = FakeConnection(self)


class FakeInstance:
    """The parts of a client instance that a sender uses; its caller as well."""

    language = "PYTHON"

    def __init__(self, *names: str, topics: tuple[str, ...] = ("t",)) -> None:
        self.brokers = {f"{name}:10911": FakeBroker(name) for name in names}
        self.clock = ManualClock(1_700_000_000_000)
        self.routes = RouteTable()
        self.broker_versions: dict[str, int] = {}
        self.templates: dict[str, tuple[str, int]] = {}
        self.refreshed: list[str] = []
        self.retired: list[str] = []
        self.topics = topics
        self.perm = 6
        self.announced = 479
        self.client_id = "client"
        self.settings = ClientSettings.of("n1:9876;n2:9876")
        # Neither NameServers nor heartbeats are answered.
        self.is_silent = False
        # The addresses of names with other ids, as the NameServer has them.
        self.members: dict[str, dict[int, str]] = {}

    @property
    def loop(self) -> FakeInstance:
        """The loop that runs now: senders are made outside of it."""
        return self

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def caller(self) -> FakeInstance:
        return self

    def broker(self, name: str) -> FakeBroker:
        return self.brokers[f"{name}:10911"]

    def require_open(self) -> None: ...

    def open_connection(self, address: str) -> FakeConnection | None:
        return self.brokers[address].connection

    async def connection_to(self, address: str) -> FakeConnection:
        broker = self.brokers[address]
        if broker.is_down:
            raise CallFailed(f"{address} cannot be reached: refused")
        broker.connection = broker.connection or FakeConnection(broker)
        return broker.connection

    def retire(self, address: str, reason: str) -> None:
        self.retired.append(address)
        self.brokers[address].connection = None

    def master_of(self, broker_name: str) -> str:
        address = self.routes.master_of(broker_name)
        assert address is not None
        return address

    async def call(
        self, address: str, code: int, fields: dict[str, str], body: bytes, *, timeout_ms: int
    ) -> ReceivedResponse:
        if self.is_silent:
            raise CallTimedOut(f"{address} did not answer within {timeout_ms} ms")
        return ReceivedResponse(0, 1, "", {}, b"", self.announced, "JAVA")

    def refresh_soon(self, topic: str) -> None:
        self.refreshed.append(topic)

    def believe_leader(self, broker_name: str, address: str) -> bool:
        return self.routes.believe_leader(broker_name, address)

    async def refresh_route(self, topic: str, *, template: bool = False) -> TopicRoute:
        if self.is_silent:
            await asyncio.get_running_loop().create_future()
        if topic not in self.topics:
            raise RouteMissing(f"topic {topic!r} has no route", topic=topic)
        names = [broker.name for broker in self.brokers.values()]
        data = TopicRouteData(
            brokers=tuple(
                BrokerData(name, "c", self.members.get(name, {0: f"{name}:10911"}))
                for name in names
            ),
            queues=tuple(QueueData(name, 2, 2, self.perm) for name in names),
        )
        route = TopicRoute.of(topic, data)
        self.routes.put(route)
        return route


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def sender(instance: FakeInstance, **settings: Any) -> Sender:
    given: Any = instance
    return Sender(given, "g", ProducerSettings(**settings))


def outgoing(body: bytes = b"x", **properties: str) -> Outgoing:
    return Outgoing("t", body, {"UNIQ_KEY": "ID", **properties}, unique_id="ID")


def asked(instance: FakeInstance) -> list[str]:
    """The brokers that were asked, one by one, as long as there are two."""
    return [name for name, broker in _named(instance) for _ in broker.asked]


def _named(instance: FakeInstance) -> list[tuple[str, FakeBroker]]:
    return [(broker.name, broker) for broker in instance.brokers.values()]


def fail_everywhere(instance: FakeInstance, *answers: Answer) -> None:
    """The first attempts get these answers, whichever broker they go to."""
    script = deque(answers)
    for broker in instance.brokers.values():
        broker.script = script


async def failing(make: Callable[[Sender], Coroutine[Any, Any, T]], send: Sender) -> Exception:
    with pytest.raises(SendFailed) as caught:
        await make(send)
    return caught.value


def test_a_receipt_has_the_messages_place() -> None:
    instance = FakeInstance("a")
    instance.broker("a").fields = {"transactionId": "TX", "recallHandle": "H", "TRACE_ON": "false"}
    receipt = run(sender(instance).send(outgoing()))
    assert receipt == SendReceipt(
        SendStatus.SEND_OK,
        "ID",
        MessageQueue("t", "a", 1),
        7,
        "AB",
        "TX",
        "H",
        "DefaultRegion",
        trace_on=False,
    )
    assert not instance.refreshed


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_stored_but_below_send_ok_is_a_receipt(code: int, status: SendStatus) -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, code)
    assert run(sender(instance).send(outgoing())).status is status
    assert len(asked(instance)) == 1


@pytest.mark.proves("client.producer.retries")
def test_stored_but_below_send_ok_is_tried_on_another_broker_when_set() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, 10, 0)
    sending = sender(instance, retry_another_broker_when_not_store_ok=True)
    assert run(sending.send(outgoing())).status is SendStatus.SEND_OK
    assert asked(instance) == ["a", "b"]
    fail_everywhere(instance, 10, 10, 11)
    assert run(sending.send(outgoing())).status is SendStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.proves("client.producer.retries")
@pytest.mark.parametrize("failure", [1, 2, 14, 16, 17, 204, 205, CallFailed("gone")])
def test_a_synchronous_send_is_tried_on_the_other_broker(failure: Answer) -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, failure)
    assert run(sender(instance).send(outgoing())).status is SendStatus.SEND_OK
    assert asked(instance) == ["a", "b"]
    assert instance.refreshed == ["t"]


def test_a_synchronous_send_fails_after_three_attempts_and_lists_them() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, CallFailed("gone"), 2, 14)
    error = run(failing(lambda send: send.send(outgoing()), sender(instance)))
    assert isinstance(error, SendFailed)
    assert len(error.attempts) == 3
    assert "gone" in error.attempts[0]
    assert "SYSTEM_BUSY: remark 2" in error.attempts[1]
    assert "SERVICE_NOT_AVAILABLE: remark 14" in error.attempts[2]


def test_an_answer_that_other_brokers_would_repeat_is_final() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, 13)
    error = run(failing(lambda send: send.send(outgoing()), sender(instance)))
    assert isinstance(error.__cause__, BrokerRefused)
    assert error.__cause__.code == 13
    assert len(asked(instance)) == 1


@pytest.mark.proves("client.producer.retries")
def test_an_asynchronous_send_stays_on_its_broker() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, CallFailed("gone"), CallFailed("gone"))
    assert run(sender(instance).send(outgoing(), retry="async")).status is SendStatus.SEND_OK
    assert asked(instance) in (["a"] * 3, ["b"] * 3)


def test_an_asynchronous_send_that_was_refused_is_not_retried() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, 2)
    run(failing(lambda send: send.send(outgoing(), retry="async"), sender(instance)))
    assert len(asked(instance)) == 1


def test_a_chosen_queue_is_the_only_one_tried() -> None:
    instance = FakeInstance("a", "b")
    run(instance.refresh_route("t"))
    queue = MessageQueue("t", "b", 1)
    fail_everywhere(instance, CallFailed("gone"))
    run(failing(lambda send: send.send(outgoing(), queue=queue), sender(instance)))
    assert asked(instance) == ["b"]


def test_a_broker_that_cannot_be_reached_is_skipped() -> None:
    instance = FakeInstance("a", "b")
    instance.broker("a").is_down = True
    instance.broker("a").connection = None

    async def send() -> None:
        sending = sender(instance)
        for _ in range(8):
            assert (await sending.send(outgoing())).queue.broker_name == "b"

    run(send())
    assert asked(instance) == ["b"] * 8


@pytest.mark.proves("client.producer.timeouts")
def test_no_answer_in_time_says_that_the_message_may_be_stored() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, *[CallTimedOut("a:10911 did not answer")] * 3)
    error = run(failing(lambda send: send.send(outgoing()), sender(instance)))
    assert isinstance(error, SendTimedOut)


@pytest.mark.proves("client.producer.timeouts")
def test_no_attempt_begins_after_the_time_is_over() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, *[CallFailed("gone")] * 3)
    error = run(failing(lambda send: send.send(outgoing(), timeout_ms=0), sender(instance)))
    assert "no time was left" in str(error)
    assert not asked(instance)


def test_a_broker_that_sent_go_away_is_asked_again_over_a_new_connection() -> None:
    instance = FakeInstance("a")
    fail_everywhere(instance, 1500, 0)
    first = instance.broker("a").connection
    assert run(sender(instance).send(outgoing())).status is SendStatus.SEND_OK
    assert instance.retired == ["a:10911"]
    assert instance.broker("a").connection is not first


def test_a_topic_without_a_route_is_named() -> None:
    with pytest.raises(RouteMissing, match="'t' has no route"):
        run(sender(FakeInstance("a", topics=())).send(outgoing()))


def test_a_topic_without_write_permission_names_its_brokers() -> None:
    instance = FakeInstance("a", "b")
    instance.perm = 4
    with pytest.raises(RouteMissing, match=r"no queue that may be written.*a, b"):
        run(sender(instance).send(outgoing()))


def test_another_template_is_passed_to_the_client() -> None:
    instance = FakeInstance("a")
    run(sender(instance).send(outgoing()))
    assert not instance.templates
    del instance.routes.routes["t"]
    run(sender(instance, create_topic_key="MINE", default_topic_queue_nums=8).send(outgoing()))
    assert instance.templates == {"t": ("MINE", 8)}


def test_a_newer_route_is_requested_when_the_known_one_has_no_other_broker() -> None:
    instance = FakeInstance("a", "b")
    b = instance.brokers.pop("b:10911")
    run(instance.refresh_route("t"))
    instance.brokers[b.address] = b
    instance.broker("a").script = deque([CallFailed("gone")])
    assert run(sender(instance).send(outgoing())).queue.broker_name == "b"


def test_queues_take_turns() -> None:
    instance = FakeInstance("a", "b")

    async def send() -> None:
        sending = sender(instance)
        for _ in range(8):
            await sending.send(outgoing())

    run(send())
    assert asked(instance) == ["a"] * 4 + ["b"] * 4


@pytest.mark.proves("client.producer.latency-fault")
@pytest.mark.parametrize("failure", [14, CallTimedOut("it hangs")])
def test_a_broker_that_failed_is_avoided_when_latency_faults_are_on(failure: Answer) -> None:
    instance = FakeInstance("a", "b")

    async def send() -> list[str]:
        sending = sender(instance, send_latency_fault_enable=True)
        fail_everywhere(instance, failure)
        return [(await sending.send(outgoing())).queue.broker_name for _ in range(7)]

    (name,) = set(run(send()))
    assert sorted(len(broker.asked) for broker in instance.brokers.values()) == [1, 7]
    assert len(instance.broker(name).asked) == 7


def test_a_timer_is_refused_for_a_broker_that_has_none() -> None:
    instance = FakeInstance("a")
    instance.announced = 409
    with pytest.raises(MessageInvalid, match=r"older than RocketMQ 5.0.*delay_level="):
        run(sender(instance).send(outgoing(TIMER_DELAY_SEC="3")))
    instance.broker_versions.clear()
    instance.announced = 413
    assert run(sender(instance).send(outgoing(TIMER_DELAY_SEC="3")))


def test_a_timer_is_not_sent_to_a_broker_of_unknown_version() -> None:
    instance = FakeInstance("a")
    run(instance.refresh_route("t"))
    instance.is_silent = True
    sending = sender(instance, retry_times_when_send_failed=0)
    error = run(failing(lambda send: send.send(outgoing(TIMER_DELAY_SEC="3")), sending))
    assert "did not say which release it is" in str(error)
    assert not isinstance(error, SendTimedOut)
    assert not asked(instance)


@pytest.mark.parametrize(
    "work",
    [
        lambda send: send.send(outgoing(), timeout_ms=20),
        lambda send: send.send(outgoing(), choose=lambda queues: queues[0], timeout_ms=20),
        lambda send: send.send(outgoing(), queue=MessageQueue("t", "a", 0), timeout_ms=20),
        lambda send: send.send_oneway(outgoing(), timeout_ms=20),
        lambda send: send.publish_queues("t", 20),
    ],
)
def test_the_timeout_holds_for_the_search_for_a_route_too(
    work: Callable[[Sender], Coroutine[Any, Any, object]],
) -> None:
    instance = FakeInstance("a")
    instance.is_silent = True

    async def send() -> None:
        async with asyncio.timeout(60):
            with pytest.raises(NameServerUnreachable, match=r"n1:9876, n2:9876.*'t'.*timeout_ms"):
                await work(sender(instance))

    run(send())


def test_a_queue_is_chosen_once_the_queues_are_known_and_is_the_only_one() -> None:
    instance = FakeInstance("a", "b")
    fail_everywhere(instance, CallFailed("gone"))
    sending = sender(instance)
    run(failing(lambda send: send.send(outgoing(), choose=lambda queues: queues[-1]), sending))
    assert asked(instance) == ["b"]
    run(sending.send_oneway(outgoing(), choose=lambda queues: queues[0]))
    assert asked(instance) == ["a", "b"]


def test_an_inner_batch_has_one_id() -> None:
    instance = FakeInstance("a")
    batch = Outgoing("t", b"x", {"UNIQ_KEY": "WHOLE"}, unique_id="A,B", is_batch=True)
    assert run(sender(instance).send(batch)).message_id == "A,B"
    instance.broker("a").fields = {"batchUniqId": "WHOLE"}
    assert run(sender(instance).send(batch)).message_id == "WHOLE"


def test_an_answer_without_offsets_is_no_receipt() -> None:
    instance = FakeInstance("a")
    instance.broker("a").fields = {"queueOffset": "far"}
    error = run(failing(lambda send: send.send(outgoing()), sender(instance)))
    assert "did not say where" in str(error)


@pytest.mark.proves("client.producer.back-pressure")
def test_too_many_sends_under_way_are_refused_after_the_timeout() -> None:
    instance = FakeInstance("a")
    instance.broker("a").script = deque([None])

    async def send() -> None:
        sending = sender(instance, in_flight_count_max=1)
        first = asyncio.create_task(sending.send(outgoing()))
        await asyncio.sleep(0)
        with pytest.raises(BackPressure):
            await sending.send(outgoing(), timeout_ms=1)
        with pytest.raises(BackPressure):
            await sending.send_oneway(outgoing(), timeout_ms=1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert sending.slots.count == 0
        assert await sending.send(outgoing())

    run(send())


@pytest.mark.proves("client.producer.retries")
def test_one_way_is_sent_once_and_answers_nothing() -> None:
    instance = FakeInstance("a")
    assert run(sender(instance).send_oneway(outgoing())) is None
    (send,) = instance.broker("a").asked
    flag = send.flag if isinstance(send, Request) else send[1]
    assert flag == 2


def test_one_way_to_a_broker_that_is_down_fails_at_once() -> None:
    instance = FakeInstance("a")
    instance.broker("a").is_down = True
    instance.broker("a").connection = None
    error = run(failing(lambda send: send.send_oneway(outgoing()), sender(instance)))
    assert "1 attempt " in str(error)


def test_one_way_waits_for_a_broker_that_does_not_read() -> None:
    instance = FakeInstance("a")
    connection = instance.broker("a").connection
    assert connection is not None
    connection.slow_since_s = 1.0
    with pytest.raises(BackPressure, match="does not read"):
        run(sender(instance).send_oneway(outgoing(), timeout_ms=1))


class Witness:
    def __init__(self, problem: Exception | None = None) -> None:
        self.seen: list[str] = []
        self._problem = problem

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        outgoing.properties["seen"] = "yes"
        if self._problem is not None:
            raise self._problem

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        self.seen.append("stored" if receipt else type(error).__name__ if error else "one-way")
        if self._problem is not None:
            raise self._problem


def test_hooks_see_every_attempt_and_may_add_properties() -> None:
    instance, witness = FakeInstance("a", "b"), Witness()
    sending = sender(instance)
    sending.hooks.append(witness)
    fail_everywhere(instance, CallFailed("gone"), 2)
    run(sending.send(outgoing()))
    run(sending.send_oneway(outgoing()))
    assert witness.seen == ["CallFailed", "BrokerRefused", "stored", "one-way"]
    requests = [item for broker in instance.brokers.values() for item in broker.asked]
    assert len(requests) == 4
    assert all(b"seen\x01yes" in item[11][3] for item in requests)


def test_a_hook_that_fails_does_not_fail_the_send(caplog: pytest.LogCaptureFixture) -> None:
    sending = sender(FakeInstance("a"))
    sending.hooks.append(Witness(ValueError("oops")))
    assert run(sending.send(outgoing()))
    assert "oops" in caplog.text
