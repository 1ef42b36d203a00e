"""A store folder is carried between Contrail and Apache RocketMQ, and nothing is lost or changed.

Apache opens our folders with its own published store, reads every message by queue and by key and
appends; we reopen them; and the reverse; in order and after a crash. Every field is compared with
a prediction made from the drafts, and consume queue files byte by byte.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contrail.model.message import StoredMessage
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.interop.comparison import (
    ExpectedLog,
    Fields,
    Queue,
    Record,
    assert_same_files,
    assert_same_messages,
    decode_properties,
    derive_batch_queue_files,
    derive_index_rows,
    derive_queue_files,
    digest,
    index_keys,
    key_hash,
    log_end,
    read_files,
    read_index_files,
    read_keys_report,
    read_log,
    read_messages_report,
    read_records_report,
    sorted_properties,
    tags_code,
)
from tests.interop.generator import (
    BATCH_QUEUE_TOPIC,
    IPV4_STORE_HOST,
    IPV6_STORE_HOST,
    Generator,
    Kind,
    Run,
    encode_runs,
)
from tests.interop.peers import JavaPeer, java_peer

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
SEGMENT_BYTES = 2 << 20
QUEUE_FILE_BYTES = 250 * 20
BATCH_QUEUE_FILE_BYTES = 250 * 46
INDEX_SLOTS = 60_000

# Both sides read these: Contrail takes Apache's names.
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "mapperFileSizeBatchConsumeQueue": str(BATCH_QUEUE_FILE_BYTES),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": "80000",
    "flushDiskType": "ASYNC_FLUSH",
    "fileReservedTime": "100000",
    "diskMaxUsedSpaceRatio": "99",
}
# Only Apache needs these: large reads, and nothing beside the store itself.
APACHE_SETTINGS = {
    "enableCompaction": "false",
    "haListenPort": "0",
    # After a crash Apache re-indexes only recovered records; this makes it start early enough.
    "messageIndexSafe": "true",
    "maxTransferCountOnMessageInMemory": "100000",
    "maxTransferBytesOnMessageInMemory": str(1 << 24),
    "maxTransferCountOnMessageInDisk": "100000",
    "maxTransferBytesOnMessageInDisk": str(1 << 24),
}
MESSAGE_COUNTS = {"apache-5": 105_000, "apache-4": 50_000}
CRASHED_COUNT = 24_000
# `make test` carries folders of a quarter of these messages, the whole matrix all of them.
WHOLE, QUARTER = 1, 4
APPENDED_COUNT = 3_000
RUN_TIMEOUT_S = 240


class Carried:
    """A store folder, its expected content, and the Apache release that may open it."""

    def __init__(
        self, folder: Path, peer: JavaPeer, seed: int, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.root = folder / "store"
        self.peer = peer
        newer = peer.major >= 5
        self.generator = Generator(seed, long_topics=newer, inner_batches=newer)
        self.expected = ExpectedLog(SEGMENT_BYTES)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def records(self) -> list[Record]:
        return read_log(self.root)

    def copied(self, folder: Path) -> Carried:
        """The same folder once more, to be changed; the original stays as it is."""
        copy = Carried(folder, self.peer, SEED + 1)
        shutil.copytree(self.root, copy.root)
        copy.expected.physical_end = self.expected.physical_end
        copy.expected.messages = list(self.expected.messages)
        copy.expected.queue_ends.update(self.expected.queue_ends)
        return copy

    def log_alone(self, folder: Path) -> Carried:
        """The log of this folder alone, as if all derived files had been lost."""
        copy = Carried(folder, self.peer, SEED + 1)
        shutil.copytree(self.root / "commitlog", copy.root / "commitlog")
        (copy.root / "abort").write_text("1")
        return copy

    def apache(self, *steps: str, runs: list[Run] | None = None, host: bytes = b"") -> None:
        """Let Apache open the folder, take the steps, and check its report of a read."""
        reads = "read" in steps
        records = self.records if reads else []
        (self.folder / "messages").write_bytes(b"".join(encode_runs(runs or [], host)))
        (self.folder / "options").write_text(self._options(records), encoding="utf-8")
        arguments = [str(self.folder / "options"), *steps]
        home = self.folder / "home"
        self.peer.run("StoreCarrier", arguments, home=home, timeout_s=RUN_TIMEOUT_S)
        if reads:
            self._check_reports(records)
        self.expected.append(runs or [], host)

    def _options(self, records: list[Record]) -> str:
        fields = [record.fields for record in records]
        options = self.settings | APACHE_SETTINGS
        options["storePathRootDir"] = str(self.root)
        options["storePathCommitLog"] = str(self.root / "commitlog")
        options["contrail.out"] = str(self.folder)
        options["contrail.messages"] = str(self.folder / "messages")
        options["contrail.queues"] = self._list("queues", queues_of(records))
        options["contrail.keys"] = self._list("keys", keys_of(records))
        unqueued = [(one.physical_offset,) for one in fields if not one.is_queued]
        options["contrail.records"] = self._list("records", unqueued)
        if self.peer.major >= 5:
            options["contrail.batchTopics"] = BATCH_QUEUE_TOPIC.decode()
        return "".join(f"{name}={value}\n" for name, value in options.items())

    def _list(self, name: str, rows: list[tuple[str, int]] | list[tuple[int]] | Keys) -> str:
        path = self.folder / name
        lines = ("\t".join(map(str, row)) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
        return str(path)

    def _check_reports(self, records: list[Record]) -> None:
        """Apache saw every message, field by field and byte by byte, and found every key."""
        what = f"Apache {self.peer.version}, seed {SEED}"
        bounds, seen = read_messages_report(self.folder / "messages.tsv")
        assert bounds == queue_bounds(records), f"{what}: queue bounds differ"
        in_queues = by_queue(records)
        expected = [record for queue in queues_of(records) for record in in_queues[queue]]
        assert [one.fields for one in seen] == [one.fields for one in expected], what
        assert [one.record_digest for one in seen] == [digest(one.raw) for one in expected], what
        assert [one.tags_code for one in seen] == [tags_code(one.fields) for one in expected], what
        unqueued = [record for record in records if not record.fields.is_queued]
        looked_up = read_records_report(self.folder / "records.tsv")
        assert [one.fields for one in looked_up] == [one.fields for one in unqueued], what
        check_keys(read_keys_report(self.folder / "keys.tsv"), records, what)


Keys = list[tuple[str, str]]


def queues_of(records: list[Record]) -> list[Queue]:
    return sorted({record.fields.queue for record in records if record.fields.is_queued})


def keys_of(records: list[Record]) -> Keys:
    return sorted({(one.fields.topic, key) for one in records for key in index_keys(one.fields)})


def places_by_key(records: list[Record]) -> dict[tuple[str, str], list[int]]:
    """Where the messages of every key are, in the order of the log."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for fields, _ in records:
        for key in dict.fromkeys(index_keys(fields)):
            places[fields.topic, key].append(fields.physical_offset)
    return places


def by_queue(records: list[Record]) -> dict[Queue, list[Record]]:
    queues: dict[Queue, list[Record]] = defaultdict(list)
    for record in records:
        if record.fields.is_queued:
            queues[record.fields.queue].append(record)
    return queues


def queue_bounds(records: list[Record]) -> dict[Queue, tuple[int, int]]:
    """Minimum and next offset of every queue; an inner batch takes several offsets."""
    bounds: dict[Queue, tuple[int, int]] = {}
    for queue, members in by_queue(records).items():
        last = members[-1].fields
        count = decode_properties(last.properties.encode()).get("INNER_NUM", "1")
        bounds[queue] = (0, last.queue_offset + int(count))
    return bounds


def check_keys(found: dict[tuple[str, str], set[int]], records: list[Record], what: str) -> None:
    """Every key finds its messages. The index knows hashes only, so collisions are found too."""
    places: dict[int, set[int]] = defaultdict(set)
    for value, physical_offset in derive_index_rows(records, with_tags=False):
        places[value].add(physical_offset)
    assert sorted(found) == keys_of(records), f"{what}: not every key was asked for"
    wrong = {key: got for key, got in found.items() if got != places[key_hash(*key)]}
    assert not wrong, f"{what}: {len(wrong)} keys find other messages, such as {min(wrong.items())}"


def check_derived(carried: Carried, records: list[Record], what: str) -> None:
    """The queue files equal, to the byte, those derived from the log."""
    simple = derive_queue_files(records, QUEUE_FILE_BYTES)
    assert_same_files(read_files(carried.root, "consumequeue"), simple, what)
    batches = derive_batch_queue_files(records, BATCH_QUEUE_FILE_BYTES)
    assert_same_files(read_files(carried.root, "batchconsumequeue"), batches, what)


def check_log(carried: Carried, what: str) -> list[Record]:
    """The log holds every predicted message, in place, and nothing else; times never go back."""
    records = carried.records
    fields = [record.fields for record in records]
    assert_same_messages(fields, carried.expected.messages, f"{what}, seed {SEED}")
    times = [one.store_timestamp_ms for one in fields]
    assert times == sorted(times), f"{what}: store times go back"
    return records


# Our side


def open_ours(carried: Carried, store_host: bytes = IPV4_STORE_HOST) -> MessageStore:
    properties = carried.settings | {"storePathRootDir": str(carried.root)}
    return MessageStore.open(
        StoreConfig.from_properties(properties),
        store_host=store_host,
        batch_topics=frozenset([BATCH_QUEUE_TOPIC]),
    )


def append_ours(store: MessageStore, carried: Carried, runs: list[Run], host: bytes) -> None:
    """Append to our store; where each record landed must be where it was predicted to."""
    known = len(carried.expected.messages)
    carried.expected.append(runs, host)
    landed: list[tuple[int, int]] = []
    for run in runs:
        if run.kind is Kind.INNER_BATCH:
            appended = store.append_inner_batch(run.drafts[0])
        elif run.kind is Kind.SPLIT_BATCH:
            appended = store.append_batch(run.drafts)
        else:
            appended = store.append(run.drafts)
        landed += zip(appended.queue_offsets, appended.physical_offsets, strict=True)
    predicted = carried.expected.messages[known:]
    assert landed == [(one.queue_offset, one.physical_offset) for one in predicted]


def write_ours(carried: Carried, message_count: int) -> None:
    """Write a folder in two openings: the second stores under an IPv6 host."""
    for host in (IPV4_STORE_HOST, IPV6_STORE_HOST):
        store = open_ours(carried, host)
        append_ours(store, carried, carried.generator.runs(message_count // 2), host)
        store.close()


def read_ours(store: MessageStore, records: list[Record], what: str) -> None:
    """Our store hands out every message, field by field, by queue, by place and by key."""
    for (topic, queue_id), members in by_queue(records).items():
        messages = list(read_queue(store, topic.encode(), queue_id))
        got = [fields_of(message) for message in messages]
        assert got == [member.fields for member in members], f"{what}: {topic}-{queue_id}"
    for record in records:
        if not record.fields.is_queued:
            message = store.record(record.fields.physical_offset)
            assert fields_of(message) == record.fields, what
    for (topic, key), places in places_by_key(records).items():
        found = store.query(topic.encode(), key.encode(), count_max=64)
        assert [one.physical_offset for one in found] == places, f"{what}: {topic}#{key}"


def read_queue(store: MessageStore, topic: bytes, queue_id: int) -> Iterator[StoredMessage]:
    queue_offset = store.queue_offset_min(topic, queue_id)
    while queue_offset < store.queue_offset_max(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset, count_max=512, bytes_max=1 << 24)
        messages = result.messages
        assert messages, f"{topic!r}-{queue_id} at {queue_offset}: {result.status}"
        yield from messages
        queue_offset = result.next_queue_offset


def fields_of(message: StoredMessage) -> Fields:
    return Fields(
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.record_bytes,
        message.sys_flag,
        message.flag,
        message.born_timestamp_ms,
        message.born_host.hex(),
        message.store_timestamp_ms,
        message.store_host.hex(),
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body_crc,
        len(message.body),
        digest(message.body),
        sorted_properties(message.properties),
    )


def tear_tail(carried: Carried, records: list[Record]) -> None:
    """Leave the first half of one more record behind the log's end, as a crash may."""
    end = log_end(records)
    assert end > SEGMENT_BYTES, "the crash must be behind the first segment"
    whole = bytearray(max(records[-100:], key=lambda record: len(record.raw)).raw)
    whole[28:36] = end.to_bytes(8, "big")
    base = end - end % SEGMENT_BYTES
    assert base + SEGMENT_BYTES - end > len(whole), "the tail must fit this segment"
    with (carried.root / "commitlog" / f"{base:020}").open("r+b") as segment:
        segment.seek(end - base)
        segment.write(whole[: len(whole) // 2])


# The tests


@pytest.fixture(scope="module", params=["apache-5", "apache-4"])
def peer(request: pytest.FixtureRequest) -> JavaPeer:
    return java_peer(request.param)


@pytest.fixture(scope="module", params=[QUARTER, pytest.param(WHOLE, marks=pytest.mark.matrix)])
def divisor(request: pytest.FixtureRequest) -> int:
    """How many times fewer messages than all of them a folder gets."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def message_count(peer: JavaPeer, divisor: int) -> int:
    return MESSAGE_COUNTS[peer.name] // divisor


@pytest.fixture(scope="module")
def written_by_us(
    peer: JavaPeer, message_count: int, tmp_path_factory: pytest.TempPathFactory
) -> Carried:
    carried = Carried(tmp_path_factory.mktemp("ours"), peer, SEED)
    write_ours(carried, message_count)
    return carried


@pytest.fixture(scope="module")
def written_by_apache(
    peer: JavaPeer, message_count: int, tmp_path_factory: pytest.TempPathFactory
) -> Carried:
    carried = Carried(tmp_path_factory.mktemp("theirs"), peer, SEED)
    runs = carried.generator.runs(message_count)
    carried.apache("append", runs=runs, host=IPV6_STORE_HOST)
    return carried


@pytest.mark.proves("store.carried.every-field")
def test_apaches_files_equal_the_prediction(written_by_apache: Carried) -> None:
    """Ours to trust: if this fails, the prediction is wrong and no other test here counts."""
    records = check_log(written_by_apache, "the log by Apache")
    assert log_end(records) > 2 * SEGMENT_BYTES, "three segments or more"
    check_derived(written_by_apache, records, "queues by Apache")
    indexed = [
        (entry.key_hash, entry.physical_offset)
        for _, entries, _ in read_index_files(written_by_apache.root, INDEX_SLOTS)
        for entry in entries
    ]
    assert indexed == derive_index_rows(records, with_tags=written_by_apache.peer.major >= 5)


@pytest.mark.proves("store.carried.every-field")
def test_our_files_equal_the_prediction(written_by_us: Carried, message_count: int) -> None:
    records = check_log(written_by_us, "our log")
    assert len(records) >= message_count
    assert log_end(records) > 2 * SEGMENT_BYTES, "three segments or more"
    check_derived(written_by_us, records, "our queues")


@pytest.mark.proves("store.carried.queue-files-equal")
def test_apache_derives_our_queue_files_from_our_log(
    written_by_us: Carried, tmp_path: Path
) -> None:
    rebuilt = written_by_us.log_alone(tmp_path)
    rebuilt.apache("dispatch")
    for folder in ("consumequeue", "batchconsumequeue"):
        ours, theirs = (read_files(one.root, folder) for one in (written_by_us, rebuilt))
        assert_same_files(ours, theirs, f"our {folder} against Apache's from the same log")


@pytest.mark.proves("store.carried.queue-files-equal")
def test_we_derive_apaches_queue_files_from_its_log(
    written_by_apache: Carried, tmp_path: Path
) -> None:
    rebuilt = written_by_apache.log_alone(tmp_path)
    store = open_ours(rebuilt)
    store.close()
    for folder in ("consumequeue", "batchconsumequeue"):
        ours, theirs = (read_files(one.root, folder) for one in (rebuilt, written_by_apache))
        assert_same_files(ours, theirs, f"our {folder} from Apache's log against its own")


@pytest.mark.proves("store.carried.to-apache")
def test_apache_reads_and_extends_our_folder_and_we_go_on(
    written_by_us: Carried, tmp_path: Path
) -> None:
    carried = written_by_us.copied(tmp_path)
    runs = carried.generator.runs(APPENDED_COUNT)
    carried.apache("read", "append", runs=runs, host=IPV4_STORE_HOST)
    records = check_log(carried, "our log after Apache appended")
    store = open_ours(carried)
    read_ours(store, records, "our folder back from Apache")
    append_ours(store, carried, carried.generator.runs(APPENDED_COUNT), IPV4_STORE_HOST)
    store.close()
    check_derived(carried, check_log(carried, "our log, extended by both"), "queues by both")


@pytest.mark.proves("store.carried.from-apache")
def test_we_read_and_extend_apaches_folder_and_it_goes_on(
    written_by_apache: Carried, tmp_path: Path
) -> None:
    carried = written_by_apache.copied(tmp_path)
    store = open_ours(carried)
    read_ours(store, carried.records, "Apache's folder in our hands")
    append_ours(store, carried, carried.generator.runs(APPENDED_COUNT), IPV4_STORE_HOST)
    store.close()
    carried.apache("read")
    check_derived(carried, check_log(carried, "Apache's log, extended by us"), "queues by both")


@pytest.mark.proves("store.carried.crashed")
def test_apache_recovers_our_folder_after_a_crash(
    peer: JavaPeer, divisor: int, tmp_path: Path
) -> None:
    carried = Carried(tmp_path, peer, SEED + 2)
    crash_ours(carried, CRASHED_COUNT // divisor)
    assert (carried.root / "abort").exists()
    tear_tail(carried, check_log(carried, "our log after a crash"))
    runs = carried.generator.runs(APPENDED_COUNT)
    carried.apache("read", "append", runs=runs, host=IPV4_STORE_HOST)
    check_derived(carried, check_log(carried, "our crashed log, extended"), "queues by both")


@pytest.mark.proves("store.carried.crashed")
def test_we_recover_apaches_folder_after_a_crash(
    peer: JavaPeer, divisor: int, tmp_path: Path
) -> None:
    carried = Carried(tmp_path, peer, SEED + 3)
    runs = carried.generator.runs(CRASHED_COUNT // divisor)
    carried.apache("append", "halt", runs=runs, host=IPV6_STORE_HOST)
    assert (carried.root / "abort").exists()
    records = check_log(carried, "Apache's log after a crash")
    tear_tail(carried, records)
    store = open_ours(carried)
    read_ours(store, records, "Apache's crashed folder in our hands")
    append_ours(store, carried, carried.generator.runs(APPENDED_COUNT), IPV4_STORE_HOST)
    store.close()
    carried.apache("read")
    check_derived(carried, check_log(carried, "Apache's crashed log, extended"), "queues by both")


def crash_ours(carried: Carried, message_count: int) -> None:
    """Write our folder in another process that dies without closing it."""
    given = [str(carried.folder), carried.peer.name, str(message_count)]
    command = [sys.executable, "-c", _CRASHING, *given]
    paths = os.pathsep.join(str(folder) for folder in (ROOT / "src", ROOT))
    environment = os.environ | {"PYTHONPATH": paths}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=RUN_TIMEOUT_S)
    carried.expected.append(carried.generator.runs(message_count), IPV4_STORE_HOST)


ROOT = Path(__file__).parents[2]
_CRASHING = """
import sys
from pathlib import Path
from tests.interop.test_store_carried import write_and_die
write_and_die(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
"""


def write_and_die(folder: Path, peer_name: str, message_count: int) -> None:
    carried = Carried(folder, java_peer(peer_name), SEED + 2)
    store = open_ours(carried)
    append_ours(store, carried, carried.generator.runs(message_count), IPV4_STORE_HOST)
    os._exit(0)
