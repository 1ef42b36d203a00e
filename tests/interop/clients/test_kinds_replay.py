"""Where a group goes on: reset to a time, online and offline, and where a new group starts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.interop.clients.kinds import Kinds, open_kinds
from tests.interop.clients.registry import clients_of
from tests.interop.clients.session import JavaSession
from tests.interop.clients.topics import create_topic
from tests.interop.differential.raw import RawConnection
from tests.interop.mqadmin import MqAdmin

GAP_MS = 3000
EARLY = ["early-1", "early-2", "early-3"]
LATE = ["late-1", "late-2", "late-3"]
NEW = ["new-1"]

SEGMENT_BYTES = 1 << 20
FILLER_BYTES = 64 << 10
FILLERS = [f"filler-{number}" for number in range(40)]

_GET_MIN_OFFSET = 31
_DELETE_EXPIRED_COMMITLOG = 329
_DELETE_TIMEOUT_S = 120.0
_POLL_S = 0.2


@pytest.fixture(scope="module")
def mqadmin(kinds: Kinds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with MqAdmin(kinds.namesrv, tmp_path_factory.mktemp("mqadmin")) as started:
        yield started


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """A broker that deletes its full files on request."""
    properties = {
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        "fileReservedTime": "0",
        "cleanResourceInterval": "1000",
    }
    folder = tmp_path_factory.mktemp("trimmed")
    with open_kinds(folder, brokers=1, properties=properties) as started:
        yield started


@pytest.mark.proves("kinds.order.reset")
@pytest.mark.parametrize("client", clients_of("reset by time"), indirect=True)
def test_reset_by_time(session: JavaSession, kinds: Kinds, mqadmin: MqAdmin, topic: str) -> None:
    """First the consumer is online and is notified; then it is offline and reads the new offset."""
    group, consuming = f"group_{topic}", f"{topic}-consumer"
    session.do("producer", name=topic, group=f"senders_{topic}")
    session.send(topic, topic, EARLY)
    since_ms = time_between(kinds)
    session.send(topic, topic, LATE)
    session.do("consumer", name=consuming, group=group, topic=topic)
    kinds.wait_for(lambda: len(session.received(consuming)) == 6, "all messages", step_ms=0)
    reset = ("resetOffsetByTime", "-g", group, "-t", topic, "-s", str(since_ms), "-f", "true")
    printed = mqadmin.run(*reset)
    # The consumer is reset when its pull is answered, which may wait for messages for 15 s.
    kinds.wait_for(lambda: len(session.received(consuming)) == 9, f"the late ones\n{printed}")
    assert sorted(session.received(consuming)) == sorted(EARLY + LATE + LATE)
    session.close(consuming)
    printed = mqadmin.run(*reset)
    session.do("consumer", name=f"{consuming}-2", group=group, topic=topic)
    kinds.wait_for(lambda: len(session.received(f"{consuming}-2")) >= 3, printed, step_ms=0)
    session.send(topic, topic, NEW)
    kinds.wait_for(lambda: "new-1" in session.received(f"{consuming}-2"), "a new one", step_ms=0)
    assert sorted(session.received(f"{consuming}-2")) == sorted(LATE + NEW)
    session.close(topic, f"{consuming}-2")


@pytest.mark.proves("kinds.order.consume-from")
@pytest.mark.parametrize("client", clients_of("first start"), indirect=True)
def test_where_a_new_group_starts(session: JavaSession, trimmed: Kinds, topic: str) -> None:
    """At the first message kept, at the end, or at a time.

    While a queue has its very first message, a new group starts there, whatever its setting, as
    with the original: so some messages must be deleted.
    """
    where = {"namesrv": trimmed.namesrv}
    create_topic(trimmed, topic, queue_count=1)
    session.do("producer", name=topic, group=f"senders_{topic}", **where)
    session.send(topic, topic, ["gone-1", "gone-2"])
    session.send(topic, f"{topic}_filler", FILLERS, body_bytes=FILLER_BYTES)
    session.send(topic, topic, EARLY)
    since_ms = time_between(trimmed)
    session.send(topic, topic, LATE)
    delete_full_files(trimmed, topic, queue_offset_min=2)
    starts = {"first": EARLY + LATE, "last": [], str(since_ms): LATE}
    for start in starts:
        told = {"name": f"{topic}-{start}", "group": f"{start}_{topic}", "from": start}
        session.do("consumer", topic=topic, await_queue=True, **told, **where)
    session.send(topic, topic, NEW)
    for start, expected in starts.items():
        check_received(session, trimmed, f"{topic}-{start}", expected + NEW)
    session.close(topic)


def check_received(session: JavaSession, kinds: Kinds, name: str, expected: list[str]) -> None:
    count = len(expected)
    kinds.wait_for(lambda: len(session.received(name)) >= count, f"{expected}", step_ms=0)
    assert sorted(session.received(name)) == sorted(expected)
    session.close(name)


def time_between(kinds: Kinds) -> int:
    """A time well after the messages sent before, and well before the next ones."""
    kinds.let_pass(GAP_MS)
    between_ms = kinds.now_ms()
    kinds.let_pass(GAP_MS)
    return between_ms


def delete_full_files(kinds: Kinds, topic: str, *, queue_offset_min: int) -> None:
    """Have the broker delete all files but the last, and wait until the queue begins later."""
    deadline = time.monotonic() + _DELETE_TIMEOUT_S
    with RawConnection(kinds.brokers[0].address) as connection:
        while True:
            connection.ask(_DELETE_EXPIRED_COMMITLOG)
            answer = connection.ask(_GET_MIN_OFFSET, {"topic": topic, "queueId": "0"})
            if int(answer.fields["offset"]) == queue_offset_min:
                return
            assert time.monotonic() < deadline, f"{topic} still begins at {answer.fields}"
            time.sleep(_POLL_S)
