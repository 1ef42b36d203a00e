"""Long SQL92 expressions are compiled by a thread, and requests that wait keep their order."""

from __future__ import annotations

import gc
import threading

import pytest

from contrail.broker.services import long_expressions
from contrail.broker.services.long_expressions import (
    LOOP_CHARACTERS_MAX,
    WAITING_PER_PEER_MAX,
    LongExpressions,
)
from contrail.broker.state.sql92 import Sql92Filter
from contrail.errors import FilterInvalid
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import (
    ConsumerData,
    Heartbeat,
    encode_heartbeat,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.testing import LocalCluster
from contrail.wire.peer import LATER, Answer, Peer
from contrail.wire.router import RequestRouter
from tests.e2e.asking import Asker
from tests.fakes.peers import FakePeer

BEAT, BYE, PULL = (
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.PULL_MESSAGE,
)


def expression(number: int, characters: int = 2000) -> str:
    return " OR ".join([f"a = {number}"] * (characters // 10))


def heartbeat(*texts: str, group: str = "g") -> bytes:
    entries = tuple(
        SubscriptionData(f"t{number}", text, expression_type="SQL92", sub_version=1)
        for number, text in enumerate(texts)
    )
    return encode_heartbeat(
        Heartbeat("c@1", consumers=(ConsumerData(group, subscriptions=entries),))
    )


class Room:
    """The guard around handlers that note what they are called with; threads run by hand."""

    def __init__(self) -> None:
        self.expressions = LongExpressions()
        self.handled: list[tuple[int, int]] = []
        self.jobs: list[tuple[object, list[str]]] = []
        self.compiled: list[tuple[str, str]] = []
        self.expressions._submit = lambda key, texts: self.jobs.append((key, list(texts)))  # type: ignore[method-assign]
        handlers = self.expressions.guarded({BEAT: self.note, BYE: self.note, PULL: self.note})
        self.router = RequestRouter(handlers)
        self.handlers = handlers
        self.expressions.begin(self, self.router.finish)

    def note(self, request: Request, peer: Peer) -> Answer:
        self.handled.append((request.code, request.opaque))
        return Response(remark="done")

    def call_soon_threadsafe(self, callback: object, *given: object) -> object:
        return callback(*given)  # type: ignore[operator]

    def work(self) -> None:
        """Do the thread's work, and nothing that follows from it."""
        jobs, self.jobs = self.jobs, []
        for key, texts in jobs:
            self.expressions._compile_all(key, texts)


def test_short_and_known_expressions_do_not_wait() -> None:
    room, peer = Room(), FakePeer()
    for body in (heartbeat("a = 1"), heartbeat(*["a = 1"] * 200), b"x" * 9999):
        assert room.handlers[BEAT](Request(BEAT, 1, {}, body), peer) is not LATER
    kept = room.expressions.compile(expression(1))
    assert room.handlers[BEAT](Request(BEAT, 1, {}, heartbeat(expression(1))), peer) is not LATER
    assert room.expressions.compile(expression(1)) is kept


def test_many_short_expressions_are_long_together() -> None:
    room = Room()
    texts = [f"a = {number}" for number in range(200)]
    assert room.handlers[BEAT](Request(BEAT, 1, {}, heartbeat(*texts)), FakePeer()) is LATER
    assert room.jobs[0][1] == texts


@pytest.mark.proves("broker.slices.sliced")
def test_heartbeats_and_goodbyes_of_a_connection_keep_their_order() -> None:
    room, peer, other = Room(), FakePeer(), FakePeer()
    asked = [(BEAT, heartbeat(expression(1))), (BYE, b""), (BEAT, heartbeat(expression(2)))]
    for opaque, (code, body) in enumerate([*asked, (BYE, b"")]):
        assert room.handlers[code](Request(code, opaque, {}, body), peer) is LATER
    assert peer.in_flight_count == 4 == len(room.expressions)
    # No other connection waits, nor do pulls of that connection.
    assert room.handlers[BYE](Request(BYE, 90, {}), other) is not LATER
    assert room.handlers[PULL](Request(PULL, 91, {"subscription": "*"}), peer) is not LATER
    room.handled.clear()
    room.work()
    assert room.handled == [(BEAT, 0), (BYE, 1)]
    room.work()
    assert room.handled == [(BEAT, 0), (BYE, 1), (BEAT, 2), (BYE, 3)]
    assert [request.opaque for request, _ in peer.replies] == [0, 1, 2, 3]
    assert peer.in_flight_count == 0 == len(room.expressions)


def test_a_request_of_a_connection_that_is_gone_is_dropped() -> None:
    room, peer = Room(), FakePeer()
    room.handlers[BEAT](Request(BEAT, 1, {}, heartbeat(expression(1))), peer)
    peer.is_closed = True
    room.work()
    assert room.handled == [] and peer.in_flight_count == 0 == len(room.expressions)


@pytest.mark.proves("broker.slices.sliced")
def test_waiting_requests_are_bounded_and_refused_at_the_end() -> None:
    room, peer = Room(), FakePeer()
    pull = {"subscription": expression(1), "expressionType": "SQL92"}
    for opaque in range(WAITING_PER_PEER_MAX):
        assert room.handlers[PULL](Request(PULL, opaque, pull), peer) is LATER
    room.router.handle(Request(PULL, 99, pull), peer)  # type: ignore[arg-type]
    assert peer.replies[-1][1].code == ResponseCode.SYSTEM_BUSY
    room.expressions.close()
    codes = {response.code for _, response in peer.replies[1:]}
    assert codes == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert len(peer.replies) == 1 + WAITING_PER_PEER_MAX
    room.work()
    assert room.handled == []


def test_a_bounded_number_of_pulls_expressions_is_kept_and_forgetting_announced() -> None:
    expressions, told = LongExpressions(), []
    expressions.on_forgotten.append(lambda: told.append(1))
    for number in range(200):
        expressions.compile_for_pull(f"a = {number}")
        assert len(expressions._recent) <= 64
    assert len(told) == 3
    for number in range(8):
        expressions.compile_for_pull(expression(number, 8000))
    gc.collect()
    assert sum(map(len, expressions._live)) <= 64 * 512


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each compilation."""
    names: list[str] = []
    compile_sql = long_expressions.compile_sql

    def noted(text: str) -> Sql92Filter:
        if len(text) > LOOP_CHARACTERS_MAX:
            names.append(threading.current_thread().name)
        return compile_sql(text)

    monkeypatch.setattr(long_expressions, "compile_sql", noted)
    return names


@pytest.mark.proves("broker.slices.sliced")
def test_a_broker_compiles_long_expressions_off_its_loop_and_once(threads: list[str]) -> None:
    long, bad = expression(7, 16_000), expression(8, 16_000) + " OR"
    with LocalCluster() as cluster:
        broker = Asker(cluster)
        for topic in ("t0", "t1"):
            broker.make_topic(topic)
        for _ in range(2):
            broker.done(RequestCode.HEART_BEAT, {}, heartbeat(long))
        assert len(threads) == 1
        own = {"consumerGroup": "g", "sysFlag": "0", "subVersion": "1"}
        assert broker.pull("t0", 0, **own).code == ResponseCode.PULL_NOT_FOUND
        given = {"subscription": expression(9, 16_000), "expressionType": "SQL92"}
        for _ in range(3):
            assert broker.pull("t0", 0, **given).code == ResponseCode.PULL_NOT_FOUND
        assert len(threads) == 2
        answer = broker.ask(RequestCode.HEART_BEAT, {}, heartbeat(long, bad))
        assert "filters not kept of 1 groups ('g')" in (answer.remark or "")
        refused = broker.pull("t0", 0, subscription=bad, expressionType="SQL92")
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(threads) == 4
    assert {name.rpartition("_")[0] for name in threads} == {"expressions"}


def test_an_expression_that_does_not_compile_is_refused_without_compiling_it_again(
    threads: list[str],
) -> None:
    room, seen = Room(), list[str]()

    def compiles(request: Request, peer: Peer) -> Answer:
        with pytest.raises(FilterInvalid) as problem:
            room.expressions.compile(request.fields["subscription"])
        seen.append(str(problem.value))
        return Response()

    handle = room.expressions.guarded({PULL: compiles})[PULL]
    fields = {"subscription": expression(1) + " OR", "expressionType": "SQL92"}
    assert handle(Request(PULL, 1, fields), FakePeer()) is LATER
    room.work()
    assert len(seen) == len(threads) == 1


def test_an_unexpected_compiler_error_is_an_outcome_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str) -> Sql92Filter:
        raise RecursionError("too deep")

    monkeypatch.setattr(long_expressions, "compile_sql", fails)
    outcome = long_expressions._outcome("a > 1")
    assert "too deep" in str(outcome)
