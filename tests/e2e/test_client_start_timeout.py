"""A consumer that has to be started within a time."""

from __future__ import annotations

import asyncio
import time

import pytest

from contrail.client.push_consumer import PushConsumer
from contrail.errors import ClientError
from contrail.testing import LocalCluster
from tests.e2e.push_setup import Seen, fresh, make_topic


@pytest.mark.proves("cli.small-rules.client-errors")
def test_a_start_without_a_share_in_time_raises() -> None:
    async def main() -> None:
        consumer = PushConsumer(fresh("readers"), "127.0.0.1:9", start_timeout_ms=500)
        consumer.on_message(Seen())
        await consumer.subscribe("orders")
        begun_s = time.monotonic()
        with pytest.raises(ClientError, match=r"no share of 'orders' after 500 ms.*NameServer"):
            await consumer.start()
        assert time.monotonic() - begun_s < 20
        await consumer.close()

    asyncio.run(main())


def test_a_start_within_its_time_has_its_share() -> None:
    async def main(namesrv: str) -> None:
        topic = fresh("orders")
        await make_topic(namesrv, topic)
        consumer = PushConsumer(fresh("readers"), namesrv, start_timeout_ms=60_000)
        consumer.on_message(Seen())
        await consumer.subscribe(topic)
        await consumer.start()
        assert len([one for one in consumer.assigned_queues() if one.topic == topic]) == 4
        await consumer.close()

    with LocalCluster() as cluster:
        asyncio.run(main(cluster.namesrv))
