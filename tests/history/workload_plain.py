"""Normal and ordered messages under kills."""

from __future__ import annotations

import zlib

from tests.history.campaign import Campaign
from tests.history.consumers import AUDITORS, READERS, Consumers
from tests.history.events import Kind, SendInvoked
from tests.history.topics import make_topics

TOPICS = {"plain": 4, "ordered": 4}
_SHARDING_KEYS = [f"customer-{number}" for number in range(7)]


def run_plain(campaign: Campaign, kill_count: int) -> None:
    """Bursts of sends with a kill in each; a consumer reads along and crashes at times."""
    make_topics(campaign, TOPICS)
    consumers = Consumers(campaign)
    while campaign.kill_count < kill_count:
        start = len(campaign.events)
        send_burst(campaign)
        if campaign.random.random() < 0.5:
            _consume(campaign, consumers)
            send_burst(campaign)
        campaign.kill_while_busy()
        campaign.restart()
        for event in campaign.unknown_sends(start):
            if campaign.random.random() < 0.6:
                _send_again(campaign, event)
    campaign.settle()
    consumers.drain(TOPICS, READERS, AUDITORS)


def send_burst(campaign: Campaign) -> None:
    """Up to 60 sends under way at once, half of them ordered."""
    for _ in range(campaign.random.randint(1, 60)):
        if campaign.random.random() < 0.5:
            campaign.send(Kind.NORMAL, "plain", campaign.random.randrange(TOPICS["plain"]))
        else:
            sharding_key = campaign.random.choice(_SHARDING_KEYS)
            queue_id = zlib.crc32(sharding_key.encode()) % TOPICS["ordered"]
            _send_ordered(campaign, queue_id, sharding_key)


def _send_ordered(
    campaign: Campaign, queue_id: int, sharding_key: str, again: SendInvoked | None = None
) -> None:
    campaign.send(
        Kind.ORDERED,
        "ordered",
        queue_id,
        properties={"__SHARDINGKEY": sharding_key},
        sharding_key=sharding_key,
        again=again,
    )


def _send_again(campaign: Campaign, event: SendInvoked) -> None:
    if event.kind is Kind.NORMAL:
        campaign.send(Kind.NORMAL, event.topic, event.queue_id, again=event)
    else:
        _send_ordered(campaign, event.queue_id, event.sharding_key, again=event)


def _consume(campaign: Campaign, consumers: Consumers) -> None:
    consumers.read(READERS, TOPICS)
    if campaign.random.random() < 0.7:
        consumers.store_offsets(READERS)
    if campaign.random.random() < 0.3:
        consumers.crash(READERS, TOPICS)
