"""The wire suite: costs of a send and a pull in the broker beside servers that do next to nothing.

CPU is that of the whole server process over a window under steady load, flusher and dispatch
included. The null server splits frames and answers each with the broker's own bytes, made ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    compiled,
    cpu_us_per_record,
    in_program,
    in_rounds,
    records_per_second,
)
from bench.report import filesystem_of
from bench.wire_frames import (
    BATCH_MESSAGES,
    PULL_MESSAGES,
    batch_frame,
    pull_frame,
    send_frame,
)
from bench.wire_parts import (
    PROGRAMS,
    Server,
    Shape,
    ask,
    describe_cores,
    loaded,
    pinned,
    running_broker,
    running_null_server,
)
from bench.wire_peers import (
    Sides,
    absent_peers,
    is_installed,
    publish_sides,
    xadd_sides,
    xrange_sides,
)

Taken = dict[str, list[Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many requests each run of a group makes, and how often."""

    round_count: int
    deep_sends: int
    wide_sends: int
    batches: int
    synced_sends: int
    pulls: int


SIZES = {
    "full": Sizes(
        round_count=9,
        deep_sends=100_000,
        wide_sends=40_000,
        batches=2_000,
        synced_sends=60_000,
        pulls=20_000,
    ),
    "quick": Sizes(
        round_count=2,
        deep_sends=20_000,
        wide_sends=8_000,
        batches=500,
        synced_sends=10_000,
        pulls=4_000,
    ),
    "tiny": Sizes(
        round_count=1,
        deep_sends=640,
        wide_sends=320,
        batches=40,
        synced_sends=1024,
        pulls=100,
    ),
}


class PeerWords(NamedTuple):
    """A row that only informs: ours beside another server. The guide bounds ours / theirs."""

    side: str
    peer: str
    reference_name: str
    guide: str


_REDIS_XADD = "Redis XADD, AOF everysec"
_JETSTREAM = "NATS JetStream, files"
_SEND_PEERS = [
    PeerWords("1x64", "redis", _REDIS_XADD, "<= 0.5x"),
    PeerWords("64x1", "redis", _REDIS_XADD, "<= 1.43x"),
    PeerWords("1x64", "nats", _JETSTREAM, "<= 0.67x"),
    PeerWords("64x1", "nats", _JETSTREAM, "<= 0.67x"),
]
_PULL_PEER = PeerWords("pull", "redis", "Redis XRANGE", "<= 1.43x")

# By row: the cause found for a missed target.
CAUSES = {
    "pull 32 x 1 KB, 4x4": (
        "Python between the request and its answer, from cold caches; compiling more than kernels "
        "would close it (decision 26)"
    ),
    "send 1 KB with sync flush, 16x32": (
        "CPU: a message costs a microsecond more than under asynchronous flush, for the flusher's "
        "thread and the second tick that answers; a tick in compiled code would close it "
        "(decision 21)"
    ),
}


def groups() -> list[str]:
    return list(_GROUPS)


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    return _GROUPS[group](SIZES[size], folder)


def _send_rows(sizes: Sizes, folder: Path) -> list[Row]:
    deep = Shape(connections=1, depth=64, count=sizes.deep_sends)
    wide = Shape(connections=64, depth=1, count=sizes.wide_sends)
    batches = Shape(connections=1, depth=8, count=sizes.batches)
    with ExitStack() as running:
        broker = running.enter_context(running_broker(folder / "broker", "ASYNC_FLUSH"))
        single = running.enter_context(_against_null(folder, "send", broker, send_frame()))
        batch = running.enter_context(_against_null(folder, "batch", broker, batch_frame()))
        shapes = {"1x64": deep, "64x1": wide}
        redis = running.enter_context(xadd_sides(folder, shapes))
        nats = running.enter_context(publish_sides(folder, shapes))
        taken = in_rounds(
            sizes.round_count,
            {
                **single.sides("1x64", deep),
                **single.sides("64x1", wide),
                **batch.sides("batch", batches, records_per_request=BATCH_MESSAGES),
                **redis,
                **nats,
            },
        )
    rows = [
        _null_row("send 1 KB, 1x64", taken, "1x64", Limit("<=", 6), single.loop),
        _null_row("send 1 KB, 64x1", taken, "64x1", Limit("<=", 2), single.loop),
        _null_row(f"send batches of {BATCH_MESSAGES}, 1x8", taken, "batch", None, batch.loop),
    ]
    peers = [words for words in _SEND_PEERS if is_installed(words.peer)]
    return rows + [_peer_row(f"send 1 KB, {words.side}", taken, words) for words in peers]


def _pull_rows(sizes: Sizes, folder: Path) -> list[Row]:
    shape = Shape(connections=4, depth=4, count=sizes.pulls)
    with ExitStack() as running:
        broker = running.enter_context(running_broker(folder / "broker", "ASYNC_FLUSH"))
        for _ in range(PULL_MESSAGES):
            ask(broker, send_frame())
        pair = running.enter_context(_against_null(folder, "pull", broker, pull_frame()))
        redis = running.enter_context(xrange_sides(folder, "pull", shape))
        taken = in_rounds(sizes.round_count, {**pair.sides("pull", shape), **redis})
    name = f"pull {PULL_MESSAGES} x 1 KB, {shape}"
    rows = [_null_row(name, taken, "pull", Limit("<=", 3), pair.loop, per="request")]
    _check_pulled(taken["pull"][0])
    if is_installed("redis"):
        rows.append(_peer_row(name, taken, _PULL_PEER, per="request"))
    return rows


def _check_pulled(run: Figures) -> None:
    least, found = PULL_MESSAGES * 1024, run["answer_bytes"] / run["record_count"]
    if found < least:
        raise BenchError(f"a pull was answered by {found:.0f} bytes, {least} were stored")


def _sync_rows(sizes: Sizes, folder: Path) -> list[Row]:
    if filesystem_of(folder) in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is in memory, where a sync is free: use --folder on a disk")
    shape = Shape(connections=16, depth=32, count=sizes.synced_sends)
    frame_file = _written(folder / "send.frame", send_frame())
    with running_broker(folder / "broker", "SYNC_FLUSH") as broker:
        ask(broker, send_frame())
        ours = partial(_synced, broker, frame_file, shape)
        # How many records the broker gathers for a sync is its to show; the reference follows.
        gathered = max(1, round(ours()["records_per_sync"]))
        reference = partial(_group_commit, folder, gathered, sizes.synced_sends)
        taken = in_rounds(sizes.round_count, {"ours": ours, "reference": reference})
    batches = [run["records_per_sync"] for run in taken["ours"]]
    return [
        Row(
            name=f"send 1 KB with sync flush, {shape}",
            unit="messages/s",
            ours=records_per_second(taken["ours"]),
            reference=records_per_second(taken["reference"]),
            reference_name=f"C pwrite of {gathered} + fdatasync",
            limit=Limit(">=", 0.5),
            details={
                "records_per_sync": f"{min(batches):.1f} to {max(batches):.1f}",
                "us_cpu_per_message": round(cpu_us_per_record(taken["ours"]).best, 2),
                **_load_details(taken["ours"]),
            },
        )
    ]


def _synced(broker: Server, frame_file: Path, shape: Shape) -> Figures:
    syncs_before = broker.sync_count
    figures = loaded(broker, frame_file, shape)
    syncs = max(1, broker.sync_count - syncs_before)
    return {**figures, "records_per_sync": figures["answered"] / syncs}


def _group_commit(folder: Path, batch: int, record_count: int) -> Figures:
    from bench.store_parts import record_bytes

    program = str(compiled("store_baseline", PROGRAMS))
    numbers = (record_bytes(), batch, max(record_count, batch))
    with pinned("server"):
        return in_program(program, "commit", str(folder / "baseline"), *map(str, numbers))


_GROUPS: dict[str, Callable[[Sizes, Path], list[Row]]] = {
    "send": _send_rows,
    "pull": _pull_rows,
    "sync": _sync_rows,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The broker and the null server that gives the broker's answer to the same request."""

    broker: Server
    null: Server
    frame_file: Path

    @property
    def loop(self) -> str:
        return self.null.loop

    def sides(self, name: str, shape: Shape, records_per_request: int = 1) -> Sides:
        """Both as sides of a round: ``name`` and ``name null``."""
        run = partial(_run, self.frame_file, shape, records_per_request)
        return {name: partial(run, self.broker), f"{name} null": partial(run, self.null)}


@contextmanager
def _against_null(folder: Path, name: str, broker: Server, frame: bytes) -> Iterator[Pair]:
    answer = ask(broker, frame)
    frame_file = _written(folder / f"{name}.frame", frame)
    with running_null_server(folder, name, frame, answer) as null:
        yield Pair(broker=broker, null=null, frame_file=frame_file)


def _run(frame_file: Path, shape: Shape, records_per_request: int, server: Server) -> Figures:
    figures = loaded(server, frame_file, shape)
    return {**figures, "record_count": figures["record_count"] * records_per_request}


def _null_row(
    name: str, taken: Taken, side: str, limit: Limit | None, loop: str, per: str = "message"
) -> Row:
    reference = taken[f"{side} null"]
    return Row(
        name=name,
        unit=f"µs CPU/{per}",
        ours=cpu_us_per_record(taken[side]),
        reference=cpu_us_per_record(reference),
        reference_name="null server",
        limit=limit,
        details={
            **_load_details(taken[side]),
            "null_rate": f"{records_per_second(reference).best:,.0f}/s",
            "null_answers_per_read": _cheapest(reference)["answers_per_read"],
            "null_loop": loop if loop == "uvloop" else f"{loop}, since uvloop is not installed",
            **absent_peers(),
        },
    )


def _peer_row(name: str, taken: Taken, words: PeerWords, per: str = "message") -> Row:
    reference = taken[f"{words.side} {words.peer}"]
    return Row(
        name=f"{name}, beside {words.peer}",
        unit=f"µs CPU/{per}",
        ours=cpu_us_per_record(taken[words.side]),
        reference=cpu_us_per_record(reference),
        reference_name=words.reference_name,
        guide=words.guide,
        details={
            "their_rate": f"{records_per_second(reference).best:,.0f}/s",
            "their_answers_per_read": _cheapest(reference)["answers_per_read"],
        },
    )


def _load_details(taken: list[Figures]) -> dict[str, object]:
    run = _cheapest(taken)
    rate: Samples = records_per_second(taken)
    busy = sum(run["busy_count"] for run in taken)
    return {
        "rate": f"{rate.best:,.0f}/s",
        "p50_us": round(run["p50_us"]),
        "p99_us": round(run["p99_us"]),
        "p999_us": round(run["p999_us"]),
        "answers_per_read": run["answers_per_read"],
        "load_cpu_share": round(run["load_cpu_s"] / run["wall_s"], 2),
        "cores": describe_cores(),
        **({"refused_as_busy": busy} if busy else {}),
    }


def _cheapest(taken: list[Figures]) -> Figures:
    return min(taken, key=lambda run: run["cpu_s"] / run["record_count"])


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
