"""The part of the demo about failover groups: a leader is killed while orders are sent to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from demo_client import Basket

from contrail import Message, Producer, PushConsumer
from contrail.testing import LocalCluster

TOPIC, GROUP = "elected", "demo-voters"
SENT_BEFORE, SENT_AFTER = 200, 200
PATIENCE_S = 60.0
ON_THEIR_WAY_S = 0.05
Row = tuple[str, str, bool]


def show_failover(folder: Path, properties: dict[str, str]) -> Iterable[Row]:
    """Three brokers of one name; the one that leads is killed in the middle of sends."""
    with LocalCluster(
        members=3, folder=folder / "group", in_children=True, properties=properties
    ) as group:
        sending = Sending(group.namesrv)
        sending.wait_for(SENT_BEFORE)
        killed_s = time.monotonic()
        killed = group.kill_leader()
        waited_s = sending.next_answer_s(killed_s)
        leader = group.wait_for_leader(besides=killed)
        what = f"leader {killed.self_id} killed while it takes sends: {leader.self_id} leads"
        yield what, f"next SEND_OK after {waited_s:.1f} s", waited_s < PATIENCE_S
        sending.wait_for(len(sending.acknowledged) + SENT_AFTER)
        acknowledged, failed = sending.stop()
        what = f"sends that failed meanwhile, of {len(acknowledged)}"
        yield what, f"{failed}", not failed
        killed.start()
        group.wait_for_voters()
        yield "the killed member is back and has everything", killed.self_id, True
        what = "acknowledged orders read from the group"
        yield what, f"{len(acknowledged)}", consume(group, acknowledged)


class Sending:
    """A producer that sends on until it is stopped."""

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: set[bytes] = set()
        self._failed = 0
        # When sends were answered.
        self._answered: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(namesrv,))
        self._thread.start()

    def _run(self, namesrv: str) -> None:
        with Producer("demo-electors", namesrv, send_timeout_ms=20_000) as producer:
            while not self._is_over.is_set():
                body = f"order {len(self._answered)}".encode()
                if producer.send(Message(TOPIC, body)).status.name == "SEND_OK":
                    self.acknowledged.add(body)
                else:
                    self._failed += 1
                self._answered.append(time.monotonic())

    def wait_for(self, count: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.acknowledged) < count and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def next_answer_s(self, since_s: float) -> float:
        """How long after ``since_s`` a send was answered, not counting answers on their way."""
        while time.monotonic() < since_s + PATIENCE_S:
            later = [at_s for at_s in list(self._answered) if at_s > since_s + ON_THEIR_WAY_S]
            if later:
                return later[0] - since_s
            time.sleep(0.005)
        return PATIENCE_S

    def stop(self) -> tuple[set[bytes], int]:
        """The orders that were acknowledged, and how many were not."""
        self._is_over.set()
        self._thread.join()
        return self.acknowledged, self._failed


def consume(group: LocalCluster, wanted: set[bytes]) -> bool:
    """Whether a consumer of the group gets all of these."""
    basket = Basket()
    consumer = PushConsumer(GROUP, group.namesrv, consume_from_where="first")
    consumer.on_message(basket.put)
    consumer.subscribe(TOPIC)
    with consumer:
        return basket.wait_for_all(wanted)
