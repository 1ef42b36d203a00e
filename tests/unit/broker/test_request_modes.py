"""The table of how groups ask for messages: kept, answered, and read again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contrail.broker.services.persistence import Persistence
from contrail.broker.services.request_modes import FILE_NAME, RequestModes
from contrail.model.fastjson import FastJsonError, loads
from contrail.protocol.bodies.groups import RequestMode
from contrail.runtime.files import FileSystem

MODE = {"consumerGroup": "billing", "topic": "orders", "mode": "POP", "popShareQueueNum": 0}
BODY = (
    b'{"messageRequestModeMap":{"orders":{"billing":{"consumerGroup":"billing","mode":"POP",'
    b'"popShareQueueNum":0,"topic":"orders"}}}}'
)


class Recorder(Persistence):
    """Takes what would be written, when it is asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, FileSystem())

    def written(self) -> bytes | None:
        (table,) = self._tables
        return table.snapshot()() if table.take_changed() else None


def made(root: Path) -> tuple[RequestModes, Recorder]:
    persistence = Recorder(root)
    return RequestModes(FileSystem(), root, persistence), persistence


def test_without_a_file_all_groups_pull_and_nothing_is_written(tmp_path: Path) -> None:
    modes, persistence = made(tmp_path)
    assert modes.body() == b'{"messageRequestModeMap":{}}'
    assert persistence.written() is None


@pytest.mark.proves("replication.pair.tables")
def test_a_slave_answers_and_keeps_the_modes_of_its_master(tmp_path: Path) -> None:
    modes, persistence = made(tmp_path)
    modes.follow(BODY)
    assert loads(modes.body()) == loads(BODY)
    written = persistence.written()
    assert written is not None
    modes.follow(BODY)
    assert persistence.written() is None, "the same table is not written again"

    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_bytes(written)
    again, _ = made(tmp_path)
    assert loads(again.body()) == {"messageRequestModeMap": {"orders": {"billing": MODE}}}


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"messageRequestModeMap":[1]}'])
def test_a_body_that_is_no_table_changes_nothing(tmp_path: Path, body: bytes) -> None:
    modes, _ = made(tmp_path)
    modes.follow(BODY)
    with pytest.raises(FastJsonError):
        modes.follow(body)
    assert loads(modes.body()) == loads(BODY)


def test_a_damaged_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / FILE_NAME).write_bytes(b"{")
    modes, _ = made(tmp_path)
    assert modes.body() == b'{"messageRequestModeMap":{}}'
    assert FILE_NAME in caplog.text


@pytest.mark.proves("kinds.pop.assignments")
def test_a_mode_that_is_set_is_found_and_written(tmp_path: Path) -> None:
    modes, _ = made(tmp_path)
    modes.follow(BODY)
    asyncio.run(set_mode(modes, RequestMode("orders", "shipping", "POP", 2)))
    assert modes.find("orders", "shipping") == RequestMode("orders", "shipping", "POP", 2)
    assert modes.find("orders", "billing") == RequestMode("orders", "billing", "POP", 0)
    assert modes.find("orders", "nobody") is modes.find("none", "billing") is None
    written = loads((tmp_path / "config" / FILE_NAME).read_bytes())
    assert written == loads(modes.body())


async def set_mode(modes: RequestModes, mode: RequestMode) -> None:
    saved = asyncio.get_running_loop().create_future()
    modes.set(mode, saved.set_result)
    assert await saved is None
