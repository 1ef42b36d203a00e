"""A worker thread writes the state of that moment, and each caller gets the outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.nameserver import saver
from contrail.nameserver.saver import FileSaver

Written = list[bytes]
Problems = list[Exception | None]


def patch_writer(monkeypatch: pytest.MonkeyPatch, write: Callable[[bytes], None]) -> None:
    def write_state(files: object, path: Path, data: bytes, *, sealed: bool) -> None:
        assert path == Path("/state/kv.json") and not sealed
        write(data)

    monkeypatch.setattr(saver, "write_state", write_state)


def test_callers_that_wait_for_a_write_share_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: Written = []
    problems: Problems = []
    may_write = threading.Event()

    def write(data: bytes) -> None:
        assert may_write.wait(30)
        written.append(data)

    async def scenario() -> None:
        documents = [b"4", b"2", b"1"]
        file = FileSaver(Path("/state/kv.json"), documents.pop)
        file.when_written(problems.append)
        await asyncio.sleep(0)
        file.when_written(problems.append)
        file.when_written(problems.append)
        assert problems == []
        may_write.set()
        await file.drain()
        file.when_written(problems.append)
        await file.drain()
        await file.drain()

    patch_writer(monkeypatch, write)
    asyncio.run(scenario())
    assert written == [b"1", b"2", b"4"]
    assert problems == [None, None, None, None]


def test_a_failed_write_is_reported_and_the_next_write_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems: Problems = []

    def write(data: bytes) -> None:
        if data == b"bad":
            raise OSError(28, "no space")

    async def scenario() -> None:
        documents = [b"good", b"once more", b"bad"]
        file = FileSaver(Path("/state/kv.json"), documents.pop)
        file.when_written(problems.append)
        await file.drain()
        assert documents == [b"good"]
        file.when_written(problems.append)
        await file.drain()

    patch_writer(monkeypatch, write)
    asyncio.run(scenario())
    assert isinstance(problems[0], OSError) and problems[1] is None


def test_a_document_that_its_reader_would_find_too_long_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems: Problems = []
    monkeypatch.setattr(saver, "DOCUMENT_BYTES_MAX", 3)

    def write(data: bytes) -> None:
        raise AssertionError("it must not be written")

    async def scenario() -> None:
        file = FileSaver(Path("/state/kv.json"), lambda: b"long")
        file.when_written(problems.append)
        await file.drain()

    patch_writer(monkeypatch, write)
    asyncio.run(scenario())
    assert "4 bytes, its reader accepts 3" in str(problems[0])
