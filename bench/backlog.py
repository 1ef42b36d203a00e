"""The backlog suite: what one group's reading of old messages does to another group at the end.

Ten million messages are stored. A producer sends at a steady rate and a consumer reads each message
as it comes; the time between is measured alone, then while another group drains the backlog from
its beginning, with nothing of it in memory, then alone again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bench.backlog_parts import (
    HOST,
    NEW_TOPIC,
    OLD_TOPIC,
    PULL_MESSAGES,
    QUEUE_COUNT,
    drop_from_memory,
    loop_faults,
    make_topic,
)
from bench.harness import (
    REPOSITORY,
    BenchError,
    Figures,
    Limit,
    Row,
    figure,
    in_child,
    records_per_second,
)
from bench.wire_parts import Server, free_broker_port, running, settle, wait_until_listening

_PARTS = "bench.backlog_parts"
_STOP_TIMEOUT_S = 60


# Old bytes are also read by the scrubber, on the event loop and all the time. Without it the tail
# alone takes less time, and the effect of a drain shows all the more.
_SIDES: dict[str, dict[str, str]] = {
    "": {},
    ", no scrubbing": {"contrailScrubBytesPerSecond": "0"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    message_count: int
    round_count: int
    window_s: float
    rate: int = 500


SIZES = {
    "full": Sizes(message_count=10_000_000, round_count=5, window_s=5.0),
    "quick": Sizes(message_count=500_000, round_count=1, window_s=1.5),
    "tiny": Sizes(message_count=4_000, round_count=1, window_s=2.0),
}

Round = dict[str, Figures]


def groups() -> list[str]:
    return ["tail"]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of the only group, measured in ``folder``, which must be empty."""
    sizes, place = SIZES[size], _Place(folder)
    filled = in_child(
        f"{_PARTS}:fill", properties=place.properties, message_count=sizes.message_count
    )
    taken: dict[str, list[Round]] = {side: [] for side in _SIDES}
    for number in range(sizes.round_count):
        for side, changes in _SIDES.items():
            taken[side].append(_round(place, sizes, changes, number))
    rows = [row for side, rounds in taken.items() for row in _tail_rows(rounds, side)]
    return [*rows, _drain_row([*chain(*taken.values())], filled)]


class _Place:
    """A store folder and the settings that the filler and the broker share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.properties = {
            "brokerName": "bench",
            "brokerIP1": HOST,
            "listenAddress": HOST,
            "listenPort": str(free_broker_port()),
            "storePathRootDir": str(self.store),
            "flushDiskType": "ASYNC_FLUSH",
            # The suite measures lateness: no send may be refused for it.
            "brokerFastFailureEnable": "false",
        }

    @contextmanager
    def broker(self, changes: Mapping[str, str]) -> Iterator[Server]:
        """A broker that has just been started on the folder."""
        conf, log = self.folder / "broker.conf", self.folder / "broker.log"
        settings = {**self.properties, **changes}
        lines = (f"{name}={value}\n" for name, value in settings.items())
        conf.write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "contrail.cli", "broker", "-c", str(conf)]
        with running(command, log, is_pinned=False) as process:
            server = Server(port=int(self.properties["listenPort"]), process=process, log=log)
            wait_until_listening(server)
            make_topic(server.port, OLD_TOPIC, QUEUE_COUNT)
            make_topic(server.port, NEW_TOPIC, 1)
            settle(server)
            yield server


def _round(place: _Place, sizes: Sizes, changes: Mapping[str, str], number: int) -> Round:
    with place.broker(changes) as server:
        forgotten = drop_from_memory(place.store)
        before = _tail(server, sizes)
        faults = loop_faults(server.pid)
        with _draining(server, f"drainers_{number}") as drained:
            during = _tail(server, sizes)
        drained["loop_faults"] = loop_faults(server.pid) - faults
        after = _tail(server, sizes)
    drained["forgotten"] = forgotten
    return {"before": before, "during": during, "after": after, "drained": drained}


def _tail(server: Server, sizes: Sizes) -> Figures:
    return in_child(f"{_PARTS}:tail", port=server.port, rate=sizes.rate, seconds=sizes.window_s)


@contextmanager
def _draining(server: Server, group: str) -> Iterator[Figures]:
    """Drain meanwhile; afterwards the yielded object has the figures."""
    figures: Figures = {}
    call = [sys.executable, "-c", "from bench.harness import _child_main; _child_main()"]
    arguments = json.dumps({"port": server.port, "group": group})
    with subprocess.Popen(
        [*call, f"{_PARTS}:drain", arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
    ) as process:
        try:
            yield figures
        finally:
            process.terminate()
            said, complaint = process.communicate(timeout=_STOP_TIMEOUT_S)
    if process.returncode or not said.strip():
        raise BenchError(f"draining ended with {process.returncode}:\n{complaint[-4000:]}")
    figures.update(json.loads(said.strip().splitlines()[-1]))


def _tail_rows(rounds: list[Round], side: str) -> list[Row]:
    during = [taken["during"] for taken in rounds]
    alone = [_alone(taken) for taken in rounds]
    details = {
        "p50_us": f"{_median(during, 'p50_us')} beside {_median(alone, 'p50_us')} alone",
        "longest_us": f"{_median(during, 'max_us')} beside {_median(alone, 'max_us')} alone",
        "noise": f"two windows alone differ by up to {_spread(rounds):.1f}x",
    }
    return [
        _row(f"tail latency p99{side}", during, alone, "p99_us", Limit("<=", 2), details),
        _row(f"answer to a send, p99{side}", during, alone, "answer_p99_us"),
        _row(f"answer to a send, longest{side}", during, alone, "answer_max_us"),
    ]


def _row(
    name: str,
    during: list[Figures],
    alone: list[Figures],
    key: str,
    limit: Limit | None = None,
    details: Mapping[str, object] | None = None,
) -> Row:
    return Row(
        name=f"{name}, during a drain",
        unit="µs",
        ours=figure(during, key),
        reference=figure(alone, key),
        reference_name="alone",
        limit=limit,
        details=details or {},
    )


def _drain_row(rounds: list[Round], filled: Figures) -> Row:
    drained = [taken["drained"] for taken in rounds]
    return Row(
        name="drained meanwhile, from the disk",
        unit="messages/s",
        ours=records_per_second(drained),
        details={
            "backlog": f"{filled['record_count']:,} messages, {filled['bytes'] / 1e9:.2f} GB",
            "not_in_memory_before": f"{min(run['forgotten'] for run in drained):.0%} of the log",
            "drained": f"{min(run['record_count'] for run in drained):,} messages or more",
            "loop_waited_for_a_page": f"{sum(run['loop_faults'] for run in drained)} times",
            "pulls_of": PULL_MESSAGES,
            "queues": QUEUE_COUNT,
            "connections": 1,
        },
    )


def _alone(taken: Round) -> Figures:
    """The mean of the windows before and after the drain."""
    before, after = taken["before"], taken["after"]
    return {name: (before[name] + after[name]) / 2 for name in before}


def _median(runs: list[Figures], name: str) -> int:
    return round(figure(runs, name).median)


def _spread(rounds: list[Round]) -> float:
    """How far the two windows without a drain are from each other: that much is noise."""
    pairs = [sorted((run["before"]["p99_us"], run["after"]["p99_us"])) for run in rounds]
    return float(max(high / low for low, high in pairs))
