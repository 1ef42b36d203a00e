"""Peers suite, costs of a growing broker: topics, memory, start, bytes on disk.

Topics: a broker of each make for 1, 1,000 and 10,000 topics, sent to in turn by the same load.
Footprint: both makes after the same messages, and from their start to the first stored one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    cpu_us_per_record,
    figure,
    in_rounds,
    records_per_second,
)
from bench.peers_bare import bare, topic_names
from bench.peers_servers import (
    Name,
    RocketServer,
    apache_peer,
    running_apache,
    running_contrail,
    time_to_first_send,
)
from bench.warm_pages import warm_pages
from bench.wire_frames import send_frame
from bench.wire_parts import Flush, Shape, describe_cores, loaded

TOPIC = "PeersTopic"
SMALL_HEAP = "1g"

_ASYNC: Flush = "ASYNC_FLUSH"
_LOAD_RUN = 100_000
# About, of a send of 1 KB.
_REQUEST_BYTES = 1400
_MIB = 1 << 20
_EIGHTH = Limit("<=", 0.125)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many topics and messages, and how often each run is made."""

    round_count: int
    topic_counts: tuple[int, ...]
    topic_sends: int
    with_apache_topics: bool
    stored_count: int
    start_count: int
    is_warmed_up: bool = False
    """Whether all topics are sent to once before the rounds, uncounted."""


SIZES = {
    "full": Sizes(
        round_count=3,
        topic_counts=(1, 1_000, 10_000),
        topic_sends=60_000,
        with_apache_topics=True,
        stored_count=1_000_000,
        start_count=3,
        is_warmed_up=True,
    ),
    "quick": Sizes(
        round_count=2,
        topic_counts=(1, 1_000),
        topic_sends=10_000,
        with_apache_topics=False,
        stored_count=0,
        start_count=1,
    ),
    "tiny": Sizes(
        round_count=1,
        topic_counts=(1, 4, 16),
        topic_sends=200,
        with_apache_topics=True,
        stored_count=500,
        start_count=1,
    ),
}


# Topics.


def topic_rows(size: str, folder: Path) -> list[Row]:
    """The rate with many topics beside the rate with one, and Apache's of the same kind."""
    sizes = SIZES[size]
    counts = sizes.topic_counts
    ours = _over_topics("contrail", sizes, counts, folder)
    # The ends are enough to show how Apache's rate changes: each point is one more broker.
    ends = (counts[0], counts[-1])
    theirs = _over_topics("apache", sizes, ends, folder) if sizes.with_apache_topics else {}
    rows = [_topic_row(sizes, topic_count, ours, theirs) for topic_count in sizes.topic_counts[1:]]
    return rows + [_topics_beside_apache(count, ours, theirs) for count in theirs]


def some_topic_rows(size: str, folder: Path) -> list[Row]:
    """Between the ends: Apache with as many topics as only ours is measured with otherwise."""
    sizes = SIZES[size]
    counts = sizes.topic_counts[1:-1]
    if not sizes.with_apache_topics:
        return []
    ours = _over_topics("contrail", sizes, counts, folder)
    theirs = _over_topics("apache", sizes, counts, folder)
    return [_topics_beside_apache(count, ours, theirs) for count in counts]


Taken = dict[int, list[Figures]]


def _over_topics(name: Name, sizes: Sizes, counts: tuple[int, ...], folder: Path) -> Taken:
    """By number of topics. The brokers of one make run side by side, so that noise is shared."""
    with ExitStack() as running:
        sides: dict[str, Callable[[], Figures]] = {}
        for topic_count in counts:
            home = folder / f"{name}-{topic_count}"
            server = running.enter_context(_with_topics(name, home, topic_count))
            sides[str(topic_count)] = partial(_sent, server, topic_count, sizes)
        warm_up = sides.values() if sizes.is_warmed_up else ()
        taken = in_rounds(sizes.round_count, sides, warm_up=warm_up)
    return {int(topic_count): runs for topic_count, runs in taken.items()}


def _sent(server: RocketServer, topic_count: int, sizes: Sizes) -> Figures:
    # The first run makes each topic's files: the warm part must reach every one of them.
    warm = max(topic_count, sizes.topic_sends // 5)
    # As much as the requests, in each of memory, log and derived files.
    warm_pages(server.folder, 3 * (warm + sizes.topic_sends) * _REQUEST_BYTES)
    where = {"topic": TOPIC, "topic_count": topic_count, "queue_count": 1}
    # One topic gets as many different messages as the most topics do.
    frame_count_min = sizes.topic_counts[-1]
    counts = {"warm_up_count": warm, "count": sizes.topic_sends, "frame_count_min": frame_count_min}
    return bare("sent", server, **where, **counts)


def _with_topics(name: Name, home: Path, topic_count: int) -> AbstractContextManager[RocketServer]:
    """A broker that finds its topics when it starts: making 10,000 by request takes minutes."""
    store = home.with_name(f"{home.name}-store")
    (store / "config").mkdir(parents=True)
    table = {topic: _topic(topic) for topic in topic_names(TOPIC, topic_count)}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    text = json.dumps({"dataVersion": version, "topicConfigTable": table})
    (store / "config" / "topics.json").write_text(text, encoding="utf-8")
    places = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    if name == "contrail":
        return running_contrail(home, flush=_ASYNC, properties=places)
    return running_apache(home, flush=_ASYNC, heap=SMALL_HEAP, properties=places)


def _topic(name: str) -> dict[str, object]:
    queues = {"readQueueNums": 1, "writeQueueNums": 1}
    kind = {"order": False, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    return {"topicName": name, **queues, **kind}


def _topic_row(sizes: Sizes, topic_count: int, ours: Taken, theirs: Taken) -> Row:
    least, most = sizes.topic_counts[0], sizes.topic_counts[-1]
    return Row(
        name=f"send 1 KB, {topic_count:,} topics beside {least}",
        unit="messages/s",
        ours=records_per_second(ours[topic_count]),
        reference=records_per_second(ours[least]),
        reference_name=f"ours, {least} topic",
        limit=Limit(">=", 0.8) if topic_count == most else None,
        details={
            "us_broker_cpu": round(cpu_us_per_record(ours[topic_count]).best, 2),
            "us_broker_cpu_one_topic": round(cpu_us_per_record(ours[least]).best, 2),
            "load_cpu_share": _load_share(ours[topic_count]),
            **_apache_details(topic_count, least, theirs),
            "cores": describe_cores(),
        },
    )


def _apache_details(topic_count: int, least: int, theirs: Taken) -> dict[str, object]:
    if not theirs:
        return {"apache": "not measured in a quick run"}
    if topic_count not in theirs:
        return {"apache": f"measured with {' and '.join(f'{count:,}' for count in theirs)}"}
    many, one = (records_per_second(theirs[count]).best for count in (topic_count, least))
    return {"apache_ratio": f"{many / one:.2f}x", "apache_heap": SMALL_HEAP}


def _topics_beside_apache(topic_count: int, ours: Taken, theirs: Taken) -> Row:
    noun = "topic" if topic_count == 1 else "topics"
    return Row(
        name=f"send 1 KB, {topic_count:,} {noun}",
        unit="messages/s",
        ours=records_per_second(ours[topic_count]),
        reference=records_per_second(theirs[topic_count]),
        reference_name=f"Apache {apache_peer().version}, -Xmx{SMALL_HEAP}",
        details={
            "us_broker_cpu": round(cpu_us_per_record(ours[topic_count]).best, 2),
            "apache_us_broker_cpu": round(cpu_us_per_record(theirs[topic_count]).best, 2),
            "load_cpu_share": _load_share(ours[topic_count]),
            "rounds": "ours first, then Apache's",
        },
    )


def _load_share(taken: list[Figures]) -> float:
    share: float = max(run["load_cpu_s"] / run["wall_s"] for run in taken)
    return round(share, 2)


# Memory, start and disk.


def footprint_rows(size: str, folder: Path) -> list[Row]:
    """Memory and disk after the same messages, and the time until a broker takes its first."""
    sizes = SIZES[size]
    starts = in_rounds(sizes.start_count, _start_sides(folder))
    if sizes.stored_count == 0:
        return [_start_row(starts, left_out="memory and disk, which a small store says nothing of")]
    stored = {name: [_stored(start, sizes.stored_count)] for name, start in _makes(folder, "store")}
    return [_start_row(starts), *_memory_rows(stored, sizes), _disk_row(stored)]


def _makes(
    folder: Path, what: str
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[RocketServer]]]]:
    """Ours and Apache's with the least memory it can be had with: its heap grows as it needs."""
    numbered = _numbered(folder, what)
    yield "contrail", lambda: running_contrail(next(numbered), flush=_ASYNC)
    yield (
        "apache",
        lambda: running_apache(next(numbered), flush=_ASYNC, heap=SMALL_HEAP, is_touched=False),
    )


def _numbered(folder: Path, what: str) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield folder / f"{what}-{number}"


def _start_sides(folder: Path) -> dict[str, Callable[[], Figures]]:
    return {name: partial(time_to_first_send, start) for name, start in _makes(folder, "start")}


def _stored(
    start: Callable[[], AbstractContextManager[RocketServer]], record_count: int
) -> Figures:
    """A broker's memory after a number of messages of 1 KB, all of them answered."""
    with start() as server:
        frame_file = server.folder / "send.frame"
        frame_file.write_bytes(send_frame())
        stored = 0
        while stored < record_count:
            run = Shape(connections=1, depth=64, count=min(_LOAD_RUN, record_count - stored))
            figures = loaded(server.under_load, frame_file, run)
            stored += figures["answered"] - figures["busy_count"]
        return {
            "record_count": stored,
            "private_bytes": server.private_bytes(),
            "anonymous_bytes": server.anonymous_bytes(),
            "disk_bytes": server.disk_bytes(),
        }


def _start_row(taken: Mapping[str, list[Figures]], **details: object) -> Row:
    return Row(
        name="start to first SEND_OK, NameServer included",
        unit="s",
        ours=figure(taken["contrail"], "wall_s"),
        reference=figure(taken["apache"], "wall_s"),
        reference_name=_small_apache(),
        limit=Limit("<=", 0.2),
        details={"cores": describe_cores(), **details},
    )


def _memory_rows(stored: Mapping[str, list[Figures]], sizes: Sizes) -> list[Row]:
    counted = {
        "private": ("what only the broker has mapped, pages of its files included", _EIGHTH),
        "anonymous": ("without the pages of files", None),
    }
    return [
        Row(
            name=f"{kind} memory after {sizes.stored_count:,} x 1 KB",
            unit="MiB",
            ours=_scaled(stored["contrail"], f"{kind}_bytes", _MIB),
            reference=_scaled(stored["apache"], f"{kind}_bytes", _MIB),
            reference_name=_small_apache(),
            limit=limit,
            details={"counted": what},
        )
        for kind, (what, limit) in counted.items()
    ]


def _disk_row(stored: Mapping[str, list[Figures]]) -> Row:
    """The same format; ours is without the entry for a tag in the index."""
    per_message = {name: _bytes_per_record(runs) for name, runs in stored.items()}
    return Row(
        name="disk per message of 1 KB",
        unit="bytes",
        ours=per_message["contrail"],
        reference=per_message["apache"],
        reference_name=_small_apache(),
        limit=Limit("<=", 1.01),
        details={
            "counted": "log, queues and index, without what is only reserved",
            "less": "Apache's index has 20 bytes more for a message's tag, see differences",
        },
    )


def _bytes_per_record(taken: list[Figures]) -> Samples:
    for run in taken:
        if run["disk_bytes"] <= 0:
            raise BenchError("a broker reports no bytes of its log after it has stored messages")
    return Samples(tuple(run["disk_bytes"] / run["record_count"] for run in taken))


def _scaled(taken: list[Figures], name: str, divisor: int) -> Samples:
    return Samples(tuple(run[name] / divisor for run in taken))


def _small_apache() -> str:
    return f"Apache {apache_peer().version}, -Xmx{SMALL_HEAP}"


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {
    "topics": topic_rows,
    "footprint": footprint_rows,
}
EXTRA_GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {"topics-between": some_topic_rows}
