"""A failing consumer under kills: messages are sent back, retried, and given up."""

from __future__ import annotations

from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.message import StoredMessage
from contrail.model.properties import UNIQ_KEY
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from tests.history.campaign import Campaign
from tests.history.consumers import AUDITORS, READERS, Consumers
from tests.history.events import Kind, SendBackInvoked
from tests.history.rules_delivery import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tests.history.topics import make_group, make_topics

WORK = {"work": 2}
RETRIES = {RETRY_PREFIX + READERS: 1}
DEAD_LETTERS = {DEAD_LETTER_PREFIX + READERS: 1}
RECONSUME_TIMES_MAX = 2
_DELAYS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)
_FIRST_RETRY_LEVEL = 3
_JUMPS_MS = (500, 1_500, 11_000, 31_000, 120_000, -700)


class RetryWorkload:
    """Reads its topic and its retries, and sends about half of them back."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._random = campaign.random
        self._consumers = Consumers(campaign)
        self._given_back: list[SendBackInvoked] = []

    def run(self, kill_count: int) -> None:
        campaign = self._campaign
        make_topics(campaign, WORK)
        make_group(campaign, READERS, retryMaxTimes=16)
        while campaign.kill_count < kill_count:
            self.send_burst(self._random.randint(1, 20))
            if self._random.random() < 0.7:
                campaign.settle()
            self._consume()
            campaign.jump_clock(_JUMPS_MS)
            if self._random.random() < 0.5:
                self._consume()
            campaign.kill_while_busy()
            campaign.jump_clock(_JUMPS_MS, likelihood=0.3)
            campaign.restart()
            if self._random.random() < 0.3:
                self._consumers.crash(READERS, {**WORK, **RETRIES})
        self._finish()

    def send_burst(self, count: int) -> None:
        """Messages for the failing consumer."""
        for _ in range(count):
            self._campaign.send(Kind.NORMAL, "work", self._random.randrange(2))

    def _consume(self) -> None:
        for message in self._consumers.read(READERS, {**WORK, **RETRIES}):
            if self._random.random() < 0.5:
                self._give_back(message)
        if self._random.random() < 0.5:
            self._consumers.store_offsets(READERS)

    def _give_back(self, message: StoredMessage) -> None:
        campaign = self._campaign
        level = self._random.choice((0, 0, 0, 1, 2, -1))
        waits = _FIRST_RETRY_LEVEL + message.reconsume_times if level == 0 else level
        event = SendBackInvoked(
            campaign.clock.now_ms(),
            campaign.next_op(),
            message.properties[UNIQ_KEY],
            READERS,
            message.topic,
            message.reconsume_times,
            RECONSUME_TIMES_MAX,
            _DELAYS_MS[waits] if level >= 0 else -1,
        )
        fields = {
            "offset": str(message.physical_offset),
            "group": READERS,
            "delayLevel": str(level),
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(RECONSUME_TIMES_MAX),
        }

        def given_back(answer: ReceivedResponse) -> None:
            self._given_back.append(event)

        campaign.invoke(event, RequestCode.CONSUMER_SEND_MSG_BACK, fields, then=given_back)

    def _finish(self) -> None:
        """Consume until no message is sent back any more, then read the dead letters, too."""
        campaign, consumers = self._campaign, self._consumers
        for _ in range(RECONSUME_TIMES_MAX + 1):
            campaign.settle()
            campaign.advance(ms=130_000)
            campaign.wait_until(self._all_have_come, "every retry and dead letter is there")
        consumers.drain({**WORK, **RETRIES, **DEAD_LETTERS}, READERS, AUDITORS)

    def _all_have_come(self) -> bool:
        self._consumers.read(READERS, {**WORK, **RETRIES, **DEAD_LETTERS})
        return all(self._has_come(event) for event in self._given_back)

    def _has_come(self, event: SendBackInvoked) -> bool:
        (topic,) = DEAD_LETTERS if event.is_last else RETRIES
        return self._consumers.has_seen(READERS, topic, event.key, event.reconsume_times + 1)
