"""The product's main job today, from an empty clone: a whole cluster, used, killed and looked into.

A NameServer and two brokers run as processes of their own. Orders are sent to them and read back
over the wire, with the Python client and by Spark, in every way that is built; one broker is
killed with SIGKILL in the middle of its work and started again; then its files are damaged the way
disks and operators do. A slave takes over the reads of a master that is killed, and a failover
group elects another leader while orders are sent to the one that is killed. Exits 0 only if nothing
was lost.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from demo_client import show_client
from demo_failover import show_failover
from demo_kinds import show_kinds
from demo_replication import show_replication
from demo_spark import show_spark
from rich.console import Console
from rich.table import Table

from contrail.broker.settings import read_broker_settings
from contrail.errors import CallFailed, StoreCorrupt
from contrail.kernels import compiled_kernels
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import split_record_run
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from contrail.testing import BlockingCaller, LocalBroker, LocalCluster

TOPIC = "orders"
QUEUE_COUNT = 4
SYNC_COUNT, ONE_WAY_COUNT, BATCH_COUNT = 200, 40, 60
KILL_AFTER = 400
TAGS = ("created", "paid", "shipped")
REGIONS = ("eu", "us")
# Segments of 1 MiB, so that the demo sees several; acknowledged means synced, as in production.
PROPERTIES = {"mappedFileSizeCommitLog": str(1 << 20), "flushDiskType": "SYNC_FLUSH"}
console = Console()


class Report:
    """Checks, printed as they are made; ``failures`` counts failed checks."""

    def __init__(self) -> None:
        self.failures = 0

    def show(self, title: str, rows: Iterable[tuple[str, str, bool]]) -> None:
        table = Table(title=title, show_header=False, title_justify="left", width=78)
        for what, value, holds in rows:
            self.failures += not holds
            table.add_row("[green]ok[/]" if holds else "[red]NO[/]", what, value)
        console.print(table)


# Talking to the cluster, one frame at a time.


def order(number: int) -> tuple[bytes, dict[str, str]]:
    properties = {
        "UNIQ_KEY": f"7F000001{number:024X}",
        "KEYS": f"order-{number}",
        "TAGS": TAGS[number % 3],
        "region": REGIONS[number % 2],
        "amount": str(number * 7 % 1000),
    }
    return f'{{"order": {number}}}'.encode(), properties


def send_header(queue_id: int, properties: dict[str, str], **changes: str) -> dict[str, str]:
    """The header of SEND_MESSAGE_V2, whose fields are single letters."""
    text = encode_properties(properties).decode()
    header = {"a": "demo-producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUE_COUNT)}
    header |= {"e": str(queue_id), "f": "0", "g": str(time.time_ns() // 1_000_000), "h": "0"}
    return {**header, "i": text, **changes}


def send(caller: BlockingCaller, broker: LocalBroker, number: int) -> bool:
    """Whether the order was acknowledged."""
    body, properties = order(number)
    header = send_header(number % QUEUE_COUNT, properties)
    return caller.call(broker.address, RequestCode.SEND_MESSAGE_V2, header, body).code == 0


def pull_header(queue_id: int, queue_offset: int, **changes: str) -> dict[str, str]:
    header = {"consumerGroup": "demo-consumers", "topic": TOPIC, "queueId": str(queue_id)}
    header |= {"queueOffset": str(queue_offset), "maxMsgNums": "32", "sysFlag": "4"}
    header |= {"commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*"}
    return {**header, "subVersion": "0", **changes}


def consume(
    caller: BlockingCaller, brokers: Sequence[LocalBroker], **filtering: str
) -> dict[int, StoredMessage]:
    """Every order in the queues, by its number."""
    found: dict[int, StoredMessage] = {}
    for broker, queue_id in itertools.product(brokers, range(QUEUE_COUNT)):
        queue_offset = 0
        while True:
            header = pull_header(queue_id, queue_offset, **filtering)
            answer = caller.call(broker.address, RequestCode.PULL_MESSAGE, header)
            for message in split_record_run(answer.body):
                found[number_of(message)] = message
            queue_offset = int(answer.fields["nextBeginOffset"])
            if queue_offset >= int(answer.fields["maxOffset"]):
                break
    return found


def consume_until(
    caller: BlockingCaller, brokers: Sequence[LocalBroker], count: int
) -> dict[int, StoredMessage]:
    """The same, once there are ``count``: a one-way order may still be on its way to the disk."""
    deadline = time.monotonic() + 10
    while len(found := consume(caller, brokers)) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def number_of(message: StoredMessage) -> int:
    return int(message.properties["KEYS"].removeprefix("order-"))


# The parts of the show.


def send_in_every_way(cluster: LocalCluster, report: Report) -> int:
    """How many orders both brokers were given."""
    caller, brokers = cluster.caller, cluster.brokers
    numbers = itertools.count()
    begun = time.monotonic()
    acknowledged = sum(send(caller, brokers[next(numbers) % 2], n) for n in range(SYNC_COUNT))
    elapsed_ms = (time.monotonic() - begun) * 1000 / SYNC_COUNT
    first = SYNC_COUNT
    for number in range(first, first + ONE_WAY_COUNT):
        body, properties = order(number)
        header = send_header(number % QUEUE_COUNT, properties)
        caller.notify(brokers[number % 2].address, RequestCode.SEND_MESSAGE_V2, header, body)
    first += ONE_WAY_COUNT
    orders = [order(number) for number in range(first, first + BATCH_COUNT)]
    units = [BatchUnit(body, encode_properties(properties)) for body, properties in orders]
    header = send_header(0, {}, m="true")
    code = RequestCode.SEND_BATCH_MESSAGE
    batch = caller.call(brokers[0].address, code, header, encode_batch(units))
    answer = caller.call(
        cluster.nameservers[0].address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}
    )
    route = TopicRouteData.decode(answer.body)
    report.show(
        "Sending",
        [
            (
                "one by one, each answered after its sync",
                f"{acknowledged:,} orders, {elapsed_ms:.1f} ms each",
                acknowledged == SYNC_COUNT,
            ),
            ("one-way, not answered", f"{ONE_WAY_COUNT:,} orders", True),
            ("one batch", f"{BATCH_COUNT:,} orders", batch.code == 0),
            (
                "the NameServer's route for the topic",
                ", ".join(sorted(broker.broker_name for broker in route.brokers)),
                len(route.brokers) == 2,
            ),
        ],
    )
    return first + BATCH_COUNT


def read_in_every_way(cluster: LocalCluster, report: Report, count: int) -> None:
    caller, brokers = cluster.caller, cluster.brokers
    everything = consume_until(caller, brokers, count)
    by_tag = consume(caller, brokers, subscription="paid || shipped")
    sql = "region = 'eu' AND amount BETWEEN 100 AND 199"
    by_sql = consume(caller, brokers, subscription=sql, expressionType="SQL92")
    wanted_by_sql = [n for n in range(count) if n % 2 == 0 and 100 <= n * 7 % 1000 <= 199]
    question = {"topic": TOPIC, "key": "order-123", "maxNum": "8"}
    question |= {"beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    by_key = caller.call(brokers[1].address, RequestCode.QUERY_MESSAGE, question)
    found = [number_of(message) for message in split_record_run(by_key.body)]
    waited_ms = long_poll(cluster, count)
    report.show(
        "Reading",
        [
            ("from every queue", f"{len(everything):,} orders", len(everything) == count),
            (
                "tags paid || shipped",
                f"{len(by_tag):,} orders",
                set(by_tag) == {n for n in range(count) if n % 3},
            ),
            (f"SQL92 {sql}", f"{len(by_sql):,} orders", sorted(by_sql) == wanted_by_sql),
            ("key order-123", f"order {found}", found == [123]),
            (
                "a pull that waited for the next order",
                f"answered {waited_ms:.1f} ms after it was sent",
                waited_ms < 5_000,
            ),
        ],
    )


def long_poll(cluster: LocalCluster, number: int) -> float:
    """Milliseconds from sending an order to the answer of a pull that was held for it."""
    broker, queue_id = cluster.brokers[0], number % QUEUE_COUNT
    queue = {"topic": TOPIC, "queueId": str(queue_id)}
    end = cluster.caller.call(broker.address, RequestCode.GET_MAX_OFFSET, queue).fields["offset"]
    answered: list[float] = []

    def wait() -> None:
        with BlockingCaller() as consumer:
            # Bit 2 of the flag: this pull may be held.
            header = pull_header(queue_id, int(end), sysFlag="6")
            answer = consumer.call(
                broker.address, RequestCode.PULL_MESSAGE, header, timeout_ms=30_000
            )
            if answer.code == 0 and number_of(next(iter(split_record_run(answer.body)))) == number:
                answered.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)  # let the pull arrive first; if it is late it finds the order at once
    begun = time.monotonic()
    send(cluster.caller, broker, number)
    waiting.join()
    return (answered[0] - begun) * 1000 if answered else float("inf")


def kill_and_restart(cluster: LocalCluster, report: Report, first: int) -> int:
    """Kill a broker while orders are sent to it; every acknowledged order must survive."""
    broker = cluster.brokers[1]
    acknowledged: list[int] = []

    def keep_sending() -> None:
        with BlockingCaller() as producer:
            try:
                for number in itertools.count(first):
                    if send(producer, broker, number):
                        acknowledged.append(number)
            except CallFailed:
                return

    sending = threading.Thread(target=keep_sending)
    sending.start()
    deadline = time.monotonic() + 30
    while len(acknowledged) < KILL_AFTER and time.monotonic() < deadline:
        time.sleep(0.001)
    broker.kill()
    sending.join()
    begun = time.monotonic()
    broker.start()
    elapsed_s = time.monotonic() - begun
    found = consume(cluster.caller, [broker])
    lost = [number for number in acknowledged if number not in found]
    report.show(
        "kill -9 of a broker",
        [
            ("acknowledged until the kill", f"{len(acknowledged):,} orders", bool(acknowledged)),
            ("serving again", f"after {elapsed_s:.1f} s", True),
            ("acknowledged and lost", f"{len(lost):,}", not lost),
        ],
    )
    return len(found)


def look_into(config: StoreConfig, report: Report, count: int) -> None:
    """Delete derived files, damage the log; the store repairs or refuses."""
    for folder in ("consumequeue", "index"):
        shutil.rmtree(config.root / folder)
    with MessageStore.open(config) as store:
        rebuilt = sum(store.queue_offset_max(*queue) for queue in store.queues())
        by_key = store.query(TOPIC.encode(), b"order-123")
    report.show(
        "The stopped broker's files",
        [
            (
                "every consume queue and index file deleted",
                f"{rebuilt:,} entries rebuilt from the log",
                rebuilt >= count and len(by_key) == 1,
            ),
            ("one bit of a durable message flipped", *refuse_corruption(config)),
        ],
    )


def refuse_corruption(config: StoreConfig) -> tuple[str, bool]:
    """Flip a bit in the last message's body, try to start, and put it back."""
    segments = sorted((config.root / "commitlog").iterdir())
    segment = next(path for path in reversed(segments) if b'{"order"' in path.read_bytes())
    data = bytearray(segment.read_bytes())
    position = data.rindex(b'{"order"')
    data[position] ^= 0x10
    segment.write_bytes(data)
    try:
        MessageStore.open(config).close()
    except StoreCorrupt as refusal:
        return f"refused: bytes {refusal.physical_start:,} to {refusal.physical_end:,}", True
    finally:
        data[position] ^= 0x10
        segment.write_bytes(data)
    return "not noticed", False


def verify(root: Path, report: Report) -> None:
    """Verify the store by the command that an operator would type."""
    console.print("\n[bold]$ contrail store verify DIR[/]")
    command = [sys.executable, "-m", "contrail.cli", "store", "verify", str(root)]
    report.failures += subprocess.run(command, check=False).returncode != 0


def main() -> int:
    kernels = compiled_kernels()
    console.rule("Contrail: a NameServer and two brokers")
    console.print(
        f"{sum(kernels.values())} of {len(kernels)} kernels are compiled"
        + ("" if all(kernels.values()) else ": the rest run interpreted, correct and slower")
    )
    report = Report()
    with tempfile.TemporaryDirectory(prefix="contrail-demo-") as folder:
        cluster = LocalCluster(
            brokers=2, folder=Path(folder), in_children=True, properties=PROPERTIES
        )
        with cluster:
            addresses = ", ".join(broker.address for broker in cluster.brokers)
            console.print(f"NameServer {cluster.namesrv}, brokers {addresses}", highlight=False)
            sent = send_in_every_way(cluster, report)
            read_in_every_way(cluster, report, sent)
            report.show("The Python client", show_client(cluster))
            report.show("Spark", show_spark(cluster, Path(folder) / "spark"))
            count = kill_and_restart(cluster, report, sent + 1)
        config = read_broker_settings(cluster.brokers[1].properties()).store
        look_into(config, report, count)
        verify(config.root, report)
        report.show("Messages that wait, fail or depend", show_kinds(Path(folder), PROPERTIES))
        report.show("A master and its slave", show_replication(Path(folder), PROPERTIES))
        report.show("A failover group", show_failover(Path(folder), PROPERTIES))
    kept = not report.failures
    console.rule("[green]all promises kept[/]" if kept else "[red]something is wrong[/]")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
