"""Questions to one broker of a ``LocalCluster``, with the header fields that every client sends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from contrail.model.message import StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import split_record_run
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e.raw_client import RawClient, pull_fields, send_fields

_numbers = itertools.count(1)


class Asker:
    """One broker, asked over the cluster's own connection to it."""

    def __init__(self, cluster: LocalCluster, number: int = 0) -> None:
        self.cluster = cluster
        self.broker = cluster.brokers[number]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for something that is done on the broker's event loop."""
        self.cluster.run(work)

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ReceivedResponse:
        return self.cluster.caller.call(self.broker.address, code, fields, body, timeout_ms=60_000)

    def done(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> ReceivedResponse:
        """The answer, which must be a success."""
        answer = self.ask(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer

    def send(
        self,
        topic: str,
        body: bytes = b"x",
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
        **changes: str,
    ) -> ReceivedResponse:
        fields = send_fields(topic, e=str(queue_id), i=properties_text(properties or {}))
        return self.ask(RequestCode.SEND_MESSAGE_V2, {**fields, **changes}, body)

    def stored(self, topic: str, body: bytes = b"x", **options: object) -> int:
        """Send, and the queue offset it got."""
        answer = self.send(topic, body, **options)  # type: ignore[arg-type]
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return int(answer.fields["queueOffset"])

    def pull(self, topic: str, queue_offset: int, **changes: str) -> ReceivedResponse:
        """A pull that is answered at once, whatever it finds."""
        fields = pull_fields(topic, queue_offset, sysFlag="4")
        return self.ask(RequestCode.PULL_MESSAGE, {**fields, **changes})

    def listed(self, topic: str, **changes: str) -> Sequence[StoredMessage]:
        """The messages of a topic of the broker's own, as operators see them."""
        fields = {"topic": topic, "maxMsgNums": "1000", **changes}
        return messages(self.done(RequestCode.LIST_SYSTEM_MESSAGES, fields))

    def sent_back_count(self) -> int:
        """How many messages were ever sent back to come a first time again, ten seconds later."""
        fields = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": "2", "maxMsgNums": "0"}
        answer = self.done(RequestCode.LIST_SYSTEM_MESSAGES, fields)
        return int(answer.fields["maxOffset"])

    def bodies(
        self, topic: str, queue_id: int = 0, changes: Mapping[str, str] | None = None
    ) -> list[bytes]:
        """Everything a queue hands out, from its beginning."""
        found: list[bytes] = []
        queue_offset = 0
        while True:
            asked = {"queueId": str(queue_id), **(changes or {})}
            answer = self.pull(topic, queue_offset, **asked)
            found += [message.body for message in messages(answer)]
            queue_offset = int(answer.fields["nextBeginOffset"])
            if queue_offset >= int(answer.fields["maxOffset"]):
                return found

    def make_topic(
        self, topic: str, *, read: int = 4, write: int = 4, perm: int = 6, order: bool = False
    ) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(read),
            "writeQueueNums": str(write),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if order else "false",
        }
        self.done(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def make_group(self, group: str, **settings: object) -> None:
        body = json.dumps({"groupName": group, **settings}).encode()
        self.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    def change_settings(self, text: str) -> None:
        self.done(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())

    def set_offset(self, group: str, topic: str, consumer_offset: int) -> None:
        """Commit, as a consumer does."""
        fields = {**offset_fields(group, topic), "commitOffset": str(consumer_offset)}
        self.done(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def offset_of(self, group: str, topic: str) -> int:
        answer = self.done(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields(group, topic))
        return int(answer.fields["offset"])


def offset_fields(group: str, topic: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": "0", "setZeroIfNotFound": "false"}


def properties_text(properties: Mapping[str, str]) -> str:
    """Properties as a producer writes them, with a unique id of their own."""
    named = {"UNIQ_KEY": f"7F000001{next(_numbers):024X}", **properties}
    return encode_properties(named).decode()


def messages(answer: ReceivedResponse) -> Sequence[StoredMessage]:
    return list(split_record_run(answer.body))


def route(cluster: LocalCluster, topic: str, number: int = 0) -> TopicRouteData | None:
    """The route of a topic at one NameServer."""
    answer = cluster.caller.call(
        cluster.nameservers[number].address,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": topic},
    )
    return TopicRouteData.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None


@contextmanager
def held_pull(
    cluster: LocalCluster, topic: str, queue_offset: int, **changes: str
) -> Iterator[RawClient]:
    """A pull that waits at the first broker, and the connection that its answer comes over."""
    broker = cluster.brokers[0]
    app = broker.app
    assert app is not None
    held_before = len(app.pulls.held.parked)
    with RawClient(broker.port) as client:
        fields = pull_fields(topic, queue_offset, **changes)
        client.send(encode_request(Request(RequestCode.PULL_MESSAGE, 1, fields)))
        eventually(lambda: len(app.pulls.held.parked) > held_before, "the pull is held")
        yield client
