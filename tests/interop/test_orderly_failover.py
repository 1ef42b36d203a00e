"""Ordered queues of Java's consumer that is killed or cut off: another's in 32 s, never two's.

Java clients handle until 30 s after their last lock: these take a minute each.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.testing import LocalCluster, eventually
from tests.e2e.cutting_proxy import PROXY_HOST, CuttingProxy
from tests.e2e.push_setup import fresh
from tests.e2e.test_client_orderly_failover import fill
from tests.interop.peers import java_peer

pytestmark = pytest.mark.torture

PINS = ["java-client-5", "java-client-4"]
NEXT_MEMBER_S = 32.0
MESSAGES_PER_QUEUE = 1_600


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    running = LocalCluster(properties={"brokerIP1": PROXY_HOST})
    broker = running.brokers[0]
    broker.address = f"{PROXY_HOST}:{broker.port}"
    with running:
        yield running


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[CuttingProxy]:
    with CuttingProxy(cluster.brokers[0].port) as running:
        yield running


class JavaMember:
    """One process of the Java client; notes its handled messages with their times."""

    def __init__(
        self, pin: str, name: str, namesrv: str, group: str, topic: str, home: Path
    ) -> None:
        home.mkdir()
        arguments = [namesrv, group, topic, name]
        line = java_peer(pin).command("OrderedMember", arguments, home=home, ours=True)
        self.process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.spans: list[tuple[int, int, int, int]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if not text.startswith(b"handled "):
                continue  # The client's own log.
            queue_id, place, begun_ms, ended_ms = map(int, text.split()[1:])
            self.spans.append((queue_id, place, begun_ms, ended_ms))

    @property
    def queues(self) -> set[int]:
        return {span[0] for span in list(self.spans)}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdout is not None and self.process.stdin is not None
        self.process.stdout.close()
        self.process.stdin.close()


def pair(pin: str, cluster: LocalCluster, folder: Path) -> tuple[JavaMember, JavaMember, set[int]]:
    """Two members that share four queues; the queues of the first."""
    namesrv, topic, group = cluster.namesrv, fresh("orders"), fresh("readers")
    asyncio.run(fill(namesrv, topic, MESSAGES_PER_QUEUE))
    first = JavaMember(pin, "first", namesrv, group, topic, folder / "first")
    eventually(lambda: first.queues, "the first message")
    second = JavaMember(pin, "second", namesrv, group, topic, folder / "second")
    eventually(lambda: len(second.queues) == 2, "half of the queues")
    return first, second, {0, 1, 2, 3} - second.queues


@pytest.mark.proves("client.failover.java")
@pytest.mark.parametrize("pin", PINS)
def test_after_kill_9_the_next_java_member_starts_within_32_seconds(
    cluster: LocalCluster, proxy: CuttingProxy, tmp_path: Path, pin: str
) -> None:
    first, second, rest = pair(pin, cluster, tmp_path)
    try:
        first.process.kill()
        killed_ms = time.time() * 1000
        eventually(lambda: second.queues == {0, 1, 2, 3}, "the queues of the dead")
        begun = [min(span[2] for span in second.spans if span[0] == queue_id) for queue_id in rest]
        waited_s = (max(begun) - killed_ms) / 1000
        print(f"the next member started after {waited_s:.1f} s")
        assert waited_s <= NEXT_MEMBER_S
    finally:
        first.end()
        second.end()


@pytest.mark.proves("client.failover.java")
@pytest.mark.parametrize("pin", PINS)
def test_a_live_java_member_whose_connection_is_cut_never_shares_a_queue(
    cluster: LocalCluster, proxy: CuttingProxy, tmp_path: Path, pin: str
) -> None:
    """Silent for it, closed for the broker: it goes on until 30 s after its last lock."""
    first, second, rest = pair(pin, cluster, tmp_path)
    try:
        proxy.cut(b"@first", tells_client=False)
        eventually(lambda: second.queues == {0, 1, 2, 3}, "the queues of the other")
        time.sleep(2.0)
    finally:
        first.end()
        second.end()
    for queue_id in rest:
        spans = sorted(
            (begun_ms, ended_ms)
            for member in (first, second)
            for one, _, begun_ms, ended_ms in member.spans
            if one == queue_id
        )
        for (_, ended_ms), (begun_ms, _) in itertools.pairwise(spans):
            assert ended_ms <= begun_ms, "two members had one queue"
