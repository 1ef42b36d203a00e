"""The answers of a slave about topics, queues and groups that it does not know.

Its tables are a moment older than its master's, so "there is none" would be made up. A pull is sent
back to the master while that is alive; everything else is refused until the slave knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.broker.state.roles import PULLS
from contrail.errors import RequestRejected
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import Answer, Handler, Peer

# Answered with a number for any topic, also for one that does not exist.
_OF_QUEUES = frozenset(
    {
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    }
)
_UNKNOWN = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        # The id of a queue that a topic does not have.
        ResponseCode.INVALID_PARAMETER,
    }
)


def nothing_made_up(
    handlers: Mapping[int, Handler],
    *,
    knows_topic: Callable[[str], bool],
    sends_readers_back: Callable[[], bool],
) -> dict[int, Handler]:
    """A slave's handlers, which tell nothing of what only its master may know."""
    found = dict(handlers)
    for code in PULLS & found.keys():
        found[code] = _sending_back(found[code], sends_readers_back)
    for code in _OF_QUEUES & found.keys():
        found[code] = _of_known_topics(found[code], knows_topic)
    return found


def _sending_back(handler: Handler, sends_readers_back: Callable[[], bool]) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        try:
            return handler(request, peer)
        except RequestRejected as refusal:
            if refusal.code not in _UNKNOWN:
                raise
            if sends_readers_back():
                return _ask_master(request, refusal)
            raise _unknown(str(refusal.remark)) from refusal

    return handle


def _ask_master(request: Request, refusal: RequestRejected) -> Response:
    """Pull there again, from the same place."""
    wanted = HeaderFields(request).long("queueOffset", 0)
    return Response(
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        f"{refusal.remark}, as far as this slave knows: ask the master",
        {
            "suggestWhichBrokerId": str(MASTER_ID),
            "nextBeginOffset": str(wanted),
            "minOffset": "0",
            "maxOffset": str(wanted),
        },
    )


def _of_known_topics(handler: Handler, knows_topic: Callable[[str], bool]) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        topic = HeaderFields(request).text("topic")
        if not knows_topic(topic):
            raise _unknown(f"topic {topic!r} does not exist")
        return handler(request, peer)

    return handle


def _unknown(remark: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"{remark}, or its master knows more than this slave: ask the master",
    )
