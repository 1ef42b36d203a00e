"""Half messages that are remembered for their ends."""

from __future__ import annotations

import pytest

from contrail.broker.state.recent_halves import RecentHalves
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.record import decode_record
from contrail.model.topic import HALF_TOPIC
from tests.unit.kernels.material import IPV4, IPV6

DRAFT = MessageDraft(
    HALF_TOPIC.encode(), 0, b"body", b"UNIQ_KEY\x01AC\x02PGROUP\x01g\x02", 3, 1, 7, IPV4, 2
)


def put(recent: RecentHalves, physical_offset: int, draft: MessageDraft = DRAFT) -> None:
    recent.put(draft, queue_offset=5, physical_offset=physical_offset, store_timestamp_ms=99)


@pytest.mark.parametrize("store_host", [IPV4, IPV6])
@pytest.mark.parametrize("born_host", [IPV4, IPV6])
def test_a_remembered_half_message_is_the_one_of_the_log(
    born_host: bytes, store_host: bytes
) -> None:
    draft = DRAFT._replace(born_host=born_host)
    recent = RecentHalves(store_host=store_host)
    put(recent, 4096, draft)
    record = b"".join(build_run([draft], [5], 4096, 99, store_host, False))
    assert recent.take(4096) == decode_record(record)


def test_a_message_is_remembered_for_one_end() -> None:
    recent = RecentHalves(store_host=IPV4)
    put(recent, 100)
    assert isinstance(recent.take(100), StoredMessage)
    assert recent.take(100) is None
    assert recent.take(101) is None


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    recent = RecentHalves(store_host=IPV4, count_max=2)
    for place in (100, 200, 300):
        put(recent, place)
    assert len(recent) == 2
    assert recent.take(100) is None
    assert recent.take(300) is not None


def test_bytes_are_bounded_and_given_back() -> None:
    recent = RecentHalves(store_host=IPV4, bytes_max=3000)
    large = DRAFT._replace(body=bytes(1200))
    for place in range(0, 50_000, 2000):
        put(recent, place, large)
        assert len(recent) <= 2
        if place % 4000:
            recent.take(place)
    put(recent, 90_000, large)
    assert recent.take(90_000) is not None
    put(recent, 1, DRAFT._replace(body=bytes(4000)))
    assert len(recent) == 0


def test_a_message_that_the_store_may_change_is_not_remembered() -> None:
    recent = RecentHalves(store_host=IPV4)
    put(recent, 100, DRAFT._replace(properties=b"__CRC32#\x010123456789\x02"))
    assert recent.take(100) is None
