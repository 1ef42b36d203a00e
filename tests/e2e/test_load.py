"""5,000 idle and 200 active connections with mixed traffic: nothing grows, nothing is lost.

The servers and the load run in processes of their own. Memory, files and threads are read from
/proc; tasks of the event loop cannot be seen from outside, so a smaller load on a cluster in this
process counts them. ``CONTRAIL_LOAD_MINUTES`` sets how long the large load lasts.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from contrail.wire.connection import Connection
from tests.e2e.load_figures import Growth, Sample, growths, process_figures, sample_for

PATIENCE_S = 180.0
IDLE_COUNT = 5_000
ACTIVE_COUNT = 200
FILES_NEEDED = 8_000
# In minutes, unless somebody wants it otherwise.
A_MINUTE, FIFTY_MINUTES = (
    float(os.environ.get("CONTRAIL_LOAD_MINUTES", usual)) for usual in (1, 50)
)
REPOSITORY = Path(__file__).parents[2]

# Small files, and segments that go as soon as they are full: the disk's share stays bounded, and
# rolling and removal are part of the load.
PROPERTIES = {
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": "2000",
    "mappedFileSizeConsumeQueue": str(20 * 4_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # A machine that is busy with something else must not make the broker refuse sends.
    "waitTimeMillsInSendQueue": "600000",
    "waitTimeMillsInPullQueue": "600000",
}
# Kinds of traffic without which it was not mixed.
MIXTURE = (
    "SEND_MESSAGE_V2",
    "SEND_MESSAGE_V2 one-way",
    "SEND_BATCH_MESSAGE",
    "PULL_MESSAGE",
    "PULL_MESSAGE abandoned",
    "pull SUCCESS",
    "HEART_BEAT",
    "UNREGISTER_CLIENT",
    "UPDATE_CONSUMER_OFFSET",
    "QUERY_CONSUMER_OFFSET",
    "QUERY_MESSAGE",
    "SEARCH_OFFSET_BY_TIMESTAMP",
    "GET_ROUTEINFO_BY_TOPIC",
    "connections opened and closed",
    "malformed frames",
    f"told_{RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}",
)


class LoadProcess:
    """The traffic, in a process of its own; it ends with its standard input."""

    def __init__(self, cluster: LocalCluster, idle_count: int, active_count: int) -> None:
        self._out = cluster.folder / "load.txt"
        places = (cluster.brokers[0].address, cluster.namesrv)
        command = [sys.executable, "-m", "tests.e2e.load_traffic", *places]
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, str(idle_count), str(active_count)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
            )
        eventually(lambda: "steady\n" in self.output(), "the load is steady", timeout_s=PATIENCE_S)

    def output(self) -> str:
        """The output so far; fails when the load has ended before its time."""
        text = self._out.read_text(encoding="utf-8")
        assert self._process.poll() is None, text
        return text

    def report(self) -> dict[str, Any]:
        """End the load and return what it says of itself."""
        self._process.communicate(timeout=PATIENCE_S)
        text = self._out.read_text(encoding="utf-8")
        assert self._process.returncode == 0, text
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for a file for each connection, in the children as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= FILES_NEEDED, (
        f"the hard limit of open files is {hard}; this test needs {FILES_NEEDED}: ulimit -Hn"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES_NEEDED), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def run_load(
    cluster: LocalCluster,
    counts: tuple[int, int],
    look: Callable[[], Mapping[str, float]],
    *,
    seconds: float,
    pause_s: float,
) -> tuple[list[Sample], dict[str, Any]]:
    load = LoadProcess(cluster, *counts)
    try:

        def look_while_it_runs() -> Mapping[str, float]:
            load.output()
            return look()

        samples = sample_for(seconds, pause_s, look_while_it_runs)
        return samples, load.report()
    except BaseException:
        load.kill()
        raise


def both_processes(cluster: LocalCluster) -> dict[str, float]:
    pids = {"broker": cluster.brokers[0].pid, "namesrv": cluster.nameservers[0].pid}
    return {
        f"{server} {name}": value
        for server, pid in pids.items()
        for name, value in process_figures(pid).items()
    }


def tell(samples: list[Sample], report: Mapping[str, Any], judged: list[Growth]) -> None:
    """Print the figures, for runs with ``-s`` and for the report of a failure."""
    counts, seconds = report["counts"], report["counts"]["seconds"]
    print(f"\n{seconds} s, {len(samples)} samples, {counts.get('errors', 0)} errors")
    for growth in judged:
        print(f"  {growth}")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count:,}, {count / seconds:,.1f}/s")


def check_traffic(cluster: LocalCluster, report: Mapping[str, Any]) -> None:
    """No error, every kind of traffic, and each message in the offsets of its queue."""
    assert report["errors"] == []
    counts = report["counts"]
    assert [name for name in MIXTURE if not counts.get(name)] == []
    # A key's message may have gone with its segment before it is asked for.
    assert counts["keys found"] >= 0.8 * counts["QUERY_MESSAGE"]
    eventually(
        lambda: queue_ends(cluster, report["stored"]) == report["stored"],
        f"the queues end at {report['stored']}; they end at "
        f"{queue_ends(cluster, report['stored'])}",
    )


def queue_ends(cluster: LocalCluster, queues: Mapping[str, int]) -> dict[str, int]:
    ends = {}
    for queue in queues:
        topic, _, queue_id = queue.partition("/")
        fields = {"topic": topic, "queueId": queue_id}
        answer = cluster.caller.call(
            cluster.brokers[0].address, RequestCode.GET_MAX_OFFSET, fields, timeout_ms=60_000
        )
        ends[queue] = int(answer.fields["offset"])
    return ends


def check_logs(cluster: LocalCluster) -> None:
    for path in cluster.folder.glob("*/process.log"):
        lines = path.read_text(encoding="utf-8").splitlines()
        bad = [line for line in lines if any(w in line for w in ("ERROR", "CRITICAL", "Traceback"))]
        assert bad == [], path.name


def load_for(minutes: float, folder: Path) -> None:
    """The whole clause: steady figures, no errors, nothing lost, every connection let go."""
    with LocalCluster(in_children=True, folder=folder, properties=PROPERTIES) as cluster:
        before = both_processes(cluster)
        samples, report = run_load(
            cluster,
            (IDLE_COUNT, ACTIVE_COUNT),
            lambda: both_processes(cluster),
            seconds=minutes * 60,
            pause_s=2.0,
        )
        judged = growths(samples)
        tell(samples, report, judged)
        # Halves of less than two minutes catch what comes and goes.
        floors = 1 if minutes >= 4 else 3
        assert [str(growth) for growth in judged if growth.grows_above(floors)] == []
        assert samples[-1].figures["broker files"] > IDLE_COUNT + ACTIVE_COUNT
        check_traffic(cluster, report)
        # Only the store's own files stay open.
        eventually(
            lambda: both_processes(cluster)["broker files"] < before["broker files"] + ACTIVE_COUNT,
            "the broker has let go of its connections",
        )
    check_logs(cluster)


@pytest.mark.proves(
    "house.tests.minute-of-load", "broker.load.minute", "broker.load.memory-and-files"
)
@pytest.mark.timeout(A_MINUTE * 60 + 4 * PATIENCE_S)
@pytest.mark.usefixtures("many_files")
def test_a_minute_with_5200_connections_adds_nothing_to_memory_files_and_threads(
    tmp_path: Path,
) -> None:
    load_for(A_MINUTE, tmp_path)


@pytest.mark.proves("broker.load.fifty-minutes")
@pytest.mark.torture
@pytest.mark.timeout(FIFTY_MINUTES * 60 + 4 * PATIENCE_S)
@pytest.mark.usefixtures("many_files")
def test_fifty_minutes_with_5200_connections_add_nothing_to_memory_files_and_threads(
    tmp_path: Path,
) -> None:
    load_for(FIFTY_MINUTES, tmp_path)


# Growth that cannot be seen from outside.


async def loop_figures(cluster: LocalCluster) -> dict[str, float]:
    """Tasks of the loop that both servers share, this one left out, and what they hold."""
    broker = cluster.brokers[0].app
    assert broker is not None
    return {
        "tasks": len(asyncio.all_tasks()) - 1,
        "connections": len(broker.server.connections),
        "held_pulls": len(broker.pulls.held.parked),
        "producer_groups": len(broker.tables.producers.groups),
        "consumer_groups": len(broker.tables.consumers.groups),
    }


def connection_objects() -> int:
    gc.collect()
    return sum(isinstance(thing, Connection) for thing in gc.get_objects())


@pytest.mark.proves("wire.server.no-task-per-request", "broker.load.tasks")
@pytest.mark.timeout(600)
def test_the_tasks_of_the_event_loop_do_not_grow_and_nothing_of_a_client_stays(
    tmp_path: Path,
) -> None:
    with LocalCluster(folder=tmp_path, properties=PROPERTIES) as cluster:

        def look() -> dict[str, float]:
            return cluster.run(loop_figures(cluster))

        # The first call opens the connection that this test asks the broker over.
        cluster.caller.call(cluster.brokers[0].address, RequestCode.GET_BROKER_RUNTIME_INFO)
        app = cluster.brokers[0].app
        assert app is not None
        # It is a task, which would be missed afterwards.
        eventually(lambda: not app.registration.is_registering, "the broker has registered")
        before, objects_before = look(), connection_objects()
        samples, report = run_load(cluster, (100, 100), look, seconds=40, pause_s=0.5)
        judged = growths(samples)
        tell(samples, report, judged)
        assert samples[-1].figures["held_pulls"] > 0
        assert [str(growth) for growth in judged if growth.is_growing] == []
        check_traffic(cluster, report)
        # Pulls of clients that left are held until their time is over.
        eventually(lambda: look() == before, f"all is as before: {before}, not {look()}")
        assert connection_objects() <= objects_before


# The judge itself.


def series(value_at: Callable[[float], float], name: str = "broker private_bytes") -> list[Sample]:
    return [Sample(at_s, {name: value_at(at_s)}) for at_s in range(0, 300, 2)]


def test_growth_in_the_first_half_only_counts_as_steady() -> None:
    assert not growths(series(lambda at_s: 1e9 + min(at_s, 140) * 1e7))[0].is_growing


def test_figures_that_go_up_and_down_count_as_steady() -> None:
    assert not growths(series(lambda at_s: 1e8 + at_s % 10 * 1e6))[0].is_growing


@pytest.mark.proves("broker.load.memory-and-files")
def test_two_percent_in_the_second_half_are_growth() -> None:
    assert growths(series(lambda at_s: 1e8 + at_s * 2e6 / 150))[0].is_growing


def test_growth_of_a_small_figure_below_its_floor_is_noise() -> None:
    assert not growths(series(lambda at_s: 20 + (at_s > 225), "namesrv files"))[0].is_growing
    assert growths(series(lambda at_s: 20 + at_s // 15, "namesrv files"))[0].is_growing
