"""Stock Java clients over a failover: they find the next leader by their own poll of routes."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from contrail import Admin
from contrail.testing import LocalCluster, eventually
from tests.interop.peers import java_peer
from tests.spark.stored import stored

TOPIC = "orders"
# Their poll of routes, every 30 s, and an election.
RECOVERY_S_MAX = 35.0


class Sent(NamedTuple):
    is_ok: bool
    begun_ms: int
    ended_ms: int
    body: bytes


class JavaSender:
    """The stock producer in a process of its own, sending one message after the other."""

    def __init__(self, pin: str, namesrv: str, home: Path) -> None:
        home.mkdir()
        command = java_peer(pin).command(
            "FailoverSender", [namesrv, "java-senders", TOPIC], home=home, ours=True
        )
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.sent: list[Sent] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, *rest = line.split(maxsplit=4)
            if word in (b"ok", b"no"):
                self.sent.append(Sent(word == b"ok", int(rest[0]), int(rest[1]), rest[2]))

    def acknowledged(self) -> list[Sent]:
        return [one for one in list(self.sent) if one.is_ok]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.mark.proves("replication.failover.java-client", "replication.failover-shown.java-time")
@pytest.mark.parametrize(
    "pin", ["java-client-5", pytest.param("java-client-4", marks=pytest.mark.matrix)]
)
def test_a_stock_java_producer_goes_on_within_its_poll_of_routes(pin: str, tmp_path: Path) -> None:
    with LocalCluster(members=3, in_children=True, folder=tmp_path / "group") as group:
        with Admin(group.namesrv) as admin:
            admin.create_topic(TOPIC, queues=4)
        sender = JavaSender(pin, group.namesrv, tmp_path / "java")
        try:
            eventually(lambda: len(sender.acknowledged()) >= 20, "the first sends")
            killed_ms = time.time() * 1000
            killed = group.kill_leader()

            def goes_on() -> list[Sent]:
                return [one for one in sender.acknowledged() if one.begun_ms > killed_ms]

            eventually(goes_on, "a send after the kill")
            waited_s = (goes_on()[0].ended_ms - killed_ms) / 1000
            print(f"{pin}: the next SEND_OK after {waited_s:.1f} s")
            assert waited_s <= RECOVERY_S_MAX
            eventually(lambda: len(goes_on()) >= 20, "it sends on")
        finally:
            sender.end()
        killed.start()
        group.wait_for_voters()
        bodies = {message.body for message in stored(group, TOPIC)}
        assert {one.body for one in sender.acknowledged()} <= bodies
