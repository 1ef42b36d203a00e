"""A master's and a slave's services over real sockets: the slave's store becomes the master's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.config import FlushDiskType
from contrail.testing.waiting import eventually_async
from tests.e2e.replication_pair import Pair, pair_of

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def drafts(first: int, count: int) -> list[MessageDraft]:
    return [
        MessageDraft(
            f"topic-{number % 3}".encode(),
            number % 4,
            f"{number:08d}".encode() * (1 + number * 7919 % 60),
            encode_properties({"KEYS": f"k{number}", "UNIQ_KEY": f"ID{number:08d}"}),
        )
        for number in range(first, first + count)
    ]


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_copies(folder: Path) -> None:
    """Logs and consume queues of the closed stores are equal, byte for byte."""
    for name in ("commitlog", "consumequeue"):
        expected = files_below(folder / "master" / name)
        assert expected and files_below(folder / "slave" / name) == expected


async def send_many(pair: Pair, count: int) -> None:
    for first in range(0, count, 50):
        pair.append(drafts(first, 50))
        await asyncio.sleep(0)


@pytest.mark.proves("replication.shown.ours-with-ours")
@pytest.mark.parametrize("is_plain", [False, True], ids=["contrail", "plain"])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_20000_records_arrive_over_a_link_that_is_cut_anywhere(
    tmp_path: Path, is_plain: bool, flush: str
) -> None:
    changes = SYNC if flush == "sync" else {}

    async def story() -> None:
        async with pair_of(
            tmp_path,
            is_plain=is_plain,
            seed=7,
            master_changes=changes,
            slave_changes=changes,
        ) as pair:
            await send_many(pair, 20_000)
            await eventually_async(lambda: pair.proxy.cut_count >= 10)
            pair.proxy.heal()
            await pair.caught_up()
            assert pair.master_store.physical_end > 5 << 20
            assert pair.slave.status().problem == ""
            pair.master_store.dispatch()

    asyncio.run(story())
    assert_copies(tmp_path)
