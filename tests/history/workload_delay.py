"""Messages of all delay levels under kills and a clock that jumps."""

from __future__ import annotations

from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.properties import DELAY
from tests.history.campaign import Campaign
from tests.history.consumers import AUDITORS, READERS, Consumers
from tests.history.events import Kind, SendInvoked
from tests.history.topics import make_topics

TOPICS = {"delayed": 2}
_DELAYS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)
_LEVELS = range(1, len(_DELAYS_MS))
_JUMPS_MS = (300, 1_000, 4_000, 30_000, 600_000, 2 * 3_600_000, -700, -20_000, -3_600_000)


def run_delays(campaign: Campaign, kill_count: int) -> None:
    """Bursts of delayed sends; kills come while some of them are delivered, or before they are."""
    make_topics(campaign, TOPICS)
    consumers = Consumers(campaign)
    while campaign.kill_count < kill_count:
        start = len(campaign.events)
        send_burst(campaign, campaign.random.randint(1, 40))
        campaign.jump_clock(_JUMPS_MS)
        if campaign.random.random() < 0.4:
            consumers.read(READERS, TOPICS)
            send_burst(campaign, campaign.random.randint(1, 10))
        campaign.kill_while_busy()
        campaign.jump_clock(_JUMPS_MS, likelihood=0.3)
        campaign.restart()
        for event in campaign.unknown_sends(start):
            if campaign.random.random() < 0.5:
                _send(campaign, event)
    _finish(campaign, consumers)


def send_burst(campaign: Campaign, count: int) -> None:
    """Messages of any level, low ones more often."""
    for _ in range(count):
        _send(campaign)


def _send(campaign: Campaign, again: SendInvoked | None = None, level: int = 0) -> None:
    if again is not None:
        level = _DELAYS_MS.index(again.delay_ms)
    elif not level:
        # Low levels more often: they are the ones that come due between two kills.
        level = min(campaign.random.choice(_LEVELS), campaign.random.choice(_LEVELS))
    delay_ms = _DELAYS_MS[level]
    campaign.send(
        Kind.DELAY,
        "delayed",
        again.queue_id if again is not None else campaign.random.randrange(2),
        properties={DELAY: str(level)},
        not_before_ms=campaign.clock.now_ms() + delay_ms,
        delay_ms=delay_ms,
        again=again,
    )


def _finish(campaign: Campaign, consumers: Consumers) -> None:
    """Twice: behind the last message of each level all others have been delivered."""
    for _ in range(2):
        for level in _LEVELS:
            _send(campaign, level=level)
        campaign.settle()
        # After moves of the clock the last message due need not be the last sent.
        latest_ms = max(event.not_before_ms for event in campaign.acknowledged.values())
        campaign.advance(ms=max(0, latest_ms - campaign.clock.now_ms()) + 1_000)

        def all_have_come() -> bool:
            consumers.read(READERS, TOPICS)
            return all(
                consumers.has_seen(READERS, event.topic, key)
                for key, event in campaign.acknowledged.items()
            )

        campaign.wait_until(all_have_come, "every delayed message is delivered")
    consumers.drain(TOPICS, READERS, AUDITORS)
