"""The growth suite: what a send and a pull cost our broker while something else grows.

A broker runs for each point of a curve, all of them at once and idle but for the one under load.
They take turns within each round, so the smallest point, which is the reference of the others, is
measured in the same minutes. CPU is that of the whole broker process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import growth_frames as frames
from bench.growth_brokers import Home, new_home, topic_name, write_groups, write_topics
from bench.growth_curves import draw_curves
from bench.growth_fairness import Fairness, fairness_rows
from bench.growth_load import (
    WAVE,
    Guests,
    fill,
    newest_pull,
    replayed,
    spread,
    wait_for_timers,
    waves_of,
)
from bench.growth_restarts import restart_rows
from bench.harness import Figures, Limit, Row, Samples, cpu_us_per_record, figure, in_rounds
from bench.report import Result
from bench.wire_frames import BATCH_MESSAGES, BODY_BYTES
from bench.wire_parts import Server, Shape, describe_cores

Cells = dict[str, Callable[[], Figures]]
FLAT = Limit("<=", 1.25)
_SMALL_BODY_BYTES = 100
_RECORD_BYTES = 1200
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How far each dimension goes, how many requests a run makes, and how often.

    A dimension without points is left out: each point is a broker to start.
    """

    points: Mapping[str, tuple[int, ...]]
    round_count: int
    sends: int
    pulls: int
    # Long enough that the offsets are written to their file meanwhile, every five seconds.
    committing_pulls: int
    segment_bytes: int
    # The sends that each broker holds from the start: more than its unprepared first segment.
    base_sends: int
    restart_count: int
    fairness: Fairness


SIZES = {
    "full": Sizes(
        points={
            "topics": (1, 10, 100, 1000, 10_000),
            "queues": (1, 10, 100, 1000),
            "connections": (1, 10, 100, 1000),
            "groups": (1, 100, 1000, 10_000),
            "timers": (0, 1000, 10_000, 100_000, 1_000_000),
            "parked": (0, 10, 100, 1000, 10_000),
            "backlog": (0, 10_000, 100_000, 1_000_000),
            "store": (200, 1000, 4000),
        },
        round_count=6,
        sends=24_000,
        pulls=8000,
        committing_pulls=180_000,
        segment_bytes=128 << 20,
        base_sends=120_000,
        restart_count=5,
        fairness=Fairness(
            connections=150, parked=100000, topics=1000, groups=2300, seconds=8.0, round_count=3
        ),
    ),
    "quick": Sizes(
        points={
            "topics": (1, 1000),
            "parked": (0, 2000),
            "backlog": (0, 100_000),
            "store": (20, 200),
        },
        round_count=2,
        sends=8000,
        pulls=1500,
        committing_pulls=1500,
        segment_bytes=16 << 20,
        base_sends=16_000,
        restart_count=1,
        fairness=Fairness(
            connections=150, parked=20000, topics=300, groups=700, seconds=3.0, round_count=1
        ),
    ),
    "tiny": Sizes(
        points={
            "topics": (1, 3),
            "queues": (1, 3),
            "connections": (1, 3),
            "groups": (1, 3),
            "timers": (0, 50),
            "parked": (0, 5),
            "backlog": (0, 300),
            "store": (1, 2),
        },
        round_count=1,
        sends=640,
        pulls=50,
        committing_pulls=50,
        segment_bytes=1 << 20,
        base_sends=640,
        restart_count=1,
        fairness=Fairness(
            connections=5,
            parked=50,
            topics=3,
            groups=5,
            seconds=0.3,
            round_count=1,
        ),
    ),
}


class Place:
    """Where the brokers of one dimension live, one for each point."""

    def __init__(self, folder: Path, sizes: Sizes, running: ExitStack) -> None:
        self.sizes = sizes
        self.running = running
        self.homes: dict[int, Home] = {}
        self._folder = folder
        self._one_by_64 = Shape(connections=1, depth=64, count=sizes.sends)

    def home(self, point: int) -> Home:
        home = new_home(self._folder / str(point), self.sizes.segment_bytes)
        self.homes[point] = home
        return home

    def started(self, home: Home) -> Server:
        """A broker with some messages in the first queue of its first topic."""
        server = self.running.enter_context(home.running())
        fill(server, home.folder, frames.send(), self.sizes.base_sends, depth=64)
        return server

    def send(self, server: Server, guests: Guests | None = None) -> Figures:
        """One connection with 64 requests in flight, all to the same queue."""
        if guests is not None:
            guests.stay()
        return replayed(server, server.log.parent, frames.send(), self._one_by_64)

    def pull(self, server: Server, guests: Guests | None = None) -> Figures:
        """Four connections with four pulls in flight each, at the end of that queue."""
        if guests is not None:
            guests.stay()
        return self.pulled(server, newest_pull(server), self.sizes.pulls)

    def pulled(self, server: Server, frame: bytes, count: int) -> Figures:
        shape = Shape(connections=4, depth=4, count=count)
        return replayed(server, server.log.parent, frame, shape)

    def cells(self, server: Server, guests: Guests | None = None) -> Cells:
        return {
            "send": partial(self.send, server, guests),
            "pull": partial(self.pull, server, guests),
        }


def _topics(place: Place, count: int) -> Cells:
    home = place.home(count)
    write_topics(home, topic_count=count)
    requests = [frames.send(topic_name(number)) for number in range(count)]
    return _over_all(place, home, requests)


def _queues(place: Place, count: int) -> Cells:
    home = place.home(count)
    write_topics(home, queue_count=count)
    return _over_all(place, home, [frames.send(queue_id=number) for number in range(count)])


def _over_all(place: Place, home: Home, requests: list[bytes]) -> Cells:
    """Each of them has messages before anything is measured."""
    server = place.started(home)
    waves = waves_of(requests)
    spread(server, waves, len(waves))
    over_all = partial(spread, server, waves, max(place.sizes.sends // WAVE, 1))
    return {**place.cells(server), "send over all": over_all}


def _connections(place: Place, count: int) -> Cells:
    """All but one are idle; then each has one request in flight."""
    server = _plain(place, count)
    guests = place.running.enter_context(Guests.idle(server, count - 1))
    by_all = partial(_sent_by_all, place, server, count)
    return {**place.cells(server, guests), "send by all": by_all}


def _sent_by_all(place: Place, server: Server, count: int) -> Figures:
    shape = Shape(connections=count, depth=1, count=max(place.sizes.sends // 2, count))
    return replayed(server, server.log.parent, frames.send(), shape)


def _groups(place: Place, count: int) -> Cells:
    home = place.home(count)
    write_topics(home)
    write_groups(home, count)
    server = place.started(home)
    return {
        "send": partial(place.send, server),
        "committing pull": partial(_committed, place, server),
    }


def _committed(place: Place, server: Server) -> Figures:
    frame = newest_pull(server, commits=True)
    return place.pulled(server, frame, place.sizes.committing_pulls)


def _timers(place: Place, count: int) -> Cells:
    """They wait for more than a day, each a millisecond longer than the one before."""
    server = _plain(place, count)
    frame = frames.timed_send(topic_name(0))
    fill(server, server.log.parent, frame, count, depth=64)
    wait_for_timers(server, count * 99 // 100)
    return place.cells(server)


def _parked(place: Place, count: int) -> Cells:
    server = _plain(place, count)
    guests = place.running.enter_context(Guests.holding(server, count))
    return place.cells(server, guests)


def _backlog(place: Place, count: int) -> Cells:
    """Nothing of it was read by the group that pulls."""
    home = place.home(count)
    write_topics(home)
    write_groups(home, 1)
    server = place.running.enter_context(home.running())
    fill(server, home.folder, frames.batch(_SMALL_BODY_BYTES), count // BATCH_MESSAGES)
    fill(server, home.folder, frames.send(), place.sizes.base_sends, depth=64)
    oldest = partial(place.pulled, server, frames.pull(0), place.sizes.pulls)
    return {**place.cells(server), "pull of the oldest": oldest}


def _store(place: Place, megabytes: int) -> Cells:
    home = place.home(megabytes)
    write_topics(home)
    server = place.running.enter_context(home.running())
    batches = megabytes * _MEGABYTE // (_RECORD_BYTES * BATCH_MESSAGES)
    fill(server, home.folder, frames.batch(BODY_BYTES), batches)
    return place.cells(server)


def _plain(place: Place, point: int) -> Server:
    home = place.home(point)
    write_topics(home)
    return place.started(home)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One thing that grows, and which cells only inform about it."""

    prepared: Callable[[Place, int], Cells]
    unit: str
    informing: frozenset[str] = frozenset()


DIMENSIONS = {
    "topics": Dimension(prepared=_topics, unit="topics", informing=frozenset({"send over all"})),
    "queues": Dimension(
        prepared=_queues, unit="queues of a topic", informing=frozenset({"send over all"})
    ),
    "connections": Dimension(
        prepared=_connections, unit="connections", informing=frozenset({"send by all"})
    ),
    "groups": Dimension(prepared=_groups, unit="consumer groups with offsets"),
    "timers": Dimension(prepared=_timers, unit="pending timers"),
    "parked": Dimension(prepared=_parked, unit="parked pulls"),
    "backlog": Dimension(
        prepared=_backlog, unit="unread messages", informing=frozenset({"pull of the oldest"})
    ),
    "store": Dimension(prepared=_store, unit="MB stored"),
}


FAIRNESS = "fairness"


def groups() -> list[str]:
    return [*DIMENSIONS, FAIRNESS]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one dimension, measured in ``folder``, which must be empty."""
    sizes = SIZES[size]
    if group == FAIRNESS:
        return fairness_rows(folder, sizes.fairness, sizes.segment_bytes)
    if group not in sizes.points:
        print(f"  {group} is left out of a {size} run", file=sys.stderr)
        return []
    with ExitStack() as running:
        place = Place(folder, sizes, running)
        rows = _measured(group, place)
    if group == "store":
        rows += restart_rows(place.homes, sizes.restart_count, sizes.base_sends)
    return rows


def draw(result: Result, folder: Path) -> list[Path]:
    """The curves of a result as pictures."""
    labels = {name: dimension.unit for name, dimension in DIMENSIONS.items()}
    return draw_curves(result.rows, labels, folder, caption=result.where)


def _measured(name: str, place: Place) -> list[Row]:
    dimension, points = DIMENSIONS[name], place.sizes.points[name]
    prepared = {point: dimension.prepared(place, point) for point in points}
    rows = []
    for cell in prepared[points[0]]:
        sides = {str(point): cells[cell] for point, cells in prepared.items()}
        taken = in_rounds(place.sizes.round_count, sides)
        limit = None if cell in dimension.informing else FLAT
        rows += [
            _row(f"{cell} vs {name}: {point:,}", taken, point, points[0], limit)
            for point in points[1:]
        ]
    return rows


def _row(
    name: str, taken: Mapping[str, list[Figures]], point: int, smallest: int, limit: Limit | None
) -> Row:
    ours, reference = taken[str(point)], taken[str(smallest)]
    return Row(
        name=name,
        unit="µs CPU/request",
        ours=cpu_us_per_record(ours),
        reference=cpu_us_per_record(reference),
        reference_name=f"{smallest:,}",
        limit=limit,
        details={
            "smallest": smallest,
            "p99_us": _p99_us(ours),
            "p99_us_at_smallest": _p99_us(reference),
            "cores": describe_cores(),
        },
    )


def _p99_us(taken: list[Figures]) -> int:
    samples: Samples = figure(taken, "p99_us")
    return round(samples.best)
