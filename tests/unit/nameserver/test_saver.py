"""State is written by a worker thread, newest first, and everybody learns how it went."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.nameserver import saver
from contrail.nameserver.saver import FileSaver

Written = list[bytes]
Problems = list[OSError | None]


def patch_writer(monkeypatch: pytest.MonkeyPatch, write: Callable[[bytes], None]) -> None:
    def write_state(files: object, path: Path, data: bytes, *, sealed: bool) -> None:
        assert path == Path("/state/kv.json") and not sealed
        write(data)

    monkeypatch.setattr(saver, "write_state", write_state)


def test_only_the_newest_waiting_document_is_written_and_all_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: Written = []
    problems: Problems = []
    may_write = threading.Event()

    def write(data: bytes) -> None:
        assert may_write.wait(30)
        written.append(data)

    async def scenario() -> None:
        file = FileSaver(Path("/state/kv.json"))
        file.save(b"1", problems.append)
        await asyncio.sleep(0)
        file.save(b"2", problems.append)
        file.save(b"3", problems.append)
        assert problems == []
        may_write.set()
        await file.drain()
        file.save(b"4", problems.append)
        await file.drain()
        await file.drain()

    patch_writer(monkeypatch, write)
    asyncio.run(scenario())
    assert written == [b"1", b"3", b"4"]
    assert problems == [None, None, None, None]


def test_a_failed_write_is_told_and_the_next_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: Problems = []

    def write(data: bytes) -> None:
        if data == b"bad":
            raise OSError(28, "no space")

    async def scenario() -> None:
        file = FileSaver(Path("/state/kv.json"))
        file.save(b"bad", problems.append)
        await file.drain()
        file.save(b"good", problems.append)
        await file.drain()

    patch_writer(monkeypatch, write)
    asyncio.run(scenario())
    assert isinstance(problems[0], OSError) and problems[1] is None
