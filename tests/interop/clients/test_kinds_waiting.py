"""Delayed messages: delay levels and timers of official producers, and recalls."""

from __future__ import annotations

import pytest

from tests.interop.clients.kinds import ON_APACHE, Kinds
from tests.interop.clients.parties import Party
from tests.interop.clients.registry import clients_of
from tests.interop.clients.session import JavaSession
from tests.interop.clients.stored import read_back
from tests.interop.clients.traffic import numbered

LEVEL = 3
COUNT = 3
TIMER_MS = 3_100 if ON_APACHE else 60_100
# Slow enough for heartbeats: a client not heard of for 120 s is taken for dead.
TIMER_STEP_MS = 2000


@pytest.mark.proves("kinds.shown.java-timers")
@pytest.mark.parametrize("client", clients_of("delay levels"), indirect=True)
def test_delay_levels(party: Party, kinds: Kinds, topic: str) -> None:
    begun_ms = kinds.now_ms()
    party.send(topic, COUNT, delay_level=LEVEL)
    with party.consume(topic, f"group_{topic}") as consuming:
        kinds.wait_for(lambda: len(consuming.received()) >= COUNT, f"{topic} to be due")
        assert sorted(consuming.received_keys()) == numbered(1, COUNT)
    stored = read_back(kinds, topic, COUNT)
    assert sorted(one["key"] for one in stored) == numbered(1, COUNT)
    early = [one for one in stored if one["store_ms"] < begun_ms + kinds.delay_ms(LEVEL)]
    assert early == []


@pytest.mark.proves("kinds.shown.java-timers")
@pytest.mark.parametrize("client", clients_of("timers"), indirect=True)
def test_timers(session: JavaSession, kinds: Kinds, topic: str) -> None:
    session.do("producer", name=topic, group=f"senders_{topic}")
    begun_ms = kinds.now_ms()
    session.send(topic, topic, ["at"], DeliverTimeMs=begun_ms + TIMER_MS)
    session.send(topic, topic, ["in-ms"], DelayTimeMs=TIMER_MS)
    session.send(topic, topic, ["in-s"], DelayTimeSec=TIMER_MS // 1000)
    session.send(topic, topic, ["past"], DeliverTimeMs=begun_ms - 1)
    consuming = f"{topic}-consumer"
    session.do("consumer", name=consuming, group=f"group_{topic}", topic=topic)
    kinds.wait_for(lambda: session.received(consuming) == ["past"], "what is due", step_ms=0)
    kinds.wait_for(
        lambda: len(session.received(consuming)) == 4, "timers to be due", step_ms=TIMER_STEP_MS
    )
    assert sorted(session.received(consuming)) == ["at", "in-ms", "in-s", "past"]
    stored = {one["key"]: one["store_ms"] for one in read_back(kinds, topic, 4)}
    assert stored["at"] >= begun_ms + TIMER_MS
    assert stored["in-ms"] >= begun_ms + TIMER_MS
    assert stored["in-s"] >= begun_ms + TIMER_MS // 1000 * 1000
    session.close(topic, consuming)


@pytest.mark.proves("kinds.shown.java-timers", "kinds.recall.sealed")
@pytest.mark.parametrize("client", clients_of("recall"), indirect=True)
def test_recall(session: JavaSession, kinds: Kinds, topic: str) -> None:
    session.do("producer", name=topic, group=f"senders_{topic}")
    deliver_ms = kinds.now_ms() + TIMER_MS
    recalled, kept = session.send(topic, topic, ["recalled", "kept"], DeliverTimeMs=deliver_ms)
    session.send(topic, topic, ["later"], DeliverTimeMs=deliver_ms + 2000)
    answer = session.do("recall", producer=topic, topic=topic, handle=recalled["handle"])
    assert answer["message_id"] == recalled["message_id"]
    consuming = f"{topic}-consumer"
    session.do("consumer", name=consuming, group=f"group_{topic}", topic=topic)
    kinds.wait_for(
        lambda: "later" in session.received(consuming), "the timers", step_ms=TIMER_STEP_MS
    )
    kinds.wait_for(lambda: "kept" in session.received(consuming), "the other timer", step_ms=0)
    assert sorted(session.received(consuming)) == ["kept", "later"]
    # A delivered message cannot be recalled.
    late = session.answer(
        session.begin("recall", producer=topic, topic=topic, handle=kept["handle"])
    )
    assert late["event"] == "failed"
    session.close(topic, consuming)
