"""How groups ask for messages, and which queues their members get when the broker decides."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from contrail.broker.handlers.saved_answers import SavedAnswer
from contrail.broker.services.request_modes import RequestModes
from contrail.broker.services.route_cache import RouteCache
from contrail.broker.state.assignments import popped_queues, pulled_queues
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.system_names import SystemNames
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import RETRY_PREFIX, TopicConfig
from contrail.protocol.bodies.groups import (
    POP_MODE,
    PULL_MODE,
    RequestMode,
    decode_request_mode,
)
from contrail.protocol.bodies.pop import (
    AssignmentQuestion,
    decode_assignment_question,
    encode_assignments,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import MessageQueue
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

QUESTIONS_MAX = 1000
"""How many questions for assignments may wait for a NameServer."""


class TopicSettings(Protocol):
    """The topics there are."""

    def get(self, topic: str) -> TopicConfig | None: ...


class GroupRules(Protocol):
    """Where a group's settings are found or made."""

    def require(self, group: str, now_ms: int, *, client: str) -> SubscriptionGroupConfig: ...


class RequestModeHandlers:
    """Serves SET_MESSAGE_REQUEST_MODE and QUERY_ASSIGNMENT."""

    def __init__(
        self,
        topics: TopicSettings,
        groups: GroupRules,
        modes: RequestModes,
        consumers: ConsumerTable,
        routes: RouteCache,
        settings: RuntimeSettings,
        *,
        names: SystemNames,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._names = names
        self._groups = groups
        self._modes = modes
        self._consumers = consumers
        self._routes = routes
        self._settings = settings
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.handle_set,
            RequestCode.QUERY_ASSIGNMENT: self.handle_assignment,
        }

    # Modes.

    def handle_set(self, request: Request, peer: Peer) -> Answer:
        """A group is to pull or to pop a topic; its members learn of it with their assignments."""
        wanted = decode_request_mode(request.body)
        self._check(wanted, peer.address)
        address = peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"the mode of group {wanted.group!r}",
            then=lambda: _log.info(
                "group %r is to %s %r, by order of %s",
                wanted.group,
                wanted.mode,
                wanted.topic,
                address,
            ),
        )
        self._modes.set(wanted, saved.done)
        return saved.answer()

    def _check(self, wanted: RequestMode, client: str) -> None:
        if wanted.topic.startswith(RETRY_PREFIX):
            remark = f"{wanted.topic!r} is a retry topic: those are always pulled"
            raise RequestRejected(ResponseCode.NO_PERMISSION, remark)
        if self._topics.get(wanted.topic) is None:
            remark = f"topic {wanted.topic!r} does not exist on this broker"
            raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, remark)
        self._groups.require(wanted.group, self._clock.now_ms(), client=client)

    def _mode_of(self, topic: str, group: str) -> RequestMode:
        known = self._modes.find(topic, group)
        if known is not None:
            return known
        config = self._settings.config
        if topic.startswith(RETRY_PREFIX) or config.default_request_mode != POP_MODE:
            return RequestMode(topic, group, PULL_MODE)
        return RequestMode(topic, group, POP_MODE, config.default_pop_share_count)

    # Assignments.

    def handle_assignment(self, request: Request, peer: Peer) -> Answer:
        """The queues of one member of a group, of all brokers."""
        question = decode_assignment_question(request.body)
        self._names.require_readable(question.topic)
        self._names.require_group(question.group)
        if len(self._tasks) >= QUESTIONS_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY, f"{QUESTIONS_MAX} assignments are asked for already"
            )
        task = asyncio.get_running_loop().create_task(
            self._answer(request, peer, question), name="assignment"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return LATER

    async def _answer(self, request: Request, peer: Peer, question: AssignmentQuestion) -> None:
        try:
            queues = await self._routes.queues(question.topic)
            mode = self._mode_of(question.topic, question.group)
            body = encode_assignments(self._assigned(question, queues, mode), mode.mode)
            answer = Response(body=body)
        except Exception as error:
            _log.exception("the assignment of %r cannot be told", question.group)
            answer = Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        peer.reply(request, answer)

    def _assigned(
        self, question: AssignmentQuestion, queues: list[MessageQueue] | None, mode: RequestMode
    ) -> list[MessageQueue] | None:
        """None tells a client to keep what it has, an empty list to give all up."""
        if not queues:
            return None
        if question.broadcasts or not self._settings.config.assigns_queues:
            return queues
        group = self._consumers.find(question.group)
        if group is None:
            # After a restart the heartbeats of the members are still to come.
            return None
        members = group.client_ids()
        if mode.mode == POP_MODE:
            return popped_queues(
                question.client_id, members, queues, question.strategy, mode.pop_share_count
            )
        return pulled_queues(question.client_id, members, queues, question.strategy)

    async def close(self) -> None:
        """Ask no NameServer any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
