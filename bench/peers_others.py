"""Cells of the peers suite in which ready bytes are replayed: no client is measured.

The C load sends the same 1 KB to our broker, the null server, Redis, NATS and Apache's broker, all
in the same rounds. RabbitMQ and Kafka have no frame that can be replayed: the tools of their own
projects load them, and all of the server's CPU during such a run is charged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.client_peers import Absent
from bench.harness import (
    BenchError,
    Limit,
    Row,
    cpu_us_per_record,
    in_rounds,
    records_per_second,
)
from bench.peers_java import IDLE_SHARE_MAX
from bench.peers_kafka import produced_sides
from bench.peers_kafka import tools as kafka_tools
from bench.peers_rabbitmq import confirmed_sides, perf_test
from bench.peers_servers import apache_peer, running_apache, running_contrail
from bench.peers_versions import versions
from bench.wire import Taken, _against_null, _null_row
from bench.wire_frames import (
    BODY_BYTES,
    nats_greeting,
    publication,
    sample_body,
    send_frame,
    xadd_command,
)
from bench.wire_parts import Shape, loaded
from bench.wire_peers import (
    Sides,
    _added,
    _published,
    _running_nats,
    _running_redis,
)
from bench.wire_peers import absent_peers as absent_programs

WIDE, DEEP = "64x1", "1x64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many requests each run makes, and how often."""

    round_count: int
    machine_round_count: int
    deep_sends: int
    wide_sends: int
    tool_sends: int
    has_every_peer: bool = True

    def shapes(self, body_bytes: int) -> dict[str, Shape]:
        """Fewer sends of large bodies, so that they take about as long."""
        part = max(1, body_bytes // (4 * BODY_BYTES))
        return {
            DEEP: Shape(connections=1, depth=64, count=self.deep_sends // part),
            WIDE: Shape(connections=64, depth=1, count=self.wide_sends // part),
        }


SIZES = {
    "full": Sizes(
        round_count=5,
        machine_round_count=2,
        deep_sends=100_000,
        wide_sends=40_000,
        tool_sends=30_000,
    ),
    # The machines of Java and Erlang take longer to start than a whole quick run.
    "quick": Sizes(
        round_count=2,
        machine_round_count=0,
        deep_sends=20_000,
        wide_sends=8_000,
        tool_sends=0,
        has_every_peer=False,
    ),
    "tiny": Sizes(
        round_count=1, machine_round_count=1, deep_sends=640, wide_sends=320, tool_sends=640
    ),
}


class Words(NamedTuple):
    """A row of Contrail beside a peer: the bound is on Contrail's figure / the peer's."""

    side: str
    peer: str
    reference_name: str
    limit: Limit | None = None


_REDIS = "Redis XADD, AOF everysec"
_NATS = "NATS JetStream, files"
_ROWS = (
    Words(DEEP, "redis", _REDIS, Limit("<=", 0.5)),
    Words(WIDE, "redis", _REDIS, Limit("<=", 1.43)),
    Words(DEEP, "nats", _NATS, Limit("<=", 0.667)),
    Words(WIDE, "nats", _NATS, Limit("<=", 0.667)),
    Words(DEEP, "apache", "Apache's broker"),
    Words(WIDE, "apache", "Apache's broker"),
    Words(DEEP, "rabbitmq", "RabbitMQ, PerfTest"),
    Words(WIDE, "rabbitmq", "RabbitMQ, PerfTest"),
    Words(DEEP, "kafka", "Kafka, its producer's batches"),
)
_LIMITS = {DEEP: Limit("<=", 4), WIDE: Limit("<=", 2)}
# The rows of a quick run.
_STARTED_SOON = ("redis", "nats")
# How the rows end in which ours ran beside the machines of Java and Erlang.
BESIDE_MACHINES = ("beside apache", "beside rabbitmq", "beside kafka")
_OTHER_BODIES = {"128 B": 128, "16 KB": 16 * 1024}


def absent_peers() -> dict[str, str]:
    """The peers that cannot be had here, each with its error and the remedy."""
    needed: dict[str, Callable[[], object]] = {
        "apache": apache_peer,
        "rabbitmq": perf_test,
        "kafka": kafka_tools,
    }
    reasons = absent_programs()
    for name, get in needed.items():
        try:
            get()
        except Absent as reason:
            reasons[name] = f"absent: {reason}"
    return reasons


def load_rows(size: str, folder: Path) -> list[Row]:
    """1 KB: Contrail beside all peers."""
    sizes = SIZES[size]
    wanted = [peer for peer in _PEERS if sizes.has_every_peer or peer in _STARTED_SOON]
    left_out = [peer for peer in _PEERS if peer not in wanted]
    said = absent_peers() | dict.fromkeys(left_out, f"left out of a {size} run")
    return _measured(sizes, folder, "1 KB", BODY_BYTES, said)


def size_rows(size: str, folder: Path) -> list[Row]:
    """Smaller and larger bodies, beside Redis and NATS alone; nothing here has a target."""
    others = {peer: "only measured with 1 KB" for peer in _PEERS if peer not in _STARTED_SOON}
    rows = []
    for label, body_bytes in _OTHER_BODIES.items():
        own_folder = folder / label.replace(" ", "")
        own_folder.mkdir()
        said = absent_programs() | others
        rows += _measured(SIZES[size], own_folder, label, body_bytes, said)
    return [replace(row, limit=None) for row in rows]


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {"c-load": load_rows}
EXTRA_GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {"c-load-sizes": size_rows}


def _measured(
    sizes: Sizes, folder: Path, label: str, body_bytes: int, said: dict[str, str]
) -> list[Row]:
    """Ours beside small servers, then beside large ones; ``said`` has who takes no part, and why.

    Apart, because the machines of Java and Erlang are never quite idle: a server that shares a core
    with them is slower, and that would be in every figure.
    """
    rows = _beside(
        _STARTED_SOON, sizes.round_count, sizes, folder / "soon", label, body_bytes, said
    )
    large = tuple(peer for peer in _PEERS if peer not in _STARTED_SOON and peer not in said)
    if large:
        rounds = sizes.machine_round_count
        found = _beside(large, rounds, sizes, folder / "large", label, body_bytes, said)
        # The rows that are judged were measured before.
        rows += [row for row in found if ", beside " in row.name]
    rows[0] = replace(rows[0], details={**rows[0].details, **said, "versions": versions()})
    return rows


def _beside(
    peers: Sequence[str],
    round_count: int,
    sizes: Sizes,
    folder: Path,
    label: str,
    body_bytes: int,
    said: dict[str, str],
) -> list[Row]:
    """These peers, ours and the null server in the same rounds."""
    folder.mkdir()
    shapes = sizes.shapes(body_bytes)
    with ExitStack() as running:
        ours = running.enter_context(running_contrail(folder / "ours", flush="ASYNC_FLUSH"))
        frame = send_frame(body_bytes)
        pair = running.enter_context(_against_null(folder, "send", ours.under_load, frame))
        sides: Sides = {}
        for name, shape in shapes.items():
            sides |= pair.sides(name, shape)
        for peer in (peer for peer in peers if peer not in said):
            started = partial(_PEERS[peer], folder, sizes, body_bytes)
            sides |= _entered(running, peer, started, said)
        taken = in_rounds(round_count, sides)
    rows = [_null_row(_name(label, side), taken, side, _LIMITS[side], pair.loop) for side in shapes]
    beside = [words for words in _ROWS if f"{words.side} {words.peer}" in taken]
    return rows + [_peer_row(label, taken, words) for words in beside]


def _entered(
    running: ExitStack,
    peer: str,
    start: Callable[[], AbstractContextManager[Sides]],
    said: dict[str, str],
) -> Sides:
    """The sides of a peer; none of one that does not start, whose error is said."""
    try:
        return running.enter_context(start())
    except (Absent, BenchError) as problem:
        said[peer] = f"absent: {'; '.join(str(problem).splitlines())}"
        print(f"    {peer} is absent: {problem}", file=sys.stderr, flush=True)
        return {}


def _name(label: str, side: str) -> str:
    return f"C load {side}, {label}"


def _peer_row(label: str, taken: Taken, words: Words) -> Row:
    reference = taken[f"{words.side} {words.peer}"]
    rates = {"rate": taken[words.side], "their_rate": reference}
    return Row(
        name=f"{_name(label, words.side)}, beside {words.peer}",
        unit="µs CPU/message",
        ours=cpu_us_per_record(taken[words.side]),
        reference=cpu_us_per_record(reference),
        reference_name=words.reference_name,
        limit=words.limit,
        details={name: f"{records_per_second(runs).best:,.0f}/s" for name, runs in rates.items()},
    )


# The peers, each as sides of a round: ``1x64 redis``.


@contextmanager
def _redis(folder: Path, sizes: Sizes, body_bytes: int) -> Iterator[Sides]:
    frame_file = _resized(folder / "xadd.frame", xadd_command(), body_bytes)
    with _running_redis(folder / "redis") as server:
        yield {
            f"{name} redis": partial(_added, server, frame_file, shape)
            for name, shape in sizes.shapes(body_bytes).items()
        }


@contextmanager
def _nats(folder: Path, sizes: Sizes, body_bytes: int) -> Iterator[Sides]:
    frame_file = _resized(folder / "publication.frame", publication(), body_bytes)
    greeting_file = folder / "nats.greeting"
    greeting_file.write_bytes(nats_greeting())
    with _running_nats(folder / "nats") as server:
        yield {
            f"{name} nats": partial(_published, server, frame_file, greeting_file, shape)
            for name, shape in sizes.shapes(body_bytes).items()
        }


@contextmanager
def _apache(folder: Path, sizes: Sizes, body_bytes: int) -> Iterator[Sides]:
    """The same frames as Contrail gets; the JVM compiles their code before the rounds."""
    frame_file = folder / "apache.frame"
    frame_file.write_bytes(send_frame(body_bytes))
    with running_apache(folder / "apache", flush="ASYNC_FLUSH") as rocket:
        server = rocket.under_load
        shapes = sizes.shapes(body_bytes)
        sent = partial(loaded, server, frame_file, idle_share_max=IDLE_SHARE_MAX)
        for shape in shapes.values():
            sent(shape)
        yield {f"{name} apache": partial(sent, shape) for name, shape in shapes.items()}


def _rabbitmq(folder: Path, sizes: Sizes, body_bytes: int) -> AbstractContextManager[Sides]:
    shapes = sizes.shapes(body_bytes).items()
    fewer = {name: replace(shape, count=sizes.tool_sends) for name, shape in shapes}
    return confirmed_sides(folder, fewer, body_bytes)


def _kafka(folder: Path, sizes: Sizes, body_bytes: int) -> AbstractContextManager[Sides]:
    return produced_sides(folder, DEEP, sizes.deep_sends, body_bytes)


_PEERS: dict[str, Callable[[Path, Sizes, int], AbstractContextManager[Sides]]] = {
    "redis": _redis,
    "nats": _nats,
    "apache": _apache,
    "rabbitmq": _rabbitmq,
    "kafka": _kafka,
}


def _resized(path: Path, request: bytes, body_bytes: int) -> Path:
    """Write a request whose body is of another size; both protocols tell it just before."""
    told = b"%d\r\n%b"
    before = told % (BODY_BYTES, sample_body())
    path.write_bytes(request.replace(before, told % (body_bytes, sample_body(body_bytes))))
    return path
