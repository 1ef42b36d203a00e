"""The recipe of docs/operate/backup.md, carried out while a broker takes messages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from contrail import Message, Producer, PullConsumer
from contrail.testing import LocalCluster
from tests.e2e.raw_client import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "backup.md"
BEFORE_COUNT = 500


def recipe() -> tuple[str, str]:
    """The page's first commands: to copy, and to check. Those behind are for failover groups."""
    copying, checking, *_ = re.findall(
        r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S
    )
    return copying, checking


def run(script: str, **variables: Path) -> None:
    """Run commands with these variables, whatever the page sets them to."""
    lines = [line for line in script.splitlines() if not re.match(r"(store|copy)=", line)]
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        **{name: str(path) for name, path in variables.items()},
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Sender(threading.Thread):
    """Sends until it is told to stop."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(name="sender")
        self._namesrv = namesrv
        self.stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        with Producer("writers", self._namesrv) as producer:
            while not self.stopped.is_set():
                producer.send(Message("orders", b"during %d" % self.count, keys=["during"]))
                self.count += 1


def missing(namesrv: str, wanted: set[bytes]) -> set[bytes]:
    """The messages that a consumer waits for in vain."""
    with PullConsumer("auditors", namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        left, deadline_s = set(wanted), time.monotonic() + PATIENCE_S
        while left and time.monotonic() < deadline_s:
            left.difference_update(message.body for message in consumer.poll(timeout_ms=1000))
        return left


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of a broker's folder, made while messages came in, and checked."""
    copying, checking = recipe()
    copy = tmp_path / "copy"
    with LocalCluster(folder=tmp_path / "original") as cluster:
        with Producer("writers", cluster.namesrv) as producer:
            for number in range(BEFORE_COUNT):
                producer.send(Message("orders", b"before %d" % number, keys=[f"before-{number}"]))
        sender = Sender(cluster.namesrv)
        sender.start()
        try:
            while sender.count < 50:
                assert sender.is_alive()
                sender.stopped.wait(0.01)
            run(copying, store=cluster.brokers[0].folder / "store", copy=copy)
        finally:
            sender.stopped.set()
            sender.join()
    run(checking, copy=copy)
    return copy


@pytest.mark.proves("cli.administration.docs")
def test_a_copy_of_a_running_broker_is_whole_and_starts(copied: Path, tmp_path: Path) -> None:
    folder = tmp_path / "restored"
    (folder / "broker-a").mkdir(parents=True)
    shutil.move(copied, folder / "broker-a" / "store")
    wanted = {b"before %d" % number for number in range(BEFORE_COUNT)}
    wanted |= {b"during %d" % number for number in range(50)}
    with LocalCluster(folder=folder) as cluster:
        assert missing(cluster.namesrv, wanted) == set()


def test_a_plain_copy_of_a_stopped_broker_is_whole(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path / "original") as cluster:
        with Producer("writers", cluster.namesrv) as producer:
            for number in range(20):
                producer.send(Message("orders", b"%d" % number))
        store = cluster.brokers[0].folder / "store"
    run(
        'cp -a "$store" "$copy"\ncontrail store verify "$copy"', store=store, copy=tmp_path / "copy"
    )


@pytest.mark.proves("replication.pair.people")
def test_a_copy_of_a_running_slave_starts_as_a_master(tmp_path: Path) -> None:
    copying, checking = recipe()
    copy = tmp_path / "copy"
    with LocalCluster(slaves=1, folder=tmp_path / "original") as cluster:
        with Producer("writers", cluster.namesrv) as producer:
            for number in range(50):
                producer.send(Message("orders", b"%d" % number))
        cluster.wait_for_slaves()
        run(copying, store=cluster.slaves[0].folder / "store", copy=copy)
    run(checking, copy=copy)
    folder = tmp_path / "restored"
    (folder / "broker-a").mkdir(parents=True)
    shutil.move(copy, folder / "broker-a" / "store")
    with LocalCluster(folder=folder) as cluster:
        assert missing(cluster.namesrv, {b"%d" % number for number in range(50)}) == set()
