"""A slave makes nothing up about what only its master may know."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.unknown_here import nothing_made_up
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Answer, Handler, Peer
from tests.fakes.peers import FakePeer

PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
UNKNOWN = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.INVALID_PARAMETER,
)
OF_QUEUES = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)


class Slave:
    """Handlers that answer or refuse as they are told."""

    def __init__(self) -> None:
        self.master_is_alive = True
        self.refusal: RequestRejected | None = None
        handlers: dict[int, Handler] = {int(code): self.handle for code in RequestCode}
        self.handlers = nothing_made_up(
            handlers,
            knows_topic=lambda topic: topic == "orders",
            sends_readers_back=lambda: self.master_is_alive,
        )

    def handle(self, request: Request, peer: Peer) -> Answer:
        if self.refusal is not None:
            raise self.refusal
        return Response(remark="handled")

    def ask(self, code: int, topic: str = "orders") -> Response:
        fields = {"topic": topic, "queueOffset": "70"}
        answer = self.handlers[code](Request(code, 7, fields), FakePeer())
        assert isinstance(answer, Response)
        return answer


@pytest.mark.proves("replication.pair.slave-reads")
@pytest.mark.parametrize("refused", UNKNOWN)
@pytest.mark.parametrize("code", PULLS)
def test_a_pull_of_something_unknown_is_sent_to_the_master_with_its_offset(
    code: int, refused: int
) -> None:
    slave = Slave()
    slave.refusal = RequestRejected(refused, "there is none")
    answer = slave.ask(code)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields is not None
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert answer.fields["nextBeginOffset"] == "70"


@pytest.mark.parametrize("refused", UNKNOWN)
def test_without_a_master_such_a_pull_is_refused_and_asked_again(refused: int) -> None:
    slave = Slave()
    slave.master_is_alive = False
    slave.refusal = RequestRejected(refused, "there is none")
    with pytest.raises(RequestRejected, match="knows more") as refusal:
        slave.ask(PULLS[0])
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_other_refusals_of_a_pull_pass() -> None:
    slave = Slave()
    slave.refusal = RequestRejected(ResponseCode.SYSTEM_BUSY, "not now")
    with pytest.raises(RequestRejected) as refusal:
        slave.ask(PULLS[0])
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("code", OF_QUEUES)
def test_no_end_of_a_queue_is_told_of_a_topic_that_the_slave_does_not_know(code: int) -> None:
    slave = Slave()
    assert slave.ask(code).remark == "handled"
    with pytest.raises(RequestRejected, match="'bills'") as refusal:
        slave.ask(code, "bills")
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
