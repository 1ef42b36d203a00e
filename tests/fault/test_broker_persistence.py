"""The broker's tables on the disk: written when they change, read back as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.services import stored_tables
from contrail.broker.services.groups import Groups
from contrail.broker.services.persistence import Persistence
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.errors import RequestRejected, StoreError
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store import config_files

NOW_MS = 1_760_000_000_000


class Counter:
    """A table of one number."""

    def __init__(self) -> None:
        self.value = 0
        self.changed = False

    def add(self) -> None:
        self.value += 1
        self.changed = True

    def take_changed(self) -> bool:
        was, self.changed = self.changed, False
        return was

    def register(self, persistence: Persistence) -> None:
        def snapshot() -> object:
            value = self.value
            return lambda: str(value).encode()

        persistence.register("counter", take_changed=self.take_changed, snapshot=snapshot)  # type: ignore[arg-type]


class BrokenFiles(FileSystem):
    """Refuses to write while it is broken, and may be made to wait."""

    def __init__(self) -> None:
        self.broken = False
        self.gate = Event()
        self.gate.set()
        self.syncs = 0

    def fsync(self, fd: int) -> None:
        assert self.gate.wait(60)
        if self.broken:
            raise OSError(5, "broken for the test")
        self.syncs += 1
        super().fsync(fd)


async def written(persistence: Persistence, path: Path, content: str) -> None:
    """Wait until a file has that content and nothing is being written any more."""
    async with asyncio.timeout(60):
        while persistence.busy or not path.exists() or path.read_text() != content:
            await asyncio.sleep(0.005)


async def begun(persistence: Persistence) -> None:
    """Let the loop turn until a write is under way."""
    async with asyncio.timeout(60):
        while not persistence.busy:
            await asyncio.sleep(0)


@pytest.mark.proves("broker.clients.persisted")
def test_only_changed_tables_are_written_and_not_before_they_are_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, counter, path = BrokenFiles(), Counter(), tmp_path / "config" / "counter"
        persistence = Persistence(tmp_path, files)
        counter.register(persistence)
        persistence.flush_due(NOW_MS)
        assert files.syncs == 0
        counter.add()
        persistence.flush_due(NOW_MS)
        await written(persistence, path, "1")
        counter.add()
        persistence.flush_due(NOW_MS + 4999)
        assert not persistence.busy
        assert path.read_text() == "1"
        persistence.flush_due(NOW_MS + 5000)
        await written(persistence, path, "2")
        await persistence.close()
        assert files.syncs == 2

    asyncio.run(scenario())


def test_changes_during_a_write_are_written_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, counter = BrokenFiles(), Counter()
        persistence = Persistence(tmp_path, files)
        counter.register(persistence)
        counter.add()
        files.gate.clear()
        persistence.flush_soon()
        await begun(persistence)
        counter.add()
        persistence.flush_soon()
        persistence.flush_due(NOW_MS)
        files.gate.set()
        await written(persistence, tmp_path / "config" / "counter", "2")
        await persistence.close()
        assert files.syncs == 2

    asyncio.run(scenario())


def test_a_table_that_falls_due_during_a_write_is_written_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, counter = BrokenFiles(), Counter()
        persistence = Persistence(tmp_path, files)
        counter.register(persistence)
        counter.add()
        files.gate.clear()
        persistence.flush_soon()
        await begun(persistence)
        counter.add()
        # No further call comes: a clock that is moved by hand stands still from here on.
        persistence.flush_due(NOW_MS)
        files.gate.set()
        await written(persistence, tmp_path / "config" / "counter", "2")
        await persistence.close()

    asyncio.run(scenario())


def test_a_failed_write_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        files, counter = BrokenFiles(), Counter()
        persistence = Persistence(tmp_path, files)
        counter.register(persistence)
        counter.add()
        files.broken = True
        persistence.flush_due(NOW_MS)
        async with asyncio.timeout(60):
            while "could not be written" not in caplog.text:
                await asyncio.sleep(0.005)
        files.broken = False
        now_ms = NOW_MS
        path = tmp_path / "config" / "counter"
        async with asyncio.timeout(60):
            while not path.exists():
                now_ms += 5000
                persistence.flush_due(now_ms)
                await asyncio.sleep(0.005)
        await persistence.close()
        assert path.read_text() == "1"

    asyncio.run(scenario())


@pytest.mark.proves("broker.clients.persisted-at-stop")
def test_closing_writes_changed_tables_and_names_those_it_could_not_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, counter = BrokenFiles(), Counter()
        persistence = Persistence(tmp_path, files)
        counter.register(persistence)
        counter.add()
        await persistence.close()
        assert (tmp_path / "config" / "counter").read_text() == "1"
        await persistence.close()
        persistence.flush_soon()
        persistence.flush_due(NOW_MS)
        broken = Persistence(tmp_path, files)
        counter.register(broken)
        counter.add()
        files.broken = True
        with pytest.raises(StoreError, match="counter"):
            await broken.close()

    asyncio.run(scenario())


class Never:
    """A compiled expression that matches nothing."""

    sieve = None

    def matches(self, properties: Mapping[str, str]) -> bool:
        return False


@pytest.mark.proves("broker.pull.filters-persisted", "broker.auto-creation.by-address")
def test_every_table_comes_back_as_it_was(tmp_path: Path) -> None:
    files = FileSystem()
    settings = RuntimeSettings(BrokerConfig())
    topics, groups = TopicTable(), GroupTable()
    rules = Topics(topics, settings)
    offsets, filters = ConsumerOffsets(), FilterTable(lambda text: Never())

    async def scenario() -> None:
        persistence = Persistence(tmp_path, files)
        stored_tables.keep_topics(persistence, topics)
        stored_tables.keep_groups(persistence, groups)
        stored_tables.keep_consumer_offsets(
            persistence, offsets, stored_tables.OffsetFile(), interval_ms=5000
        )
        stored_tables.keep_filters(persistence, filters)
        stored_tables.keep_settings(persistence, settings)
        rules.update([TopicConfig("orders", 4, 4)], NOW_MS)
        rules.ensure_for_send(
            "auto", default_topic="TBW102", queue_count=4, client="10.0.0.9:1", now_ms=NOW_MS
        )
        Groups(groups, settings).require("made", NOW_MS, client="10.0.0.9:2")
        groups.put(SubscriptionGroupConfig("billing", retry_count_max=3), NOW_MS)
        groups.set_forbidden("billing", "orders", 4, NOW_MS)
        offsets.commit("billing", "orders", 0, 7)
        subscription = SubscriptionData("orders", "a > 1", expression_type=SQL92, sub_version=9)
        filters.register("billing", [subscription], NOW_MS)
        settings.change({"brokerPermission": "4"}, NOW_MS)
        await persistence.close()

    asyncio.run(scenario())
    loaded = stored_tables.load_topics(files, tmp_path)
    assert loaded.topics == topics.topics
    assert loaded.auto_created == {"auto"}
    assert loaded.creators.by_address() == {"10.0.0.9": ["auto"]}
    assert loaded.data_version == topics.data_version
    assert loaded.unknown == {}
    loaded_groups = stored_tables.load_groups(files, tmp_path)
    assert loaded_groups.groups == groups.groups
    assert loaded_groups.creators.by_address() == {"10.0.0.9": ["made"]}
    assert loaded_groups.unknown == {}
    assert loaded_groups.forbidden("billing", "orders") == 4
    assert stored_tables.load_consumer_offsets(files, tmp_path).query("billing", "orders", 0) == 7
    again = FilterTable(lambda text: Never())
    stored_tables.load_filters(files, tmp_path, again, NOW_MS)
    kept = again.get("orders", "billing")
    assert kept is not None
    assert (kept.expression, kept.version) == ("a > 1", 9)
    restored = stored_tables.load_settings(files, tmp_path, BrokerConfig(), now_ms=NOW_MS)
    assert restored.config == replace(BrokerConfig(), permission=4)
    assert restored.changed == {"brokerPermission": "4"}


@pytest.mark.proves("broker.tables.table-length")
def test_offsets_are_refused_while_their_file_would_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = ConsumerOffsets()

    async def scenario() -> None:
        persistence = Persistence(tmp_path, FileSystem())
        stored_tables.keep_consumer_offsets(
            persistence, offsets, stored_tables.OffsetFile(), interval_ms=0
        )
        monkeypatch.setattr(config_files, "DOCUMENT_BYTES_MAX", 10)
        offsets.commit("billing", "orders", 0, 7)
        persistence.flush_soon()
        await asyncio.sleep(0)
        await persistence.settled()
        with pytest.raises(RequestRejected, match=r"consumerOffset\.json would have"):
            offsets.require_writable()
        monkeypatch.undo()
        persistence.flush_due(NOW_MS)
        await persistence.settled()
        offsets.require_writable()
        await persistence.close()

    asyncio.run(scenario())


@pytest.mark.proves("broker.tables.table-length")
def test_no_topic_or_group_is_created_automatically_when_its_file_would_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RuntimeSettings(BrokerConfig())
    topics, groups = TopicTable(), GroupTable()
    topic_rules, group_rules = Topics(topics, settings), Groups(groups, settings)

    def send(topic: str) -> None:
        topic_rules.ensure_for_send(
            topic, default_topic="TBW102", queue_count=4, client="10.0.0.9:1", now_ms=NOW_MS
        )

    async def scenario() -> None:
        persistence = Persistence(tmp_path, FileSystem())
        stored_tables.keep_topics(persistence, topics)
        stored_tables.keep_groups(persistence, groups)
        monkeypatch.setattr(config_files, "DOCUMENT_BYTES_MAX", 10)
        send("first")
        group_rules.require("first", NOW_MS, client="10.0.0.9:1")
        persistence.flush_soon()
        await asyncio.sleep(0)
        await persistence.settled()
        with pytest.raises(RequestRejected, match=r"it could not be saved: topics\.json would"):
            send("second")
        with pytest.raises(RequestRejected, match=r"saved: subscriptionGroup\.json would have"):
            group_rules.require("second", NOW_MS, client="10.0.0.9:1")
        monkeypatch.undo()
        persistence.flush_due(NOW_MS)
        await persistence.settled()
        send("second")
        group_rules.require("second", NOW_MS, client="10.0.0.9:1")
        await persistence.close()

    asyncio.run(scenario())


def test_a_new_folder_has_no_tables(tmp_path: Path) -> None:
    files = FileSystem()
    assert stored_tables.load_topics(files, tmp_path).topics == {}
    assert stored_tables.load_groups(files, tmp_path).groups == {}
    assert stored_tables.load_consumer_offsets(files, tmp_path).query("g", "t", 0) == -1
    settings = stored_tables.load_settings(files, tmp_path, BrokerConfig(), now_ms=NOW_MS)
    assert settings.config == BrokerConfig()


def test_stored_settings_that_are_no_longer_allowed_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "broker.properties").write_text("listenPort=1\nbrokerPermission=2\n")
    settings = stored_tables.load_settings(FileSystem(), tmp_path, BrokerConfig(), now_ms=NOW_MS)
    assert settings.config == replace(BrokerConfig(), permission=2)
    assert "listenPort" in caplog.text
