"""Running ``contrail doctor`` on a cluster, and the faults its tests make."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from contrail import Admin, Message, MessageQueue, Producer, PushConsumer
from contrail.testing import LocalCluster, eventually
from tests.cli.running import Finished, check_json, contrail

_DEADLINE_S = 120.0
_TIMEOUT_MS = 30_000
_numbers = count()


def diagnosed(cluster: LocalCluster, *arguments: str) -> dict[str, dict[str, Any]]:
    """The findings by id; each id is expected once at most, unless a test says otherwise."""
    finished = contrail("doctor", "-n", cluster.namesrv, "--watch", "0.3", "--json", *arguments)
    assert finished.code in (0, 1), finished
    report = finished.json
    check_json("doctor", report)
    assert finished.code == int(bool(report["findings"]))
    return {one["id"]: one for one in report["findings"]}


def until_diagnosed(cluster: LocalCluster, finding: str, *arguments: str) -> dict[str, Any]:
    """The finding, once the cluster has come as far."""
    deadline = time.monotonic() + _DEADLINE_S
    while finding not in (found := diagnosed(cluster, *arguments)):
        assert time.monotonic() < deadline, f"{finding} is not among {sorted(found)}"
    return found[finding]


def mend(finding: dict[str, Any], *more: str) -> Finished:
    """Run the command that a finding names."""
    words = shlex.split(finding["fix"])
    assert words[0] == "contrail", finding
    finished = contrail(*words[1:], *more)
    assert finished.code == 0, (finding["fix"], finished)
    return finished


class Site:
    """A topic and a group of a test's own, on a shared cluster."""

    def __init__(self, cluster: LocalCluster, **topic_settings: Any) -> None:
        number = next(_numbers)
        self.cluster = cluster
        self.topic, self.group = f"topic-{number}", f"group-{number}"
        self._topic_settings = {"queues": 1, **topic_settings}
        self.admin: Admin

    def __enter__(self) -> Site:
        self.admin = Admin(self.cluster.namesrv, timeout_ms=_TIMEOUT_MS, instance_name="test-admin")
        self.admin.start()
        self.admin.create_topic(self.topic, **self._topic_settings)
        self.admin.create_group(self.group)
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()

    def send(self, number: int = 4, *, tags: str | None = None, topic: str | None = None) -> None:
        with Producer(
            "site-producer", self.cluster.namesrv, send_timeout_ms=_TIMEOUT_MS
        ) as producer:
            for index in range(number):
                producer.send(Message(topic or self.topic, f"body {index}".encode(), tags=tags))

    def commit(self, consumer_offset: int, topic: str | None = None) -> list[MessageQueue]:
        queues = self.admin.queues(topic or self.topic)
        for queue in queues:
            self.admin.commit_offset(self.group, queue, consumer_offset)
        return queues

    @contextmanager
    def members(
        self,
        *wanted: tuple[str, str],
        handler: Callable[[Any], object] = lambda _: None,
        options: Sequence[dict[str, Any]] = (),
    ) -> Iterator[list[PushConsumer]]:
        """A member for each topic with its expression, once the brokers have all heartbeats."""
        started: list[PushConsumer] = []
        try:
            for index, (topic, expression) in enumerate(wanted):
                given = options[index] if index < len(options) else {}
                consumer = PushConsumer(
                    self.group,
                    self.cluster.namesrv,
                    instance_name=f"{self.group}-{index}",
                    rebalance_interval_ms=200,
                    persist_consumer_offset_interval_ms=100,
                    await_termination_ms_when_shutdown=500,
                    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                    **given,
                )
                consumer.subscribe(topic, expression)
                consumer.on_message(handler)
                consumer.start()
                started.append(consumer)
            eventually(lambda: self._member_count() == len(wanted), "all members")
            yield started
        finally:
            for consumer in started:
                consumer.close()

    def _member_count(self) -> int:
        return len(self.admin.group_connections(self.group).connections)

    def diagnosed(self, *arguments: str) -> dict[str, dict[str, Any]]:
        return diagnosed(self.cluster, "--group", self.group, *arguments)

    def until_diagnosed(self, finding: str) -> dict[str, Any]:
        return until_diagnosed(self.cluster, finding, "--group", self.group)
