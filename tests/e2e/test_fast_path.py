"""Sends and pulls with the fast path on and off: which ways they take, and where that is shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrail.broker.fast import pull_templates
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.testing import LocalCluster
from tests.e2e.metrics_scene import samples, scrape
from tests.e2e.raw_client import RawClient

TOPIC = "ways"
_COUNT = 20


@pytest.fixture(params=["on", "off"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    properties = {
        "contrailFastPath": request.param,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": "0",
    }
    with LocalCluster(properties=properties) as running:
        yield running


def send(number: int) -> Request:
    fields = {
        "a": "producers",
        "b": TOPIC,
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": f"UNIQ_KEY\x01{number:032X}\x02",
        "j": "0",
        "k": "false",
        "l": "0",
        "m": "false",
    }
    return Request(RequestCode.SEND_MESSAGE_V2, number, fields, b"body")


def pull(number: int, queue_offset: int) -> Request:
    fields = {
        "consumerGroup": "readers",
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return Request(RequestCode.PULL_MESSAGE, number, fields)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates rest after a long tick, which a busy machine gives them."""
    monkeypatch.setattr(pull_templates, "_SHORT_TICK_S", 1e9)


def served(cluster: LocalCluster) -> None:
    """A fixed number of sends and pulls, one after the other."""
    with RawClient(cluster.brokers[0].port) as client:
        for number in range(1, _COUNT + 1):
            client.send(encode_request(send(number)))
            assert client.answer_to(number).code == ResponseCode.SUCCESS
        for number in range(1, _COUNT + 1):
            client.send(encode_request(pull(1000 + number, number - 1)))
            assert client.answer_to(1000 + number).code == ResponseCode.SUCCESS


def ways(cluster: LocalCluster) -> dict[tuple[str, str], int]:
    """By kind and way, what was taken at all."""
    app = cluster.brokers[0].app
    assert app is not None
    return {(kind, way): count for kind, way, count in app.ways.rows() if count}


def is_fast(cluster: LocalCluster) -> bool:
    return cluster.properties["contrailFastPath"] == "on"


@pytest.mark.proves("broker.fast.switch")
def test_the_switch_leaves_the_general_way_alone(cluster: LocalCluster) -> None:
    served(cluster)
    if is_fast(cluster):
        found = ways(cluster)
        assert found["send", "tickless"] >= _COUNT - 2
        assert found["pull", "template"] >= _COUNT - 2
        assert sum(found.values()) == 2 * _COUNT
    else:
        assert ways(cluster) == {("send", "general"): _COUNT, ("pull", "general"): _COUNT}


@pytest.mark.proves("broker.fast.counters")
def test_metrics_and_status_tell_which_ways_requests_took(cluster: LocalCluster) -> None:
    served(cluster)
    app = cluster.brokers[0].app
    assert app is not None and app.metrics is not None
    told = {
        (one.labels["kind"], one.labels["way"]): int(one.value)
        for one in samples(scrape(app.metrics.port))
        if one.name == "contrail_broker_way_total" and one.value
    }
    assert told == ways(cluster)
    address = cluster.brokers[0].address
    answer = cluster.caller.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    text = answer.body.decode()
    kept = "on" if is_fast(cluster) else "off"
    assert f'"contrailFastPath":"{kept}"' in text
    way, count = ("template", told["pull", "template"]) if kept == "on" else ("general", _COUNT)
    assert f"{way}={count}" in text.partition('"contrailWays_pull":"')[2].partition('"')[0]
