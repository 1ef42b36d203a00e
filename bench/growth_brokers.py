"""Brokers of the growth suite: with tables written before they start, and started again later."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.growth_frames import GROUP, send
from bench.harness import BenchError, Figures
from bench.wire_frames import BROKER_NAME, TOPIC
from bench.wire_parts import (
    HOST,
    Server,
    ask,
    free_broker_port,
    running,
    tail,
    wait_until_listening,
)
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store import config_files

PARKED_TOPIC = "Parked"
PARKED_QUEUES = 100
_QUEUE_COUNT = 4
_READY_TIMEOUT_S = 120
_RETRY_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A broker's folder and port, which outlive its process."""

    folder: Path
    port: int
    segment_bytes: int

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @contextmanager
    def running(self) -> Iterator[Server]:
        """The product's own command on this store, from when it listens until it was stopped."""
        with self._starting() as server:
            wait_until_listening(server)
            yield server

    def time_to_first_send(self) -> Figures:
        """Start the broker, and stop it once it has answered a send."""
        began = time.perf_counter()
        with self._starting() as server:
            _send_until_answered(server)
            ready_s = time.perf_counter() - began
        return {"wall_s": ready_s, "record_count": 1}

    @contextmanager
    def _starting(self) -> Iterator[Server]:
        log = self.folder / "broker.log"
        program = "from contrail.cli.app import main; main()"
        conf = str(self.folder / "broker.conf")
        with running([sys.executable, "-c", program, "broker", "-c", conf], log) as process:
            yield Server(port=self.port, process=process, log=log)


def _send_until_answered(server: Server) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            ask(server, send())
            return
        except OSError:
            time.sleep(_RETRY_S)
    raise BenchError(f"a broker answered no send:\n{tail(server.log)}")


def new_home(folder: Path, segment_bytes: int) -> Home:
    """A folder with a configuration; all but addresses and segments is the broker's default."""
    folder.mkdir(parents=True)
    home = Home(folder=folder, port=free_broker_port(), segment_bytes=segment_bytes)
    settings = {
        "brokerName": BROKER_NAME,
        "brokerIP1": HOST,
        "listenAddress": HOST,
        "listenPort": home.port,
        "storePathRootDir": home.store,
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": segment_bytes,
    }
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    (folder / "broker.conf").write_text(text, encoding="utf-8")
    return home


def topic_name(number: int) -> str:
    """The suite's topics: the first is the one that the other suites use too."""
    return TOPIC if number == 0 else f"{TOPIC}-{number}"


def write_topics(home: Home, *, topic_count: int = 1, queue_count: int = _QUEUE_COUNT) -> None:
    """Write ``topic_count`` topics, and one whose queues stay empty."""
    names = [topic_name(number) for number in range(topic_count)]
    topics = {name: TopicConfig(name, queue_count, queue_count) for name in names}
    topics[PARKED_TOPIC] = TopicConfig(PARKED_TOPIC, PARKED_QUEUES, PARKED_QUEUES)
    table = config_files.TopicTable(topics=topics)
    config_files.save_topics(FileSystem(), home.store, table)


def write_many_groups(home: Home, topic_count: int, group_count: int) -> None:
    """Write ``group_count`` groups, each with offsets in the queues of one of the topics."""
    names = [GROUP, *(f"{GROUP}-{number}" for number in range(1, group_count))]
    groups = {name: SubscriptionGroupConfig(name) for name in names}
    offsets = {
        config_files.offset_key(topic_name(number % topic_count), name): dict.fromkeys(
            range(_QUEUE_COUNT), 0
        )
        for number, name in enumerate(names)
    }
    files = FileSystem()
    config_files.save_groups(files, home.store, config_files.GroupTable(groups=groups))
    table = config_files.ConsumerOffsetTable(offsets=offsets)
    config_files.save_consumer_offsets(files, home.store, table)


def write_groups(home: Home, group_count: int) -> None:
    """Write ``group_count`` groups, each with an offset in each queue of the topic."""
    names = [GROUP, *(f"{GROUP}-{number}" for number in range(1, group_count))]
    groups = {name: SubscriptionGroupConfig(name) for name in names}
    offsets = {
        config_files.offset_key(TOPIC, name): dict.fromkeys(range(_QUEUE_COUNT), 0)
        for name in names
    }
    files = FileSystem()
    config_files.save_groups(files, home.store, config_files.GroupTable(groups=groups))
    table = config_files.ConsumerOffsetTable(offsets=offsets)
    config_files.save_consumer_offsets(files, home.store, table)
