"""``contrail top``: frames of a live cluster, in a terminal and without one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from contrail.testing import LocalCluster
from tests.cli.diagnosed import Site
from tests.cli.running import contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.client-top-bench")
def test_one_frame_has_brokers_topics_and_groups(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.commit(0)
        site.send(5)
        frame = valid_json("top", "top", "-n", cluster.namesrv, "--once", "--rows", "100")
        assert [(row["broker"], row["is_answering"]) for row in frame["brokers"]] == [
            ("broker-a", True),
            ("broker-b", True),
        ]
        (topic,) = [row for row in frame["topics"] if row["topic"] == site.topic]
        assert topic["messages"] == 5
        (group,) = [row for row in frame["groups"] if row["group"] == site.group]
        assert (group["lag"], group["topics"]) == (5, [site.topic])
        told = done("top", "-n", cluster.namesrv, "--once").out
        assert all(word in told for word in ("Brokers", "Topics", "Groups", site.group))


@pytest.mark.proves("cli.commands.client-top-bench")
def test_q_ends_the_live_view_and_gives_the_terminal_back(cluster: LocalCluster) -> None:
    ours, theirs = pty.openpty()
    command = ["top", "-n", cluster.namesrv, "--interval", "0.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "contrail.cli", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        _read_until(ours, b"broker-b")
        os.write(ours, b"q")
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, b"")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(descriptor: int, wanted: bytes) -> None:
    seen, deadline = b"", time.monotonic() + 120
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 0.2)[0]:
            seen += os.read(descriptor, 65_536)


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line() -> None:
    one_line(contrail("top", "--once", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("top", "--once", "-n", "no-port"), 2, "no-port")
