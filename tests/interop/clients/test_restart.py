"""Brokers stop and come back while messages flow: acknowledged messages are received."""

from __future__ import annotations

import pytest

from tests.interop.clients.driver import Driver, Event, RunningDriver
from tests.interop.clients.registry import clients_of
from tests.interop.clients.steady import SteadySender
from tests.interop.clients.target import Cluster
from tests.interop.clients.topics import create_topic
from tests.interop.clients.traffic import check_bodies, consumer

FLOW_TIMEOUT_S = 120.0
SOME = 50


# Two brokers stop and start: on a busy machine that may take longer than the usual limit.
@pytest.mark.proves("apache.clients.restart")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", clients_of("broker restart"), indirect=True)
def test_broker_restart(client: Driver, own_cluster: Cluster, topic: str) -> None:
    create_topic(own_cluster, topic)
    one, other = own_cluster.brokers
    with SteadySender(client, own_cluster, topic) as sender:
        sender.wait_for_more(SOME, FLOW_TIMEOUT_S)
        with consumer(client, own_cluster, topic, timeout_s=580) as running:
            running.wait_for_event("received", FLOW_TIMEOUT_S)
            one.stop()
            sender.wait_for_more(SOME, FLOW_TIMEOUT_S)
            one.start()
            # Without warning, and the one that carried everything: now the first has to.
            other.kill()
            sender.wait_for_more(SOME, FLOW_TIMEOUT_S)
            other.start()
            sender.wait_for_more(SOME, FLOW_TIMEOUT_S)
            sender.stop()
            wait_for_all(running, sender.acknowledged())
            check_bodies(running.of("received"))


def wait_for_all(running: RunningDriver, acknowledged: list[Event]) -> None:
    """Until every acknowledged message was received at least once."""
    sent = {event["key"] for event in acknowledged}

    def complete(events: list[Event]) -> bool:
        return sent <= {event["key"] for event in events if event["event"] == "received"}

    running.wait_for(complete, FLOW_TIMEOUT_S)
