"""Rebalancing by the broker: it is asked for this member's queues, as ``setConsumeMode`` says."""

from __future__ import annotations

import random

from contrail.client.message import MessageQueue
from contrail.client.rebalancing import Rebalancer, one_address_each
from contrail.client.state.allocation import AllocationStrategy
from contrail.errors import ClientError, RequestRejected
from contrail.model.fastjson import Fields
from contrail.protocol.bodies.pop import AssignmentQuestion, encode_assignment_question
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import body_errors, decode_body


class BrokerRebalancer(Rebalancer):
    """Asks a broker of each topic. Queue -1 of a broker stands for all its queues."""

    async def _share_of(self, topic: str) -> set[MessageQueue]:
        route = await self._instance.route(topic)
        addresses = one_address_each(route)
        random.shuffle(addresses)
        problem: ClientError | None = None
        for address in addresses:
            try:
                return await self._assigned(topic, address)
            except ClientError as error:
                problem = error
        raise problem or ClientError(f"topic {route.topic!r}: no broker has an address")

    async def _assigned(self, topic: str, address: str) -> set[MessageQueue]:
        queues = await self._ask(topic, address)
        if not queues:
            # A new or restarted broker has not had a heartbeat of this member yet.
            await self._instance.beat()
            queues = await self._ask(topic, address)
        if queues is None:
            raise ClientError(f"broker {address} knows no member of group {self._group!r} yet")
        return queues

    async def _ask(self, topic: str, address: str) -> set[MessageQueue] | None:
        """The queues that the broker assigns; None when it cannot tell."""
        what = f"the queues of topic {topic!r} for group {self._group!r}"
        question = AssignmentQuestion(
            topic=topic,
            group=self._group,
            client_id=self._instance.client_id,
            strategy=_name_of(self._strategy),
            broadcasts=False,
        )
        body = encode_assignment_question(question)
        code = RequestCode.QUERY_ASSIGNMENT
        answer = await self._instance.ask(address, code, {}, body, what=what)
        if not answer.body:
            return None
        try:
            fields = decode_body(answer.body, what)
            if "messageQueueAssignments" not in fields.unknown(frozenset()):
                return None
            with body_errors(what):
                return {_queue_of(one) for one in fields.array("messageQueueAssignments")}
        except RequestRejected as error:
            raise ClientError(f"broker {address}: {error}") from error


def _name_of(strategy: AllocationStrategy) -> str:
    """The broker knows two strategies by name, and shares by the first one otherwise."""
    return "AVG_BY_CIRCLE" if strategy.name == "AVG_BY_CIRCLE" else "AVG"


def _queue_of(entry: object) -> MessageQueue:
    queue = Fields(entry, "an assignment").child("messageQueue")  # type: ignore[arg-type]
    assert queue is not None
    return MessageQueue(
        queue.text("topic", ""), queue.text("brokerName", ""), queue.integer("queueId", -1)
    )
