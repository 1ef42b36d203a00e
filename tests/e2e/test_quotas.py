"""Quotas over sockets: one user's use of them delays nobody else's answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.signing import Credentials
from contrail.testing import LocalBroker, LocalCluster
from tests.e2e.access_setup import ACCESS, ADMIN, Signer
from tests.e2e.raw_client import pull_fields, send_fields

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
BUSY = ResponseCode.SYSTEM_BUSY
GREEDY = Credentials("greedy", "greedy-password")
MODEST = Credentials("modest", "modest-password")
RATE = 50
SETTINGS = {
    **ACCESS,
    "contrailQuotaUserMessages": str(RATE),
    "contrailQuotaTopicBytes": "200000",
    "contrailFailedLogInsPerSecond": "5",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalCluster(properties=SETTINGS) as cluster:
        broker = cluster.brokers[0]
        with Signer(broker, ADMIN) as admin:
            for topic in ("orders", "bills", "large"):
                fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1"}
                fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
                fields |= {"order": "false", "defaultTopic": "TBW102"}
                made = admin.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
                assert made.code == 0, made.remark
            for one in (GREEDY, MODEST):
                admin.make_user(one)
                admin.grant(one.access_key, ("Topic:*", "All"), ("Group:*", "All"))
        yield broker


def latencies(broker: LocalBroker, count: int) -> list[float]:
    """How long the modest user waits for each of its sends, half as many as it may."""
    taken = []
    with Signer(broker, MODEST) as client:
        for _ in range(count):
            began_s = time.monotonic()
            assert client.ask(SEND, send_fields("bills"), b"x").code == 0
            taken.append(time.monotonic() - began_s)
            time.sleep(2 / RATE)
    return sorted(taken)


@pytest.mark.proves("access.guards.quotas")
def test_sends_over_quota_are_answered_busy_and_delay_nobody(broker: LocalBroker) -> None:
    alone = latencies(broker, 40)
    ended, counts = threading.Event(), dict.fromkeys((0, int(BUSY)), 0)
    began_s = time.monotonic()

    def flood() -> None:
        with Signer(broker, GREEDY) as client:
            while not ended.is_set():
                told = client.ask(SEND, send_fields("orders"), b"x")
                counts[told.code] += 1
                if told.code == BUSY:
                    assert "user 'greedy' is used up: wait " in (told.remark or "")

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        beside = latencies(broker, 40)
    finally:
        ended.set()
        thread.join()
    passed_s = time.monotonic() - began_s
    assert RATE * passed_s * 0.8 <= counts[0] <= RATE * (passed_s + 1) + 1
    assert counts[BUSY] > counts[0]
    # Nobody waits for a bucket of another user: that would be tens of milliseconds for each.
    assert beside[20] < alone[20] + 0.01, (alone[20], beside[20])


@pytest.mark.proves("access.guards.quotas")
def test_a_pull_over_quota_is_held_for_the_wait_and_a_pop_is_told_at_once(
    broker: LocalBroker,
) -> None:
    with Signer(broker, ADMIN) as admin, Signer(broker, GREEDY) as client:
        # Its debt is paid in half a second.
        assert admin.ask(SEND, send_fields("large"), b"x" * 300_000).code == 0
        asked_s = time.monotonic()
        client.send(client.frame(PULL, 77, pull_fields("large", 0)))
        pop = {"consumerGroup": "g", "topic": "large", "queueId": "-1", "maxMsgNums": "1"}
        pop |= {"invisibleTime": "60000", "pollTime": "0", "initMode": "0", "bornTime": "0"}
        with Signer(broker, GREEDY) as other:
            assert other.ask(RequestCode.POP_MESSAGE, pop).code == ResponseCode.POLLING_FULL
            # Another topic of the same user is served meanwhile.
            assert other.ask(PULL, pull_fields("bills", 0)).code == 0
        assert client.answer_to(77).code == 0
        assert 0.2 < time.monotonic() - asked_s < 5


@pytest.mark.proves("access.guards.log-ins")
def test_wrong_signatures_of_an_address_are_limited(broker: LocalBroker) -> None:
    for known in (GREEDY, MODEST):
        with Signer(broker, known) as client:
            client.ask(SEND, send_fields("bills"), b"x")
    with Signer(broker, Credentials("greedy", "guess")) as guesser:
        remarks = [guesser.ask(SEND, send_fields("orders"), b"x").remark or "" for _ in range(60)]
    # This user has signed rightly from here: it is looked at.
    assert all("is wrong" in one for one in remarks)
    with Signer(broker, Credentials("mallory", "guess")) as guesser:
        remarks = [guesser.ask(SEND, send_fields("orders"), b"x").remark or "" for _ in range(60)]
    unseen = [one for one in remarks if "contrailFailedLogInsPerSecond" in one]
    assert len(unseen) > 30
    with Signer(broker, MODEST) as client:
        assert client.ask(SEND, send_fields("bills"), b"x").code == 0
