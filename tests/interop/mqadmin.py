"""Apache's ``mqadmin`` as one long-lived process: a command in, everything it printed out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contrail.protocol.signing import Credentials
from contrail.testing import eventually
from tests.interop.java_shell import JavaShell
from tests.interop.peers import PeerFailed

CLUSTER_NAME = "DefaultCluster"
QUEUE_COUNT = 4
KEYS = [f"order-{number}" for number in range(24)]

_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} (WARN|ERROR) ")


class Sent(NamedTuple):
    """The producer's receipt of one message."""

    key: str
    unique_key: str
    message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    status: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """A topic with messages, the producer that sent them and a consumer that took them all."""

    topic: str
    producer_group: str
    consumer_group: str
    client_id: str
    sent: list[Sent]

    def queue_counts(self) -> Counter[tuple[str, int]]:
        return Counter((one.broker_name, one.queue_id) for one in self.sent)


class MqAdmin(JavaShell):
    """Run commands against a cluster; the words are those of the command line after ``mqadmin``."""

    def __init__(
        self, namesrv: str, folder: Path, *, credentials: Credentials | None = None
    ) -> None:
        """With ``credentials`` the tool signs, as those of ``conf/tools.yml`` say."""
        self._namesrv = namesrv
        environment = {}
        if credentials is not None:
            tools = folder / "conf" / "tools.yml"
            tools.parent.mkdir(parents=True)
            tools.write_text(
                f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n"
            )
            environment["ROCKETMQ_HOME"] = str(folder)
        super().__init__("AdminShell", [], folder, environment=environment)

    def run(self, name: str, *words: str) -> str:
        """Run one command of ``mqadmin`` and return all it printed."""
        return self._exchange([name, "-n", self._namesrv, *words])

    def rows(self, name: str, *words: str) -> list[list[str]]:
        """The lines a command printed, as words, without its heading (``#...``) and empty lines."""
        lines = self.run(name, *words).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def run_until(self, line_count: int, name: str, *words: str) -> str:
        """Run a command that never ends until it has printed that many lines."""
        return self._exchange(["!until", str(line_count), name, "-n", self._namesrv, *words])

    def names(self) -> set[str]:
        """Every command that is registered."""
        return set(self._exchange(["!commands"]).split())

    def traced(self, group: str, topic: str, key: str) -> str:
        """Send and consume one message with traces by clients of ``group``; return its id."""
        return self._exchange(["!trace", self._namesrv, group, topic, key]).split()[-1]

    def monitor_once(self) -> list[list[str]]:
        """The report of one round of ``startMonitoring``, as words."""
        printed = self._exchange(["!monitor", self._namesrv])
        return [line.split("\t") for line in printed.splitlines()]

    def hold_producer(self, group: str, topic: str, keys: list[str]) -> list[Sent]:
        """Send a message of each key (tag ``TagA``, body ``body-<key>``) and stay connected."""
        printed = self._exchange(["!producer", self._namesrv, group, topic, *keys])
        return [_sent(line) for line in printed.splitlines() if line.count("\t") == 6]

    def hold_consumer(self, group: str, topic: str, count: int) -> str:
        """Bring a push consumer online; return its client id once it has taken ``count``."""
        printed = self._exchange(["!consumer", self._namesrv, group, topic, str(count)]).strip()
        if len(printed.splitlines()) != 1:
            raise PeerFailed(f"the consumer of {topic} said:\n{printed}")
        return printed

    def commit_offsets(self) -> None:
        """Have the consumers write their offsets now: else they do after 10 s."""
        self._exchange(["!commit"])

    def _exchange(self, words: list[str]) -> str:
        return _without_log(self.exchange(words))


def new_topic(mqadmin: MqAdmin, topic: str) -> str:
    """Create a topic on both brokers and wait until it has its route."""
    queues = str(QUEUE_COUNT)
    mqadmin.run("updateTopic", "-c", CLUSTER_NAME, "-t", topic, "-r", queues, "-w", queues)
    eventually(lambda: len(route_rows(mqadmin, topic)) == 2)
    return topic


def route_rows(mqadmin: MqAdmin, topic: str) -> list[list[str]]:
    """(cluster, broker, addresses, read queues, write queues, permission) for each broker."""
    rows = mqadmin.rows("topicRoute", "-t", topic, "-l")
    return [row for row in rows if row[0] == CLUSTER_NAME]


def send_traffic(mqadmin: MqAdmin) -> Traffic:
    """A topic, its messages, and the clients that sent and took them, which stay online."""
    topic = new_topic(mqadmin, "Orders")
    sent = mqadmin.hold_producer("OrderWriters", topic, KEYS)
    assert [one.status for one in sent] == ["SEND_OK"] * len(KEYS)
    client_id = mqadmin.hold_consumer("OrderReaders", topic, len(KEYS))
    return Traffic(topic, "OrderWriters", "OrderReaders", client_id, sent)


def _without_log(printed: str) -> str:
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not _LOG_LINE.match(line))


def _sent(line: str) -> Sent:
    key, unique_key, message_id, broker_name, queue_id, queue_offset, status = line.split("\t")
    return Sent(key, unique_key, message_id, broker_name, int(queue_id), int(queue_offset), status)
