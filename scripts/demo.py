"""The product's main job today, from an empty clone: write, kill, recover and inspect a store.

A writer process stores orders and tells us each one it was promised; we kill it with SIGKILL in
the middle of its work, open what is left, and check every promise. Then we damage files the way
disks and operators do, and let the store put itself right. Exits 0 only if nothing was lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from contrail.errors import StoreCorrupt
from contrail.kernels import compiled_kernels
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore

KILL_AFTER = 3_000
REGIONS = ("eu", "us", "asia")
console = Console()


def store_config(root: Path) -> StoreConfig:
    """Segments of 1 MiB, so that the demo sees several; everything else as in production."""
    return StoreConfig(
        root=root,
        segment_bytes=1 << 20,
        queue_file_bytes=2_000 * 20,
        index_slot_count=5_000,
        index_entry_count=20_000,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )


def order(number: int) -> MessageDraft:
    properties = {
        "UNIQ_KEY": f"7F000001{number:024X}",
        "KEYS": f"order-{number}",
        "TAGS": ("created", "paid", "shipped")[number % 3],
        "region": REGIONS[number % len(REGIONS)],
    }
    body = f'{{"order": {number}, "amount": {number * 7 % 1000}}}'.encode()
    return MessageDraft(b"orders", number % 4, body, encode_properties(properties))


def write_forever(root: Path) -> None:
    """The writer: a run of orders, made durable, then told to whoever listens."""
    store = MessageStore.open(store_config(root))
    number = 0
    while True:
        run = store.append([order(n) for n in range(number, number + 32)])
        if not store.wait_acknowledged(run):
            raise SystemExit("the disk is too slow to acknowledge anything")
        store.dispatch()
        store.tick()
        number += 32
        print(number, flush=True)


def kill_a_writer(root: Path) -> int:
    """How many orders the writer had acknowledged when it was killed."""
    arguments = [sys.executable, __file__, "--write", str(root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acknowledged = 0
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= KILL_AFTER and writer.poll() is None:
                os.kill(writer.pid, signal.SIGKILL)
    return acknowledged


def read_all(store: MessageStore) -> dict[int, int]:
    """Order number to queue id, for everything the queues hand out."""
    found: dict[int, int] = {}
    for topic, queue_id in store.queues():
        queue_offset = store.queue_offset_min(topic, queue_id)
        while queue_offset < store.queue_offset_max(topic, queue_id):
            result = store.get(topic, queue_id, queue_offset)
            for message in result.messages:
                found[int(message.properties["KEYS"].removeprefix("order-"))] = queue_id
            queue_offset = result.next_queue_offset
    return found


def recover(root: Path, acknowledged: int) -> int:
    """Open what the kill left behind and count lost promises."""
    begun = time.monotonic()
    with MessageStore.open(store_config(root)) as store:
        elapsed_ms = (time.monotonic() - begun) * 1000
        found = read_all(store)
        lost = [number for number in range(acknowledged) if number not in found]
        by_key = store.query(b"orders", b"order-1234")
        table = Table(title="After kill -9", show_header=False)
        table.add_row("acknowledged before the kill", f"{acknowledged:,}")
        table.add_row("found by reading every queue", f"{len(found):,}")
        table.add_row("acknowledged and lost", f"{len(lost):,}", style="red" if lost else "green")
        table.add_row(
            "recovery", f"{elapsed_ms:.0f} ms, {store.recovery.scanned_bytes:,} bytes verified"
        )
        table.add_row("torn tail cut off", f"{store.recovery.cut_bytes:,} bytes")
        table.add_row("key order-1234 finds", by_key[0].body.decode() if by_key else "nothing")
        console.print(table)
    return len(lost) + (not by_key)


def rebuild(root: Path) -> int:
    """Delete everything that is derived; the log alone brings it back."""
    with MessageStore.open(store_config(root)) as store:
        before = read_all(store)
    for folder in ("consumequeue", "index"):
        shutil.rmtree(root / folder)
    with MessageStore.open(store_config(root)) as store:
        after = read_all(store)
        by_key = store.query(b"orders", b"order-42")
    same = before == after and len(by_key) == 1
    console.print(
        f"deleted every consume queue and index file: rebuilt {len(after):,} entries", end=" "
    )
    console.print("[green]the same[/]" if same else "[red]and they differ[/]")
    return 0 if same else 1


def refuse_corruption(root: Path) -> int:
    """Flip one bit of the last durable message: the store must refuse to start."""
    segment = sorted((root / "commitlog").iterdir())[-1]
    data = bytearray(segment.read_bytes())
    position = len(bytes(data).rstrip(b"\0")) - 200
    data[position] ^= 0x10
    segment.write_bytes(data)
    try:
        MessageStore.open(store_config(root)).close()
    except StoreCorrupt as refusal:
        console.print(
            f"flipped one bit of a durable message: [green]refused[/], {refusal}", highlight=False
        )
        data[position] ^= 0x10
        segment.write_bytes(data)
        return 0
    console.print("[red]a damaged durable message was not noticed[/]")
    return 1


def inspect(root: Path) -> int:
    """What an operator would type."""
    console.print("\n[bold]$ contrail store verify DIR[/]")
    command = [sys.executable, "-m", "contrail.cli", "store"]
    verified = subprocess.run([*command, "verify", str(root)], check=False)
    console.print("\n[bold]$ contrail store inspect DIR[/]")
    inspected = subprocess.run([*command, "inspect", str(root)], check=False)
    return verified.returncode + inspected.returncode


def main() -> int:
    kernels = compiled_kernels()
    console.rule("Contrail: a store that keeps its promises")
    console.print(
        f"{sum(kernels.values())} of {len(kernels)} kernels are compiled"
        + ("" if all(kernels.values()) else ": the rest run interpreted, correct and slower")
    )
    with tempfile.TemporaryDirectory(prefix="contrail-demo-") as folder:
        root = Path(folder) / "store"
        failures = recover(root, kill_a_writer(root))
        failures += rebuild(root)
        failures += refuse_corruption(root)
        failures += inspect(root)
    console.rule("[green]all promises kept[/]" if not failures else "[red]something is wrong[/]")
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_forever(Path(sys.argv[2]))
    else:
        sys.exit(main())
