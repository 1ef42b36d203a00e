"""How groups ask for messages: all of them pull, so this is a setting with one value."""

from __future__ import annotations

import logging
from typing import Protocol

from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import RETRY_PREFIX, TopicConfig
from contrail.protocol.bodies.groups import POP_MODE, RequestMode, decode_request_mode
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Handler, Peer

_log = logging.getLogger(__name__)


class TopicSettings(Protocol):
    """The topics there are."""

    def get(self, topic: str) -> TopicConfig | None: ...


class GroupRules(Protocol):
    """Where a group's settings are found or made."""

    def require(self, group: str, now_ms: int, *, client: str) -> SubscriptionGroupConfig: ...


class RequestModeHandlers:
    """Answers an administrator's request for how a group consumes a topic."""

    def __init__(self, topics: TopicSettings, groups: GroupRules, *, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {RequestCode.SET_MESSAGE_REQUEST_MODE: self.handle_set}

    def handle_set(self, request: Request, peer: Peer) -> Response:
        """Pulling is how every group consumes already; popping is refused."""
        wanted = decode_request_mode(request.body)
        self._check(wanted, peer.address)
        if wanted.mode == POP_MODE:
            raise RequestRejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"group {wanted.group!r} cannot consume {wanted.topic!r} by POP: this broker "
                "serves pulls only; use the mode PULL",
            )
        _log.info("group %r pulls %r, confirmed by %s", wanted.group, wanted.topic, peer.address)
        return Response()

    def _check(self, wanted: RequestMode, client: str) -> None:
        if wanted.topic.startswith(RETRY_PREFIX):
            remark = f"{wanted.topic!r} is a retry topic: those are always pulled"
            raise RequestRejected(ResponseCode.NO_PERMISSION, remark)
        if self._topics.get(wanted.topic) is None:
            remark = f"topic {wanted.topic!r} does not exist on this broker"
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        self._groups.require(wanted.group, self._clock.now_ms(), client=client)
