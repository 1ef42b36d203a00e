"""Sends, pauses and requests where the master of a broker's name changes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.leader_watch import LeaderWatch
from contrail.client.message import MessageQueue, SendReceipt
from contrail.client.outgoing import Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.client.pulling import follow_leader
from contrail.client.queue_locks import QueueLocks
from contrail.client.refusals import refused
from contrail.client.sender import Sender
from contrail.client.settings import ClientSettings
from contrail.client.sides import ProducerSide
from contrail.client.state.leader_changes import ShortPauses, Waits, may_have_moved
from contrail.client.state.routes import RouteTable, TopicRoute
from contrail.client.state.send_retry import Next, RetryRules, RetryStyle, SendCourse
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    CallTimedOut,
    ClientError,
    SendFailed,
    SendTimedOut,
)
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.wire.caller import Caller
from tests.fakes.loops import run_jumping as run
from tests.unit.client.test_sender import Answer, FakeBroker, FakeInstance

pytestmark = pytest.mark.proves("replication.failover.client")

A, B, C = "a0:1", "a1:1", "a2:1"
MEMBERS = {0: A, 1: B, 2: C}
NOT_LEADING, IN_DOUBT = {"contrailLeader": B}, {"contrailInDoubt": "true"}


class Member(FakeBroker):
    """A broker of a name; answers by its script, and with the fields of refusals."""

    def __init__(self, address: str) -> None:
        super().__init__("a")
        self.address = address


class Group(FakeInstance):
    """Brokers of the name ``a``; the NameServer names another leader when the test says so."""

    def __init__(self, *others: str) -> None:
        super().__init__(*others)
        self.ids = dict(MEMBERS)
        self.group = {address: Member(address) for address in MEMBERS.values()}
        self.brokers.update(self.group)
        self.routes_asked = 0
        # After so many more routes the NameServer knows this leader.
        self.elected: tuple[int, str] | None = None

    async def refresh_route(self, topic: str, *, template: bool = False) -> TopicRoute:
        self.routes_asked += 1
        if self.elected is not None and self.routes_asked >= self.elected[0]:
            self.lead(self.elected[1])
        names = ["a", *(one.name for one in self.brokers.values() if one.name != "a")]
        data = TopicRouteData(
            brokers=tuple(
                BrokerData(name, "c", self.ids if name == "a" else {0: f"{name}:10911"})
                for name in names
            ),
            queues=tuple(QueueData(name, 1, 1, 6) for name in names),
        )
        self.routes.put(route := TopicRoute.of(topic, data))
        return route

    def lead(self, address: str | None) -> None:
        """A NameServer's view: who leads, or nobody."""
        self.ids = {number: one for number, one in MEMBERS.items() if one != address and number}
        if address is not None:
            self.ids[0] = address

    def kill(self, address: str) -> None:
        self.group[address].connection = None
        self.group[address].is_down = True

    def asked_of(self, address: str) -> int:
        return len(self.group[address].asked)


def send(group: Group, *, retry: RetryStyle = "sync", own: bool = False, **settings: Any) -> Any:
    async def work() -> SendReceipt:
        await group.refresh_route("t")
        given: Any = group
        message = Outgoing("t", b"x", {"UNIQ_KEY": "ID"}, unique_id="ID")
        sender = Sender(given, "g", ProducerSettings(**settings))
        queue = MessageQueue("t", "a", 0) if own else None
        return await sender.send(message, queue=queue, retry=retry)

    return run(work())


@pytest.mark.parametrize("retry", ["sync", "async"])
@pytest.mark.parametrize("own", [False, True])
def test_a_send_goes_on_at_the_next_leader_after_the_first_one_died(
    retry: RetryStyle, own: bool
) -> None:
    group = Group()
    group.kill(A)
    group.elected = (8, B)
    assert send(group, retry=retry, own=own, retry_times_when_send_failed=0)
    assert group.asked_of(B) == 1
    # 50, 100, 200 ms and then 400 each: more attempts than there are retries, no storm of them.
    assert 6 <= group.routes_asked <= 10


@pytest.mark.parametrize("failure", [14, CallFailed("gone"), CallTimedOut("closed it")])
def test_no_retry_is_spent_while_the_leader_is_looked_for(failure: Answer) -> None:
    group = Group()
    group.group[A].script = deque([failure] * 6)
    assert send(group, retry_times_when_send_failed=2)
    assert group.asked_of(A) == 7


def test_a_send_that_finds_no_leader_in_time_says_that_nothing_is_stored() -> None:
    group = Group()
    group.group[A].script = deque([14] * 100)
    with pytest.raises(SendFailed, match="not sent") as caught:
        send(group, send_timeout_ms=3_000)
    assert not isinstance(caught.value, SendTimedOut)
    # The error tells the first attempts and the last one.
    assert len(caught.value.attempts) == 10
    assert 8 <= group.asked_of(A) <= 13


@pytest.mark.proves("replication.failover.in-doubt")
def test_a_send_in_doubt_says_so_whatever_is_refused_after_it() -> None:
    course = SendCourse("t", RetryRules(style="sync", retry_count=2, has_own_queue=True))
    doubtful = BrokerRefused("no majority", code=1, remark="", is_in_doubt=True)
    assert course.failed("a", doubtful, 1, is_replicated=True) is Next.NEXT_LEADER
    refusal = BrokerRefused("not leading", code=14, remark="")
    assert course.failed("a", refusal, 1, is_replicated=True) is Next.NEXT_LEADER
    with pytest.raises(SendTimedOut, match="may be stored"):
        course.outcome(3_000)


def test_a_send_in_doubt_is_repeated_at_the_next_leader() -> None:
    group = Group()
    group.group[A].script = deque([1, 14])
    group.group[A].fields = IN_DOUBT
    group.elected = (3, B)
    assert send(group)
    assert group.asked_of(B) == 1


def test_without_retries_a_message_that_may_be_stored_is_not_sent_again() -> None:
    group = Group()
    group.group[A].script = deque([CallTimedOut("closed it")])
    with pytest.raises(SendTimedOut):
        send(group, retry_times_when_send_failed=0)
    assert group.asked_of(A) == 1


def test_a_leader_that_a_member_names_is_asked_at_once_and_only_if_the_route_has_it() -> None:
    group = Group()
    group.group[A].script = deque([14] * 3)
    group.group[A].fields = NOT_LEADING
    assert send(group)
    assert (group.asked_of(A), group.asked_of(B), group.routes_asked) == (1, 1, 1)
    stranger = Group()
    stranger.group[A].script = deque([14])
    stranger.group[A].fields = {"contrailLeader": "evil:1"}
    assert send(stranger)
    assert stranger.asked_of(A) == 2


def test_members_that_name_each_other_are_not_asked_without_end() -> None:
    group = Group()
    for one, other in ((A, B), (B, A)):
        group.group[one].script = deque([14] * 1_000)
        group.group[one].fields = {"contrailLeader": other}
    with pytest.raises(SendFailed):
        send(group)
    assert group.asked_of(A) + group.asked_of(B) <= 14


def test_another_name_is_sent_to_without_a_pause_while_one_has_no_leader() -> None:
    group = Group("b")
    group.kill(A)
    for _ in range(4):
        assert send(group).queue.broker_name == "b"
        group.routes = RouteTable()


def test_a_send_waits_for_the_first_leader_of_a_route_that_names_none() -> None:
    group = Group()
    group.lead(None)
    group.elected = (5, C)
    assert send(group)
    assert group.asked_of(C) == 1


def test_a_name_without_other_ids_keeps_rocketmqs_rules() -> None:
    course = SendCourse("t", RetryRules(style="sync", retry_count=2, has_own_queue=True))
    assert course.failed("a", CallFailed("gone"), 1) is Next.STOP
    other = SendCourse("t", RetryRules(style="never", retry_count=2))
    assert other.failed("a", CallFailed("gone"), 1, is_replicated=True) is Next.STOP


@pytest.mark.parametrize("code", [1, 2, 13, 16, 204])
def test_other_refusals_are_no_sign_of_a_new_leader(code: int) -> None:
    assert not may_have_moved(BrokerRefused("no", code=code, remark=""))
    course = SendCourse("t", RetryRules(style="sync", retry_count=1, has_own_queue=False))
    refusal = BrokerRefused("no", code=code, remark="")
    assert course.failed("a", refusal, 1, is_replicated=True) is not Next.NEXT_LEADER


@pytest.mark.proves("replication.failover.in-doubt")
def test_an_answer_in_doubt_is_told_apart_from_a_refusal() -> None:
    def answered(code: int, fields: dict[str, str]) -> BrokerRefused:
        return refused(ReceivedResponse(code, 1, "why", fields, b"", 479, "JAVA"), "it", "a")

    doubtful, certain = answered(1, IN_DOUBT), answered(14, NOT_LEADING)
    assert doubtful.is_in_doubt and "did not confirm" in str(doubtful)
    assert not certain.is_in_doubt and certain.leader == B
    assert may_have_moved(doubtful) and may_have_moved(certain)
    assert not may_have_moved(answered(1, {}))


def test_pauses_grow_to_their_bounds() -> None:
    waits = Waits()
    assert [waits.next_s() for _ in range(5)] == [0.05, 0.1, 0.2, 0.4, 0.4]
    assert waits.next_s(knows_leader=True) == 0
    assert waits.next_s(knows_leader=True) == 0.4
    pauses = ShortPauses()
    assert [pauses.next_s(1.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    pauses.reset()
    assert pauses.next_s(0.05) == 0.05


# Requests of consumers, heartbeats and silent masters, with a client instance of its own.


class Calls(Caller):
    """Answers all calls but heartbeats by script, and keeps connections that tests make silent."""

    def __init__(self) -> None:
        super().__init__()
        self.script: dict[str, deque[ReceivedResponse | Exception]] = {}
        self.called: list[tuple[str, int]] = []
        self.silent: dict[str, SilentConnection] = {}

    async def call(self, address: str, code: int, *_: Any, **__: Any) -> ReceivedResponse:
        self.called.append((address, code))
        script = None if code == RequestCode.HEART_BEAT else self.script.get(address)
        answer = script.popleft() if script else response(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open_connection(self, address: str) -> Any:
        return self.silent.get(address)


class SilentConnection:
    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.given_up: list[str] = []

    def oldest_call_s(self, *, besides: frozenset[int]) -> float:
        assert RequestCode.PULL_MESSAGE in besides
        return self.began_s

    def give_up_calls(self, began_until_s: float, reason: str) -> None:
        if self.began_s <= began_until_s:
            self.given_up.append(reason)


class Producing:
    """A producer, as far as heartbeats need one."""

    group = "g"

    def topics(self) -> tuple[str, ...]:
        return ()


class OneRoute:
    """NameServers that name the leader of the moment."""

    def __init__(self) -> None:
        self.leader: str | None = A
        self.asked = 0

    async def route(self, topic: str) -> TopicRouteData:
        self.asked += 1
        ids = {number: one for number, one in MEMBERS.items() if number and one != self.leader}
        if self.leader is not None:
            ids[0] = self.leader
        return TopicRouteData(
            brokers=(BrokerData("a", "c", ids),), queues=(QueueData("a", 1, 1, 6),)
        )


def response(code: int, **fields: str) -> ReceivedResponse:
    return ReceivedResponse(code, 1, "why", fields, b"", 479, "JAVA")


def with_client(work: Any) -> Any:
    async def around() -> Any:
        client = ClientInstance(ClientSettings.of("n:9876"))
        caller, names = Calls(), OneRoute()
        given: Any = client
        given.caller, given.name_servers = caller, names
        client._leaders = LeaderWatch(client.routes, caller, client.refresh_soon)
        client.add_producer(cast(ProducerSide, Producing()))
        await client.route("t")
        await asyncio.sleep(0)
        try:
            return await work(client, caller, names)
        finally:
            await client.close()

    return run(around())


async def commit(client: ClientInstance, timeout_ms: int = 5_000) -> ReceivedResponse:
    return await client.ask_master(
        "a", "t", RequestCode.UPDATE_CONSUMER_OFFSET, {}, what="progress", timeout_ms=timeout_ms
    )


def asked_by(caller: Calls, code: RequestCode) -> list[str]:
    return [address for address, asked in caller.called if asked == code]


def test_a_request_to_the_master_follows_it() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        caller.script[A] = deque([CallFailed("gone"), response(14), CallTimedOut("closed it")] * 9)
        names.leader = None
        asyncio.get_running_loop().call_later(2.0, lambda: setattr(names, "leader", C))
        await commit(client)
        assert asked_by(caller, RequestCode.UPDATE_CONSUMER_OFFSET)[-1] == C

    with_client(work)


def test_a_request_that_finds_no_leader_ends_with_its_time() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        caller.script[A] = deque([response(14)] * 99)
        with pytest.raises(BrokerRefused):
            await commit(client, 1_000)
        assert len(asked_by(caller, RequestCode.UPDATE_CONSUMER_OFFSET)) <= 6
        caller.script[A] = deque([response(2)])
        with pytest.raises(BrokerRefused, match="SYSTEM_BUSY"):
            await commit(client)
        names.leader = None
        await client.refresh_route("t")
        with pytest.raises(BrokerUnknown):
            await commit(client, 1_000)

    with_client(work)


def test_a_read_goes_to_another_member_while_there_is_no_leader() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        names.leader = None
        await client.refresh_route("t")
        code = RequestCode.QUERY_CONSUMER_OFFSET
        await client.ask_master("a", "t", code, what="it", timeout_ms=1_000, reads=True)
        assert asked_by(caller, code) == [B]

    with_client(work)


def test_a_new_master_gets_a_heartbeat_at_once_even_if_it_led_before() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        for leader in (B, A):
            caller.called.clear()
            names.leader = leader
            await client.refresh_route("t")
            await asyncio.sleep(0.01)
            assert leader in asked_by(caller, RequestCode.HEART_BEAT)

    with_client(work)


def test_a_silent_master_has_its_route_asked_for_and_its_requests_freed_once_another_leads() -> (
    None
):
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        now_s = client.loop.time()
        caller.silent[A] = stopped = SilentConnection(now_s)
        await asyncio.sleep(1.2)
        assert names.asked == 1
        await asyncio.sleep(1.0)
        # Nobody leads in its place: the answer may still come.
        assert names.asked >= 2 and not stopped.given_up
        names.leader = B
        await asyncio.sleep(0.6)
        assert stopped.given_up

    with_client(work)


def test_pulls_of_a_former_master_are_freed_as_well_after_the_same_time() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        caller.silent[A] = held = SilentConnection(client.loop.time() + 0.5)
        names.leader = B
        await client.refresh_route("t")
        await asyncio.sleep(1.5)
        assert not held.given_up
        await asyncio.sleep(1.0)
        assert held.given_up

    with_client(work)


def test_only_addresses_of_the_route_are_believed_to_lead() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        assert not client.believe_leader("a", "evil:1")
        assert not client.believe_leader("b", B)
        assert not client.believe_leader("a", A)
        assert client.believe_leader("a", B)
        assert client.master_of("a") == B
        # No address of the name is lost.
        assert {address for _, _, address in client.routes.all_addresses()} == {A, B, C}
        with pytest.raises(ClientError):
            client.master_of("b")

    with_client(work)


def test_a_reader_comes_back_soon_only_where_another_broker_may_lead() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        moved = BrokerRefused("not leading", code=14, remark="", leader=B)
        assert follow_leader(client, "a", moved)
        assert client.master_of("a") == B
        lost = ClientError("pulling")
        lost.__cause__ = CallFailed("gone")
        assert follow_leader(client, "a", lost)
        assert not follow_leader(client, "a", ClientError("unreadable"))
        assert not follow_leader(client, "a", BrokerRefused("busy", code=2, remark=""))
        assert not follow_leader(client, "b", moved)

    with_client(work)


def test_locks_are_asked_for_at_the_next_leader() -> None:
    async def work(client: ClientInstance, caller: Calls, names: OneRoute) -> None:
        queue = MessageQueue("t", "a", 0)
        body = encode_body({"lockOKMQSet": [queue.to_fields()]})
        caller.script[A] = deque([response(14, contrailLeader=B)])
        caller.script[B] = deque([response(0)._replace(body=body)])
        assert queue in await QueueLocks(client, "g").lock([queue])
        assert asked_by(caller, RequestCode.LOCK_BATCH_MQ) == [A, B]

    with_client(work)
