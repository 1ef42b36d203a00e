"""Official consumers fail: a message comes again, later each time, and at last is put aside."""

from __future__ import annotations

import pytest

from tests.interop.clients.kinds import ON_APACHE, Kinds
from tests.interop.clients.parties import Party
from tests.interop.clients.registry import clients_of
from tests.interop.clients.stored import read_all, read_back
from tests.interop.clients.topics import create_group
from tests.interop.clients.traffic import numbered

COUNT = 4
# The delay level of a message that failed once; each further failure adds one.
FIRST_RETRY_LEVEL = 3
MAX_RECONSUME_TIMES = 2
FOR_EVER = 99


@pytest.mark.proves("kinds.shown.java-retry", "kinds.shown.retry-cells")
@pytest.mark.parametrize("client", clients_of("retry"), indirect=True)
def test_retry(party: Party, kinds: Kinds, topic: str) -> None:
    group = f"group_{topic}"
    create_group(kinds, group)
    party.send(topic, COUNT)
    begun_ms = kinds.now_ms()
    with party.consume(topic, group, fail_times={"k-2": 2}) as consuming:
        kinds.wait_for(lambda: len(consuming.received()) >= COUNT + 2, f"two retries of {topic}")
        once = [key for key in consuming.received_keys() if key != "k-2"]
        assert sorted(once) == ["k-1", "k-3", "k-4"]
        assert consuming.times("k-2") == [0, 1, 2]
    copies = sorted(read_back(kinds, f"%RETRY%{group}", 2), key=lambda copy: copy["store_ms"])
    assert [copy["reconsume_times"] for copy in copies] == [1, 2], copies
    assert {copy["properties"]["RETRY_TOPIC"] for copy in copies} == {topic}
    # Neither was early.
    due_ms = begun_ms
    for failures, copy in enumerate(copies):
        due_ms += kinds.delay_ms(FIRST_RETRY_LEVEL + failures)
        assert copy["store_ms"] >= due_ms
        due_ms = copy["store_ms"]


@pytest.mark.proves("kinds.shown.java-retry", "kinds.shown.retry-cells")
@pytest.mark.parametrize("client", clients_of("dead letters"), indirect=True)
def test_dead_letters(party: Party, client_name: str, kinds: Kinds, topic: str) -> None:
    if ON_APACHE and client_name == "cpp":
        reason = "the original fails at the last send-back of a client that names no origin topic"
        print(reason)
        pytest.skip(reason)
    group = f"group_{topic}"
    # One client takes the limit of the group, for want of one of its own.
    create_group(kinds, group, retry_max_times=MAX_RECONSUME_TIMES)
    party.send(topic, COUNT)
    dead_topic = f"%DLQ%{group}"
    with party.consume(
        topic, group, fail_times={"k-1": FOR_EVER}, max_reconsume_times=MAX_RECONSUME_TIMES
    ) as consuming:
        kinds.wait_for(lambda: len(read_all(kinds, dead_topic)) > 0, f"a message in {dead_topic}")
        kinds.wait_for(
            lambda: set(consuming.received_keys()) >= set(numbered(1, COUNT)),
            "the messages that do not fail",
        )
        assert consuming.times("k-1") == [0, 1, 2]
        assert sorted(set(consuming.received_keys())) == numbered(1, COUNT)
        assert len(consuming.received()) == COUNT + MAX_RECONSUME_TIMES
    (dead,) = read_all(kinds, dead_topic)
    assert dead["key"] == "k-1"
    assert dead["properties"]["RETRY_TOPIC"] == topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"]
    # The dead-letter topic can be consumed like any other.
    with party.consume(dead_topic, f"looking_{topic}") as looking:
        kinds.wait_for(lambda: bool(looking.received()), f"a consumer of {dead_topic}", step_ms=0)
        assert looking.received_keys() == ["k-1"]
