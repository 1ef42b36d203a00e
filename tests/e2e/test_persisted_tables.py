"""No request makes a file that its own reader refuses: extreme values, saved twice, read again."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from contrail.broker.app import Broker
from contrail.broker.tables import Tables
from contrail.clock import ManualClock
from contrail.model.entry_sieve import Refused
from contrail.model.topic import SYSTEM_GROUP_PREFIX
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.state.kv import KvTable, decode_kv
from contrail.protocol.bodies.properties_text import parse_properties, render_properties
from contrail.protocol.codes import RequestCode as Code
from contrail.runtime.files import FileSystem
from contrail.store import config_files
from contrail.testing import LocalCluster, eventually
from contrail.testing.cluster import LocalBroker
from tests.e2e.extreme_requests import (
    BROKER_TABLES,
    GROUP,
    NAMESERVER_SHAPES,
    ONE_WAY,
    READERS,
    SHAPES,
    TOPIC,
    Case,
    cases,
)

PROPERTIES = {
    "contrailAutoTopicsPerSecond": "1000000",
    "contrailAutoGroupsPerSecond": "1000000",
}


class Wire:
    """One connection that sends frames as they are, and opens another when it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opaque = 0
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, case: Case) -> tuple[int, str] | None:
        """Code and remark of the answer; None for a connection that was closed."""
        self._opaque += 1
        header = {
            "code": case.code,
            "flag": case.flag,
            "opaque": self._opaque,
            "extFields": case.fields,
            "language": "JAVA",
            "version": 401,
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        frame = struct.pack(">II", 4 + len(text) + len(case.body), len(text)) + text + case.body
        try:
            self._socket.sendall(frame)
            if case.flag & ONE_WAY:
                # The answer to the next request says that this one was looked at.
                version = Case("", Code.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, b"")
                self.ask(version)
                return 0, ""
            answer = self._answer()
        except ConnectionError:
            answer = None
        if answer is None:
            self.close()
            self._socket = self._connected()
            return None
        return answer.get("code", 0), answer.get("remark") or ""

    def _answer(self) -> dict[str, Any] | None:
        prefix = self._read(8)
        if prefix is None:
            return None
        length, header_length = struct.unpack(">II", prefix)
        rest = self._read(length - 4)
        if rest is None:
            return None
        answer: dict[str, Any] = json.loads(rest[: header_length & 0xFFFFFF])
        # Notices of the server come in between.
        return answer if answer["flag"] & 1 else self._answer()

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        # Files are read again by this process: what reached them need not survive a power cut.
        patch.setattr(FileSystem, "fsync", lambda self, fd: None)
        patch.setattr(FileSystem, "sync_folder", lambda self, path: None)
        with LocalCluster(clock=ManualClock(), properties=PROPERTIES) as cluster:
            yield cluster


def offsets_are_committed(cluster: LocalCluster, app: Broker) -> bool:
    cluster.advance(ms=100)
    return not app.kinds.pop.pops.has_work


def remembered(tables: Tables) -> dict[str, object]:
    """The entries of the tables, in a form that can be compared."""
    filters = [(entry.topic, entry.group, entry.expression) for entry in tables.filters.snapshot()]
    return {
        "topics.json": dict(tables.topics.table.topics),
        "subscriptionGroup.json": (
            dict(tables.groups.table.groups),
            tables.groups.table.forbidden_table(),
        ),
        "consumerOffset.json": {
            key: queues
            for key, queues in tables.consumer_offsets.snapshot().offsets.items()
            if SYSTEM_GROUP_PREFIX not in key
        },
        "consumerFilter.json": sorted(filters),
        "broker.properties": dict(tables.settings.changed),
    }


def as_read(name: str, content: bytes) -> tuple[object, Refused]:
    """The entries that the reader of a file finds in it, in the same form."""
    if name == "topics.json":
        topics = config_files.TOPICS.parse(content)
        return topics.topics, topics.refused
    if name == "subscriptionGroup.json":
        groups = config_files.GROUPS.parse(content)
        return (groups.groups, groups.forbidden), groups.refused
    if name == "consumerOffset.json":
        offsets = config_files.CONSUMER_OFFSETS.parse(content)
        of_clients = {k: v for k, v in offsets.offsets.items() if SYSTEM_GROUP_PREFIX not in k}
        return of_clients, offsets.refused
    if name == "consumerFilter.json":
        filters = config_files.CONSUMER_FILTERS.parse(content)
        entries = [entry for groups in filters.filters.values() for entry in groups.values()]
        return sorted((e.topic, e.group, e.expression) for e in entries), filters.refused
    return parse_properties(content.decode()), ()


def epochs(app: Broker) -> dict[str, object]:
    """Grow with every change, by the file that it is for."""
    tables = app.tables
    return {
        "topics.json": tables.topics.table.epoch,
        "subscriptionGroup.json": tables.groups.table.epoch,
        "consumerOffset.json": tables.consumer_offsets.snapshot().offsets,
        "consumerFilter.json": tables.filters.epoch,
        "broker.properties": tables.settings.epoch,
    }


async def assert_readable(app: Broker, names: set[str], label: str) -> None:
    """Assert that a start would read the tables as they are written now."""
    held = remembered(app.tables)
    for table in app.tables.persistence._tables:
        if table.name in names:
            found, refused = as_read(table.name, table.snapshot()())
            assert refused == (), label
            assert found == held[table.name], label


async def saved_twice(app: Broker) -> None:
    """Write every table, and once more, so that the backup holds the same."""
    persistence = app.tables.persistence
    for _ in range(2):
        while persistence.busy:
            await asyncio.sleep(0.001)
        tables = [table for table in persistence._tables if table.name in epochs(app)]
        assert await persistence._write(tables) == []


def assert_files_readable(broker: LocalBroker) -> None:
    """No reader has put anything aside, and backups are as good as the files."""
    folder = broker.folder / "store" / "config"
    assert [p.name for p in folder.iterdir() if p.suffix in (".quarantine", ".damaged")] == []
    assert broker.app is not None
    for name in epochs(broker.app):
        for path in (folder / name, folder / f"{name}.bak"):
            if path.exists() and path.stat().st_size:
                assert as_read(name, path.read_bytes())[1] == ()


def prepare(wire: Wire) -> None:
    """A topic and a group for the requests to name."""
    topic = {"topic": TOPIC, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    for fields in (topic, {**topic, "topic": "gone"}):
        case = Case(
            "", Code.UPDATE_AND_CREATE_TOPIC, {**fields, "topicFilterType": "SINGLE_TAG"}, b""
        )
        assert wire.ask(case) == (0, "")
    for name in (GROUP, "gone"):
        body = json.dumps({"groupName": name}).encode()
        case = Case("", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert wire.ask(case) == (0, "")
    send = {
        "producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "queueId": "0",
        "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
        "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    answer = wire.ask(Case("", Code.SEND_MESSAGE, send, b"first"))
    assert answer is not None and answer[0] == 0


@pytest.mark.proves("broker.tables.refused-entries", "broker.tables.extreme-values")
@pytest.mark.parametrize("code", SHAPES, ids=lambda code: code.name)
def test_extreme_values_leave_a_brokers_files_readable(cluster: LocalCluster, code: Code) -> None:
    broker = cluster.brokers[0]
    app = broker.app
    assert app is not None
    wire = Wire(broker.port)
    prepare(wire)
    outcomes: Counter[str] = Counter()
    failed = app.router.counts["failed"]
    for case in cases(code, SHAPES[code]):
        before = epochs(app)
        answer = wire.ask(case)
        outcomes["closed" if answer is None else str(answer[0])] += 1
        assert app.router.counts["failed"] == failed, (case.label, answer)
        changed = {name for name, epoch in epochs(app).items() if epoch != before[name]}
        if changed:
            cluster.run(assert_readable(app, changed, case.label))
    # Offsets of popped messages are committed once the log is durable.
    eventually(lambda: offsets_are_committed(cluster, app), "pops are durable")
    cluster.run(saved_twice(app))
    assert_files_readable(broker)
    held = remembered(app.tables)
    wire.close()
    broker.stop()
    broker.start()
    assert_files_readable(broker)
    assert broker.app is not None
    assert remembered(broker.app.tables) == held
    print(f"{code.name}: {sum(outcomes.values())} cases, answers {dict(outcomes)}")


@pytest.mark.proves("broker.tables.refused-entries")
@pytest.mark.parametrize("code", NAMESERVER_SHAPES, ids=lambda code: code.name)
def test_extreme_values_leave_a_nameservers_files_readable(
    cluster: LocalCluster, code: Code
) -> None:
    server = cluster.nameservers[0]
    app = server.app
    assert app is not None
    wire = Wire(server.port)
    outcomes: Counter[str] = Counter()
    failed = app.router.counts["failed"]
    for case in cases(code, NAMESERVER_SHAPES[code]):
        answer = wire.ask(case)
        outcomes["closed" if answer is None else str(answer[0])] += 1
        assert app.router.counts["failed"] == failed, (case.label, answer)
        stored = decode_kv(app._kv.encode())
        assert stored.refused == (), case.label
        assert KvTable(stored.namespaces).encode() == app._kv.encode(), case.label
        written = parse_properties(render_properties(app.config.to_properties()))
        assert NameServerConfig.from_properties(written) == app.config, case.label
    # After any refusals, two more changes, so that the backup is written too.
    for value in ("1", "2"):
        put = Case("", Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": value}, b"")
        assert wire.ask(put) == (0, "")
    held = app._kv.encode()
    wire.close()
    server.stop()
    server.start()
    assert server.app is not None
    assert server.app._kv.encode() == held
    stray = [p.name for p in server.folder.iterdir() if p.suffix in (".quarantine", ".damaged")]
    assert stray == []
    for name in ("kvConfig.json", "kvConfig.json.bak"):
        assert decode_kv((server.folder / name).read_bytes()).refused == ()
    print(f"{code.name}: {sum(outcomes.values())} cases, answers {dict(outcomes)}")


@pytest.mark.proves("broker.tables.extreme-values")
def test_every_request_and_every_table_is_in_the_generator(cluster: LocalCluster) -> None:
    broker, nameserver = cluster.brokers[0].app, cluster.nameservers[0].app
    assert broker is not None and nameserver is not None
    served = {Code(code) for code in {*broker.router._handlers, *nameserver.router._handlers}}
    generated = {*SHAPES, *NAMESERVER_SHAPES}
    assert generated & READERS == set()
    assert served - generated - READERS == set(), "do they reach a table that is written to a file?"
    assert (generated | READERS) - served == set(), "nobody answers these"
    files = {table.name for table in broker.tables.persistence._tables}
    assert files == BROKER_TABLES, "does a request reach this file?"


@pytest.mark.proves("broker.tables.extreme-values")
def test_how_many_cases_there_are() -> None:
    count = sum(1 for code, shapes in SHAPES.items() for _ in cases(code, shapes))
    count += sum(1 for code, shapes in NAMESERVER_SHAPES.items() for _ in cases(code, shapes))
    print(f"{count} cases of {len(SHAPES) + len(NAMESERVER_SHAPES)} requests")
    assert count > 9000
