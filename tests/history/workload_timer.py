"""Timers under kills, jumps of the clock, and downtimes longer than they wait."""

from __future__ import annotations

from functools import partial
from struct import Struct

from contrail.model.properties import TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from tests.history.campaign import Campaign
from tests.history.consumers import AUDITORS, READERS, Consumers
from tests.history.events import Kind, RecallInvoked, SendInvoked
from tests.history.topics import make_topics

TOPICS = {"timed": 2}
DELAY_MS_MAX = 3 * 86_400_000
_JUMPS_MS = (1_000, 3_000, 20_000, 120_000, 86_400_000, -500, -5_000, -3_600_000)
_DOWN_JUMPS_MS = (10_000, 600_000, 8 * 86_400_000, -60_000)
# Read time, end of the timer log, next queue offset.
_CHECK_POINT = Struct(">3q")
# A recall this close to the delivery may come too late.
_RECALL_MARGIN_MS = 10_000


class TimerWorkload:
    """Sends timers, recalls some of them, and lets their time come."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._random = campaign.random
        self._consumers = Consumers(campaign)
        self._recalled: set[str] = set()

    def run(self, kill_count: int) -> None:
        campaign = self._campaign
        make_topics(campaign, TOPICS)
        while campaign.kill_count < kill_count:
            start = len(campaign.events)
            self.send_burst(self._random.randint(1, 40))
            campaign.jump_clock(_JUMPS_MS)
            if self._random.random() < 0.4:
                self._consumers.read(READERS, TOPICS)
                self.send_burst(self._random.randint(1, 10))
            campaign.kill_while_busy()
            campaign.jump_clock(_DOWN_JUMPS_MS, likelihood=0.4)
            campaign.restart()
            for event in campaign.unknown_sends(start):
                if self._random.random() < 0.5:
                    self._send(again=event)
        self._finish()

    def send_burst(self, count: int) -> None:
        """Timers of any delay; some are recalled as soon as they are acknowledged."""
        for _ in range(count):
            self._send()

    def _send(self, again: SendInvoked | None = None) -> None:
        now_ms = self._campaign.clock.now_ms()
        wait_ms = self._random.choice((500, 2_000, 5_000, 60_000, 3_600_000, DELAY_MS_MAX - 5_000))
        wait_ms = self._random.randint(wait_ms // 2, wait_ms)
        name = self._random.choice((TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC))
        if name == TIMER_DELAY_SEC:
            wait_ms = max(1, wait_ms // 1000) * 1000
        asked = {
            TIMER_DELIVER_MS: now_ms + wait_ms,
            TIMER_DELAY_MS: wait_ms,
            TIMER_DELAY_SEC: wait_ms // 1000,
        }
        recall = again is None and wait_ms > 2 * _RECALL_MARGIN_MS and self._random.random() < 0.3
        self._campaign.send(
            Kind.TIMER,
            "timed",
            again.queue_id if again is not None else self._random.randrange(2),
            properties={name: str(asked[name])},
            not_before_ms=now_ms + wait_ms,
            again=again,
            then=partial(self._recall, now_ms + wait_ms) if recall else lambda answer: None,
        )

    def _recall(self, due_ms: int, answer: ReceivedResponse) -> None:
        """Recall a message as soon as its handle is there, unless the clock has moved too far."""
        if self._campaign.clock.now_ms() + _RECALL_MARGIN_MS <= due_ms:
            key, handle = answer.fields["transactionId"], answer.fields["recallHandle"]
            self._recalled.add(key)
            recall(self._campaign, key, handle)

    def _finish(self) -> None:
        """Twice: repeated deliveries have come by then."""
        campaign, consumers = self._campaign, self._consumers
        for _ in range(2):
            self.send_burst(20)
            campaign.settle()
            # A delay counts from the broker's receipt of the message, which may be after a jump of
            # the clock that followed the send: no time known to the producer is late enough.
            highest_ms = max(event.now_ms for event in campaign.events)
            campaign.advance(ms=highest_ms + DELAY_MS_MAX + 2_000 - campaign.clock.now_ms())

            def all_have_come() -> bool:
                consumers.read(READERS, TOPICS)
                return all(
                    consumers.has_seen(READERS, event.topic, key)
                    for key, event in campaign.acknowledged.items()
                    if key not in self._recalled
                )

            campaign.wait_until(all_have_come, "every timer is delivered")
        consumers.drain(TOPICS, READERS, AUDITORS)


def recall(campaign: Campaign, key: str, handle: str) -> None:
    event = RecallInvoked(campaign.clock.now_ms(), campaign.next_op(), key)
    fields = {"topic": "timed", "recallHandle": handle, "producerGroup": "producers"}
    campaign.invoke(event, RequestCode.RECALL_MESSAGE, fields)


def recall_before_a_long_downtime(
    campaign: Campaign, *, wait_ms: int, jump_ms: int, is_taken_in: bool
) -> None:
    """Timers wait in a broker, are recalled, and the broker is down when they are due.

    ``jump_ms`` is how far the clock moves between the sends and the recalls. With ``is_taken_in``
    the broker has time to look at the recalls before it ends.
    """
    make_topics(campaign, TOPICS)
    due_ms = campaign.clock.now_ms() + wait_ms
    handles = _timers_with_handles(campaign, due_ms)
    _wait_until_filed(campaign, len(handles))
    campaign.advance(ms=jump_ms)
    for key, handle in handles.items():
        recall(campaign, key, handle)
    campaign.settle()
    if is_taken_in:
        _wait_until_filed(campaign, 2 * len(handles))
    campaign.kill()
    campaign.advance(ms=due_ms - campaign.clock.now_ms() + 1_000)
    campaign.restart()
    _read_until_idle(campaign)


def _timers_with_handles(campaign: Campaign, due_ms: int) -> dict[str, str]:
    handles: dict[str, str] = {}

    def keep_handle(answer: ReceivedResponse) -> None:
        handles[answer.fields["transactionId"]] = answer.fields["recallHandle"]

    for _ in range(5):
        asked = {TIMER_DELIVER_MS: str(due_ms)}
        campaign.send(
            Kind.TIMER, "timed", 0, properties=asked, not_before_ms=due_ms, then=keep_handle
        )
    campaign.settle()
    return handles


def _wait_until_filed(campaign: Campaign, count: int) -> None:
    """Wait until the timer files cover ``count`` messages."""

    def are_filed() -> bool:
        answer = campaign.client.call(RequestCode.GET_TIMER_CHECK_POINT, {})
        assert answer is not None
        _, _, queue_offset = _CHECK_POINT.unpack_from(answer.body)
        return bool(queue_offset >= count)

    campaign.wait_until(are_filed, "the timers are in the timer files")


def _read_until_idle(campaign: Campaign) -> None:
    # A message that is not recalled shows when all due messages have been delivered.
    due_ms = campaign.clock.now_ms() + 1_000
    last = campaign.send(
        Kind.TIMER, "timed", 0, properties={TIMER_DELIVER_MS: str(due_ms)}, not_before_ms=due_ms
    )
    consumers = Consumers(campaign)

    def last_has_come() -> bool:
        consumers.read(READERS, TOPICS)
        return consumers.has_seen(READERS, "timed", last.key)

    campaign.wait_until(last_has_come, "the last timer is delivered")
    consumers.drain(TOPICS, READERS)
