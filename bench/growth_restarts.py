"""How long a broker takes to start again, by how much it has stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from bench import growth_frames as frames
from bench.growth_brokers import Home
from bench.growth_load import fill
from bench.harness import Figures, Limit, Row, Samples, in_rounds

NOT_GROWING = Limit("<=", 2)


def restart_rows(homes: Mapping[int, Home], round_count: int, sends: int) -> list[Row]:
    """From the start of the process to the answer to its first send, at each size of store."""
    clean = in_rounds(
        round_count, {str(point): home.time_to_first_send for point, home in homes.items()}
    )
    killed = in_rounds(
        round_count,
        {str(point): partial(_after_kill, home, sends) for point, home in homes.items()},
    )
    return [
        *_rows("clean restart", clean, list(homes), NOT_GROWING),
        *_rows("restart after kill -9", killed, list(homes), None),
    ]


def _after_kill(home: Home, sends: int) -> Figures:
    """Sends right before the kill, so that there are records to recover."""
    with home.running() as server:
        fill(server, home.folder, frames.send(), sends, depth=64)
        server.process.kill()
        server.process.wait()
    return home.time_to_first_send()


def _rows(
    name: str, taken: Mapping[str, list[Figures]], points: list[int], limit: Limit | None
) -> list[Row]:
    smallest = points[0]
    return [
        Row(
            name=f"{name} vs store: {point:,}",
            unit="ms to the first send",
            ours=_milliseconds(taken[str(point)]),
            reference=_milliseconds(taken[str(smallest)]),
            reference_name=f"{smallest:,}",
            limit=limit,
            details={"smallest": smallest},
        )
        for point in points[1:]
    ]


def _milliseconds(taken: list[Figures]) -> Samples:
    return Samples(tuple(run["wall_s"] * 1000 for run in taken))
