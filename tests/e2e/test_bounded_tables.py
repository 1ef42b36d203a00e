"""No request grows a table of a server without a bound, whatever names it brings.

Every request code is sent again and again with names that nobody has heard of, from an address
that is not this host. Before and after, the size of everything that the servers hold is measured:
all containers that are reached from the server's objects, not a list of tables somebody thought of.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pytest

from contrail.broker.fast import pull_forms, pull_templates
from contrail.broker.handlers import offsets
from contrail.broker.services import pull_admission
from contrail.broker.state import consumers, sink_ledger
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, pull_fields, send_fields

# Requests of each case, each with names of its own: a table that keeps them grows by as many.
REQUESTS = 30
# A case may leave fewer entries behind than it has requests.
GROWTH_MAX = REQUESTS - 10
AUTO_MAX = 6
SHARE = 8

# Lists of so many numbers that belong to each entry of a table.
_PER_ENTRY = {"BrokerStats._stored[]": 9}
_BOUNDS = (
    (offsets, "ABSENT_QUEUES_MAX"),
    (pull_admission, "_PASSED_MAX"),
    (pull_admission, "_REFUSED_MAX"),
    (pull_forms, "_REFUSED_MAX"),
    (pull_forms, "_FORMS_MAX"),
    (pull_templates, "_TEMPLATES_MAX"),
    (consumers, "PULLED_MAX"),
    (sink_ledger, "SINK_COUNT_MAX"),
)

Asked = tuple[Mapping[str, str], bytes]


@dataclass(frozen=True)
class Names:
    """The group and topic of one request, and a word that nothing else has."""

    group: str
    topic: str
    fresh: str


SHAPES: dict[str, Callable[[str], str]] = {
    "plain": lambda word: word,
    "long": lambda word: word + "x" * (110 - len(word)),
    "too long": lambda word: word + "x" * 3000,
    "retry": lambda word: f"%RETRY%{word}",
    "dead letters": lambda word: f"%DLQ%{word}",
    "odd": lambda word: f"{word} ü/../@",
}


def kinds_of(shape: Callable[[str], str], number: int) -> Iterator[Names]:
    """Neither is there, one of them is there, both are there."""
    word = f"n{number}"
    yield Names(shape(word), shape(f"t{number}"), word)
    yield Names(shape(word), "orders", word)
    yield Names("readers", shape(f"t{number}"), word)
    yield Names("readers", "orders", word)


def _send(names: Names) -> Asked:
    properties = f"UNIQ_KEY\x01{names.fresh}\x02KEYS\x01{names.fresh}\x02"
    return send_fields(names.topic, a=names.group, i=properties), b"x"


def _send_v1(names: Names) -> Asked:
    fields = {
        "producerGroup": names.group,
        "topic": names.topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": f"REPLY_TO_CLIENT\x01{names.fresh}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    return fields, b"x"


def _pull(names: Names) -> Asked:
    fields = pull_fields(names.topic, 0, consumerGroup=names.group, sysFlag="7")
    # Nothing of it is held: it ends at once, and the next one has another subscription.
    return {**fields, "suspendTimeoutMillis": "0", "subscription": names.fresh}, b"x" * 10


def _queue(names: Names) -> Asked:
    fields = {
        "consumerGroup": names.group,
        "topic": names.topic,
        "queueId": names.fresh.lstrip("n"),
        "commitOffset": "1",
        "timestamp": "1",
    }
    return fields, b""


def _heartbeat(names: Names) -> Asked:
    consumer = {
        "groupName": names.group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [
            {
                "topic": names.topic if number else names.fresh,
                "subString": f"a = '{names.fresh}'",
                "expressionType": "SQL92",
                "subVersion": int(names.fresh.lstrip("n")),
            }
            for number in range(2)
        ],
    }
    body = {
        "clientID": names.fresh,
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": names.group}, {"groupName": names.fresh}],
        "heartbeatFingerprint": int(names.fresh.lstrip("n")),
    }
    return {}, json.dumps(body).encode()


def _group(names: Names) -> Asked:
    fields = {
        "consumerGroup": names.group,
        "producerGroup": names.group,
        "group": names.group,
        "clientID": names.fresh,
        "clientId": names.fresh,
        "topic": names.topic,
    }
    return fields, b"{}"


def _locks(names: Names) -> Asked:
    queues = [
        {"topic": names.topic, "brokerName": broker, "queueId": queue_id}
        for broker in ("broker-a", names.fresh)
        for queue_id in (0, 1, int(names.fresh.lstrip("n")))
    ]
    body = {"consumerGroup": names.group, "clientId": names.fresh, "mqSet": queues}
    return {}, json.dumps(body).encode()


def _send_back(names: Names) -> Asked:
    fields = {"offset": "0", "group": names.group, "delayLevel": "0", "unitMode": "false"}
    return {**fields, "originTopic": names.topic, "originMsgId": names.fresh}, b""


def _end(names: Names) -> Asked:
    fields = {
        "producerGroup": names.group,
        "topic": names.topic,
        "tranStateTableOffset": names.fresh.lstrip("n"),
        "commitLogOffset": names.fresh.lstrip("n"),
        "commitOrRollback": "8",
        "msgId": names.fresh,
        "transactionId": names.fresh,
    }
    return fields, b""


def _lookup(names: Names) -> Asked:
    fields = {
        "topic": names.topic,
        "key": names.fresh,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": "9" * 15,
        "offset": names.fresh.lstrip("n"),
    }
    return fields, b""


def _check(names: Names) -> Asked:
    subscription = {"topic": names.topic, "subString": names.fresh, "expressionType": "SQL92"}
    body = {"clientId": names.fresh, "group": names.group, "subscriptionData": subscription}
    return {}, json.dumps(body).encode()


def _recall(names: Names) -> Asked:
    handle = RecallHandle(names.topic, "broker-a", 1 << 42, names.fresh).encode()
    return {"topic": names.topic, "producerGroup": names.group, "recallHandle": handle}, b""


def _sink(names: Names) -> Asked:
    queues = {names.topic: [["broker-a", 0]]}
    fields = {
        "sinkId": names.group,
        "batchId": names.fresh.lstrip("n"),
        "topic": names.topic,
        "queueId": "0",
        "producerGroup": names.group,
        "prepared": "false",
    }
    return fields, json.dumps({"topics": queues, "participants": {}, "attempts": []}).encode()


BUILDERS: dict[RequestCode, Callable[[Names], Asked]] = {
    RequestCode.SEND_MESSAGE: _send_v1,
    RequestCode.SEND_MESSAGE_V2: _send,
    RequestCode.SEND_BATCH_MESSAGE: _send,
    RequestCode.SEND_REPLY_MESSAGE: _send_v1,
    RequestCode.SEND_REPLY_MESSAGE_V2: _send,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_MESSAGE: _lookup,
    RequestCode.VIEW_MESSAGE_BY_ID: _lookup,
    RequestCode.QUERY_CONSUMER_OFFSET: _queue,
    RequestCode.UPDATE_CONSUMER_OFFSET: _queue,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _queue,
    RequestCode.GET_MAX_OFFSET: _queue,
    RequestCode.GET_MIN_OFFSET: _queue,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _queue,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _group,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.END_TRANSACTION: _end,
    RequestCode.CHECK_TRANSACTION_STATE: _end,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _group,
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.CHECK_CLIENT_CONFIG: _check,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _queue,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _group,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _group,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _send_v1,
    RequestCode.RECALL_MESSAGE: _recall,
    RequestCode.QUERY_ASSIGNMENT: _check,
    RequestCode.CONTRAIL_SINK_BEGIN: _sink,
    RequestCode.CONTRAIL_SINK_SEND: _sink,
    RequestCode.CONTRAIL_SINK_COMMIT: _sink,
    RequestCode.CONTRAIL_SINK_ABORT: _sink,
    RequestCode.CONTRAIL_SINK_STATUS: _sink,
    RequestCode.POP_MESSAGE: _pull,
    RequestCode.ACK_MESSAGE: _queue,
    RequestCode.PEEK_MESSAGE: _pull,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _queue,
    RequestCode.NOTIFICATION: _queue,
    RequestCode.POLLING_INFO: _queue,
    RequestCode.BATCH_ACK_MESSAGE: _check,
    RequestCode.POP_LITE_MESSAGE: _pull,
    RequestCode.LITE_SUBSCRIPTION_CTL: _check,
    RequestCode.ACK_LITE_MESSAGE: _queue,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: _group,
}


@pytest.mark.proves("broker.bounds.bounded")
def test_every_data_code_is_tried() -> None:
    data = {code for code, kind in CODE_CLASSES.items() if kind is CodeClass.DATA}
    assert data == set(BUILDERS), "tell how a new data request is made, or take an old one out"


# Measuring.

_LEAVES = (str, bytes, bytearray, memoryview, int, float, bool, type(None), type)


# The store keeps what is sent: its memory is bounded by its files. Samples come by the clock, and
# have a number that is not exceeded.
_SKIPPED = frozenset({"Broker.store", "_Rate._samples", "StatItem._samples"})


def sizes(*roots: object) -> Counter[str]:
    """How much is held in containers that are reached from some objects.

    By class and attribute, of all its objects together: two of them may hold the same container,
    and which of them is met first is a matter of luck.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", root) for root in roots]
    while todo:
        place, thing = todo.pop()
        if isinstance(thing, _LEAVES) or id(thing) in seen or place in _SKIPPED:
            continue
        seen.add(id(thing))
        if isinstance(thing, Mapping):
            found[place] += len(thing)
            for key, value in list(thing.items()):
                todo += [(f"{place}[]", value), (f"{place}{{}}", key)]
        elif isinstance(thing, list | set | frozenset | tuple | deque):
            if not isinstance(thing, tuple):
                found[place] += len(thing)
            todo += [(f"{place}[]", value) for value in list(thing)]
        elif type(thing).__module__.startswith("contrail."):
            todo += [
                (f"{type(thing).__name__}.{name}", getattr(thing, name, None))
                for name in _attributes(thing)
            ]
    return found


def _attributes(thing: object) -> Iterator[str]:
    yield from getattr(thing, "__dict__", {})
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    properties = {
        "contrailAutoTopicsMax": str(AUTO_MAX),
        "contrailAutoTopicsPerSecond": "100000",
        "contrailAutoGroupsMax": "16",
        "contrailAutoCreateShare": "100",
    }
    with LocalCluster(properties=properties) as running:
        Asker(running).make_topic("orders")
        Asker(running).make_group("readers")
        Asker(running).stored("orders", b"first")
        Asker(running).pull("orders", 0)
        app = running.brokers[0].app
        tables = app.tables
        for shares in (tables.producers.shares, tables.consumers.shares, tables.locks.shares):
            shares.share_max = SHARE
        tables.consumer_offsets.shares.share_max = SHARE
        tables.filters._count_max = SHARE
        yield running


class Stranger:
    """A connection that the server takes for one from another host."""

    def __init__(self, cluster: LocalCluster, app: Any, port: int) -> None:
        self._cluster = cluster
        known = set(app.server.connections)
        self.client = RawClient(port)
        eventually(lambda: set(app.server.connections) - known, "the server has the connection")
        (self.connection,) = set(app.server.connections) - known
        self.connection.is_this_host = False
        self.connection.address = f"10.0.0.9:{self.client.local_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask_all(self, requests: list[Request]) -> Counter[int]:
        """The codes of all answers."""
        codes: Counter[int] = Counter()
        for first in range(0, len(requests), 200):
            some = requests[first : first + 200]
            self.client.send(b"".join(map(encode_request, some)))
            waiting = {request.opaque for request in some}
            while waiting:
                found = self.client.next_frame()
                # The server may have a request of its own, or a notice.
                if isinstance(found, ReceivedResponse):
                    waiting.remove(found.opaque)
                    codes[found.code] += 1
        return codes


def cases(code: RequestCode, first_opaque: int) -> list[Request]:
    """All requests of a code: every shape, every kind of names, each with words of its own."""
    build = BUILDERS.get(code, _group)
    # Other codes are refused before anything of them is read.
    shapes = list(SHAPES.values()) if code in BUILDERS else [SHAPES["plain"]]
    return [
        Request(code, first_opaque + number * 100 + at, dict(fields), body)
        for number in range(REQUESTS)
        for at, (fields, body) in enumerate(
            build(names)
            for place, shape in enumerate(shapes)
            for names in kinds_of(shape, first_opaque + number * 100 + place)
        )
    ]


def growth(
    cluster: LocalCluster, app: Any, port: int, codes: Iterable[RequestCode]
) -> tuple[int, dict[str, dict[str, int]]]:
    """How many requests were tried, and by code the tables that grew too much."""
    count = 0
    grown: dict[str, dict[str, int]] = {}
    first = before = measured(cluster, app)
    for at, code in enumerate(codes):
        asked = cases(code, 1_000_000 + at * 10_000)
        with Stranger(cluster, app, port) as peer:
            peer.ask_all(asked)
            after = settled(cluster, app, before)
        count += len(asked)
        grown[code.name] = _beyond(before, after, GROWTH_MAX)
        before = after
    # One after the other they must not do either what none of them may do alone.
    grown["all together"] = _beyond(first, before, 3 * GROWTH_MAX)
    return count, {name: tables for name, tables in grown.items() if tables}


def measured(cluster: LocalCluster, app: Any) -> Counter[str]:
    """The objects that the server holds, while it does nothing else."""
    found: list[Counter[str]] = []

    async def measure() -> None:
        found.append(sizes(app))

    cluster.run(measure())
    return found[0]


def settled(cluster: LocalCluster, app: Any, before: Counter[str]) -> Counter[str]:
    """The same once what is under way has ended; what is kept for good is there after that."""
    for _ in range(60):
        after = measured(cluster, app)
        if not _beyond(before, after, GROWTH_MAX):
            break
        time.sleep(0.05)
    return after


def _beyond(before: Counter[str], after: Counter[str], growth_max: int) -> dict[str, int]:
    return {
        table: size - before[table]
        for table, size in after.items()
        if size - before[table] > growth_max * _PER_ENTRY.get(table, 1)
    }


@pytest.mark.proves("broker.bounds.bounded")
def test_no_request_grows_a_table_of_a_broker_by_its_names(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    broker = cluster.brokers[0]
    # Tables that forget the oldest have bounds far above what is tried here.
    for module, name in _BOUNDS:
        assert getattr(module, name) >= SHARE
        monkeypatch.setattr(module, name, SHARE)
    count, grown = growth(cluster, broker.app, broker.port, RequestCode)
    record_property("requests", count)
    others = len(RequestCode) - len(BUILDERS)
    assert count == 4 * REQUESTS * (len(BUILDERS) * len(SHAPES) + others)
    assert grown == {}


@pytest.mark.proves("broker.bounds.bounded")
def test_no_request_grows_a_table_of_a_nameserver_by_its_names(
    cluster: LocalCluster, record_property: Callable[..., None]
) -> None:
    server = cluster.nameservers[0]
    count, grown = growth(cluster, server.app, server.port, RequestCode)
    record_property("requests", count)
    assert grown == {}
