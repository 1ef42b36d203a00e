"""The Spark suite: the connector beside Parquet, Kafka, our own client and a source of the JVM.

A broker in a process of its own is filled by our client. The same messages are then read by Spark
from the broker, from the broker's files, from Parquet and from Kafka, in one session and in turns.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    Stopwatch,
    cpu_us_per_record,
    figure,
    in_child,
    records_per_second,
)
from bench.spark_peers import Absent, running_kafka, spark_kafka_jars
from contrail import Admin, Message, Producer
from contrail.testing import LocalCluster

_CELLS = "bench.spark_cells"
TOPIC, SINK_TOPIC, SMALL_TOPIC = "Rows", "Sunk", "Few"
QUEUE_COUNT = 8
SMALL_QUEUE_COUNT = 4
BODY_BYTES = 1024
_MANY = 2000
_TAGS = ("created", "paid", "shipped")
# As large as the default's quarter: a scan meets several segments.
_PROPERTIES = {"mappedFileSizeCommitLog": str(256 << 20), "flushDiskType": "ASYNC_FLUSH"}

Taken = dict[str, list[Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    row_count: int
    round_count: int
    sink_row_count: int
    batch_count: int
    # Kafka and its source take longer to start than all of a quick run may.
    has_kafka: bool = True


SIZES = {
    "full": Sizes(row_count=1_000_000, round_count=3, sink_row_count=200_000, batch_count=20),
    "quick": Sizes(
        row_count=50_000, round_count=1, sink_row_count=20_000, batch_count=5, has_kafka=False
    ),
    "tiny": Sizes(row_count=2_000, round_count=1, sink_row_count=1_000, batch_count=2),
}


def groups() -> list[str]:
    return ["read", "sink", "micro-batch"]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    sizes = SIZES[size]
    measured = {"read": _read, "sink": _sink, "micro-batch": _micro_batch}[group]
    with LocalCluster(
        brokers=1, in_children=True, folder=folder / "cluster", properties=_PROPERTIES
    ) as cluster:
        places = {
            "namesrv": cluster.namesrv,
            "store": str(cluster.brokers[0].folder / "store"),
            "broker": cluster.brokers[0].name,
            "parquet": str(folder / "rows.parquet"),
            "topic": TOPIC,
            "sink_topic": SINK_TOPIC,
            "small_topic": SMALL_TOPIC,
        }
        with Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUE_COUNT)
            admin.create_topic(SINK_TOPIC, queues=QUEUE_COUNT)
            admin.create_topic(SMALL_TOPIC, queues=SMALL_QUEUE_COUNT)
        return measured(sizes, places, folder)


# Reading.


def _read(sizes: Sizes, places: dict[str, str], folder: Path) -> list[Row]:
    fill(places["namesrv"], TOPIC, sizes.row_count)
    places |= {"archive": str(folder / "archive"), "row_count": str(sizes.row_count)}
    made = in_child(f"{_CELLS}:write_parquet", places=places)
    _require_all(made, sizes.row_count, "Parquet")
    cells = ["parquet full", "offline full", "network full", "parquet one", "offline one"]
    cells += ["parquet copy", "offline copy"]
    with ExitStack() as stack:
        jars = ""
        try:
            if not sizes.has_kafka:
                raise Absent("it is left out of a quick run")
            jars = spark_kafka_jars()
            places |= {"kafka": stack.enter_context(running_kafka(folder / "kafka", QUEUE_COUNT))}
            made = in_child(f"{_CELLS}:write_kafka", places=places, jars=jars)
            _require_all(made, sizes.row_count, "Kafka")
            cells.append("kafka full")
        except Absent as reason:
            print(f"  without Kafka: {reason}", file=sys.stderr)
        taken = in_child(
            f"{_CELLS}:run_cells",
            cells=cells,
            round_count=sizes.round_count,
            row_count=sizes.row_count,
            places=places,
            jars=jars,
        )
    return list(_read_rows(taken))


def _require_all(made: Figures, row_count: int, where: str) -> None:
    if made["record_count"] != row_count:
        raise BenchError(f"{where} has {made['record_count']} rows instead of {row_count}")


def _read_rows(taken: Taken) -> Iterator[Row]:
    cpu = {name: cpu_us_per_record(runs) for name, runs in taken.items()}
    wall = {name: figure(runs, "wall_s") for name, runs in taken.items()}
    rate = {name: records_per_second(runs) for name, runs in taken.items()}
    unit = "CPU µs/row"
    pairs = (
        ("full scan of a store folder", "offline full", "parquet full", "Parquet", 2.0),
        ("one column of a store folder", "offline one", "parquet one", "Parquet", 4.0),
        ("archive of a store folder", "offline copy", "parquet copy", "Parquet to Parquet", 1.5),
        ("full scan over the network", "network full", "offline full", "store folder", 1.5),
    )
    for name, ours, reference, called, bound in pairs:
        limit = Limit("<=", bound)
        yield Row(
            name=name,
            unit=unit,
            ours=cpu[ours],
            reference=cpu[reference],
            reference_name=called,
            limit=limit,
        )
    yield Row(
        name="full scan over the network, wall",
        unit="s",
        ours=wall["network full"],
        reference=wall["offline full"],
        reference_name="store folder",
        limit=Limit("<=", 2.5),
    )
    if "kafka full" in taken:
        yield Row(
            name="full scan over the network",
            unit="rows/s",
            ours=rate["network full"],
            reference=rate["kafka full"],
            reference_name="Spark's Kafka source",
            limit=Limit(">=", 1.0),
        )
        yield Row(
            name="full scan over the network, beside Kafka",
            unit=unit,
            ours=cpu["network full"],
            reference=cpu["kafka full"],
            reference_name="Spark's Kafka source",
        )


# Writing.


def _sink(sizes: Sizes, places: dict[str, str], folder: Path) -> list[Row]:
    fill(places["namesrv"], TOPIC, sizes.sink_row_count)
    in_child(f"{_CELLS}:write_parquet", places=places)
    ours: Taken = in_child(
        f"{_CELLS}:run_cells",
        cells=["sink"],
        round_count=sizes.round_count,
        row_count=sizes.sink_row_count,
        places=places,
    )
    client = [
        in_child(
            "bench.spark:fill",
            namesrv=places["namesrv"],
            topic=SINK_TOPIC,
            row_count=sizes.sink_row_count,
        )
        for _ in range(sizes.round_count)
    ]
    return [
        Row(
            name="sink with idempotence=dedupe",
            unit="rows/s",
            ours=records_per_second(ours["sink"]),
            reference=records_per_second(client),
            reference_name="send_many of our client",
            limit=Limit(">=", 0.5),
        )
    ]


def fill(namesrv: str, topic: str, row_count: int) -> Figures:
    """Send a number of messages of 1 KB in batches; times the sending alone."""
    wall_s = cpu_s = 0.0
    with Producer("bench-filler", namesrv) as producer:
        for begin in range(0, row_count, _MANY):
            messages = list(_messages(topic, begin, min(begin + _MANY, row_count)))
            with Stopwatch() as watch:
                producer.send_many(messages)
            wall_s, cpu_s = wall_s + watch.wall_s, cpu_s + watch.cpu_s
    return {"wall_s": wall_s, "cpu_s": cpu_s, "record_count": row_count}


def _messages(topic: str, begin: int, end: int) -> Iterator[Message]:
    """Bodies that differ and compress about as JSON does."""
    for number in range(begin, end):
        head = f'{{"order": {number}, "region": "{_TAGS[number % 3]}", "note": "'.encode()
        rest = random.Random(number % 4096).randbytes(BODY_BYTES // 2).hex().encode()
        body = (head + rest)[: BODY_BYTES - 2] + b'"}'
        yield Message(topic, body, tags=_TAGS[number % 3], keys=f"order-{number}")


# Small micro-batches.


def _micro_batch(sizes: Sizes, places: Mapping[str, str], folder: Path) -> list[Row]:
    fill(places["namesrv"], SMALL_TOPIC, 200 * (sizes.batch_count + 10))
    taken: Taken = in_child(
        f"{_CELLS}:micro_batches", places=dict(places), batch_count=sizes.batch_count
    )
    ours, rate = (_medians_ms(taken[name]) for name in ("rocketmq", "rate"))
    return [
        Row(
            name="micro-batch of 40 rows in 4 tasks",
            unit="ms",
            ours=ours,
            reference=rate,
            reference_name="rate source of the JVM",
            limit=Limit("<=", 3.0),
        )
    ]


def _medians_ms(runs: list[Figures]) -> Samples:
    """Each batch is a sample; the best of many would say little about the median."""
    walls = sorted(1000 * float(run["wall_s"]) for run in runs)
    middle = len(walls) // 4
    return Samples(tuple(walls[middle : len(walls) - middle]))
