"""A folder whose damaged records were replaced is carried to Apache RocketMQ and back.

Apache's own store opens it in order, after a crash, and with nothing but the log; each time it
reads everything behind the replaced records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contrail.model.topic import REPLACED_TOPIC
from contrail.store.replace import replace_damaged
from contrail.store.verify import verify_store
from tests.interop.comparison import Record, read_log, read_messages_report
from tests.interop.generator import IPV4_STORE_HOST
from tests.interop.peers import JavaPeer, java_peer
from tests.interop.test_store_carried import (
    INDEX_SLOTS,
    RUN_TIMEOUT_S,
    SEED,
    SEGMENT_BYTES,
    Carried,
    by_queue,
    open_ours,
    queues_of,
    write_ours,
)

MESSAGE_COUNT = 2_000


@dataclass(frozen=True)
class Replaced:
    """A folder of ours in which some records were damaged, and replaced."""

    carried: Carried
    lost: set[int]
    before: list[Record]

    def with_folder(self, carried: Carried) -> Replaced:
        return replace(self, carried=carried)

    def read_by_apache(self) -> list[tuple[int, bool]]:
        """The place of each message by queue, and whether it is the replacing record."""
        folder, peer = self.carried.folder, self.carried.peer
        (folder / "options").write_text(self.carried._options(self.before), encoding="utf-8")
        arguments = [str(folder / "options"), "read"]
        peer.run("StoreCarrier", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
        _, seen = read_messages_report(folder / "messages.tsv")
        return [(one.fields.physical_offset, one.fields.topic == REPLACED_TOPIC) for one in seen]

    def expected(self, *, with_holes: bool) -> list[tuple[int, bool]]:
        in_queues = by_queue(self.before)
        places = [
            record.fields.physical_offset
            for queue in queues_of(self.before)
            for record in in_queues[queue]
        ]
        told = [(place, place in self.lost) for place in places]
        return told if with_holes else [one for one in told if not one[1]]


@pytest.fixture(scope="module", params=["apache-5", "apache-4"])
def peer(request: pytest.FixtureRequest) -> JavaPeer:
    return java_peer(request.param)


@pytest.fixture(scope="module")
def replaced(peer: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Replaced:
    """Every fiftieth record of the first half is damaged, and the last one: heads and bodies."""
    written = Carried(tmp_path_factory.mktemp("ours"), peer, SEED)
    write_ours(written, MESSAGE_COUNT)
    records = read_log(written.root)
    # Apache's rebuild begins a queue whose first message is gone with a blank row.
    queued = [one for one in records if one.fields.is_queued and one.fields.queue_offset > 0]
    victims = [*queued[3 : len(queued) // 2 : 50], queued[-1]]
    for number, victim in enumerate(victims):
        damage(written.root, victim, is_head=number % 2 == 0)
    report = replace_damaged(written.root, index_slot_count=INDEX_SLOTS)
    lost = {victim.fields.physical_offset for victim in victims}
    assert {one.physical_start for one in report.replaced} == lost and not report.left
    assert verify_store(written.root, repair=True, index_slot_count=INDEX_SLOTS).is_sound
    return Replaced(written, lost, records)


def damage(root: Path, victim: Record, *, is_head: bool) -> None:
    """Turn bits of its size and magic, or all of its body."""
    at, raw = victim.fields.physical_offset, victim.raw
    base = at - at % SEGMENT_BYTES
    with (root / "commitlog" / f"{base:020}").open("r+b") as segment:
        segment.seek(at - base)
        if is_head or victim.fields.body_bytes == 0:
            segment.write(bytes(byte ^ 0xFF for byte in raw[:8]))
        else:
            segment.write(raw[:84] + bytes(byte ^ 1 for byte in raw[84:]))


@pytest.mark.proves("store.damage.replaced")
def test_apache_reads_everything_around_replaced_records(
    replaced: Replaced, tmp_path: Path
) -> None:
    copy = replaced.with_folder(replaced.carried.copied(tmp_path))
    assert copy.read_by_apache() == replaced.expected(with_holes=True)
    # And back: everything is there, and is derived anew the same.
    assert verify_store(copy.carried.root, index_slot_count=INDEX_SLOTS).log == []
    with open_ours(copy.carried, IPV4_STORE_HOST) as store:
        for (topic, queue_id), members in by_queue(replaced.before).items():
            wanted = [m.fields.physical_offset for m in members]
            at, found = store.queue_offset_min(topic.encode(), queue_id), []
            while at < store.queue_offset_max(topic.encode(), queue_id):
                result = store.get(topic.encode(), queue_id, at, count_max=512, bytes_max=1 << 24)
                found += [message.physical_offset for message in result.messages]
                assert result.next_queue_offset > at, result.status
                at = result.next_queue_offset
            assert found == [place for place in wanted if place not in replaced.lost]


@pytest.mark.proves("store.damage.replaced")
def test_apache_recovers_behind_replaced_records_after_a_crash(
    replaced: Replaced, tmp_path: Path
) -> None:
    copy = replaced.with_folder(replaced.carried.copied(tmp_path))
    (copy.carried.root / "abort").write_text("1")
    (copy.carried.root / "checkpoint").unlink()
    assert copy.read_by_apache() == replaced.expected(with_holes=True)


@pytest.mark.proves("store.damage.replaced")
def test_apache_derives_everything_behind_replaced_records_from_the_log_alone(
    replaced: Replaced, tmp_path: Path
) -> None:
    """It closes each gap, as it closes all: nothing but the lost messages is missing."""
    copy = replaced.with_folder(replaced.carried.log_alone(tmp_path))
    assert copy.read_by_apache() == replaced.expected(with_holes=False)
