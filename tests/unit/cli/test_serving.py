"""How a server's process ends: by a signal, by a failure, or before it began."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from contrail.cli import serving
from contrail.cli.serving import FAILED, STOPPED, serve, with_fix
from contrail.errors import ConfigError, OpeningAbandoned, StoreLocked


class FakeServer:
    """Counts its calls; fails by its script."""

    def __init__(
        self, start_error: Exception | None = None, stop_error: Exception | None = None
    ) -> None:
        self.failed = asyncio.Event()
        self.calls: list[str] = []
        self._start_error = start_error
        self._stop_error = stop_error

    async def start(self) -> None:
        self.calls.append("start")
        if self._start_error is not None:
            raise self._start_error

    async def stop(self) -> None:
        self.calls.append("stop")
        if self._stop_error is not None:
            raise self._stop_error


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def run(server: FakeServer, on_ready: Callable[[FakeServer], None]) -> int:
    return serve(lambda: server, on_ready=on_ready, failed_event=lambda made: made.failed)


@pytest.mark.proves("broker.running.graceful-stop")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_is_no_failure(number: signal.Signals) -> None:
    server = FakeServer()
    assert run(server, lambda made: os.kill(os.getpid(), number)) == STOPPED == 0
    assert server.calls == ["start", "stop"]


@pytest.mark.proves("store.extensions.used-part")
def test_a_signal_during_the_start_abandons_it_and_is_no_failure() -> None:
    abandoned = asyncio.Event()

    class SlowServer(FakeServer):
        async def start(self) -> None:
            self.calls.append("start")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(abandoned.wait(), 60)
            raise OpeningAbandoned("it was abandoned")

    server = SlowServer()
    code = serve(lambda: server, on_ready=lambda made: None, abandon=lambda made: abandoned.set())
    assert (code, server.calls) == (STOPPED, ["start"])


def test_a_failed_server_is_stopped_and_its_exit_code_says_so() -> None:
    server = FakeServer()
    assert run(server, lambda made: made.failed.set()) == FAILED == 3
    assert server.calls == ["start", "stop"]


def test_a_failed_server_that_cannot_stop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(serving, "end_at_once", ended.append)
    run(FakeServer(stop_error=OSError("the disk is gone")), lambda made: made.failed.set())
    assert ended == [FAILED]


def test_a_second_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(serving, "end_at_once", ended.append)

    class SlowServer(FakeServer):
        async def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            while not ended:
                await asyncio.sleep(0)

    run(SlowServer(), lambda made: os.kill(os.getpid(), signal.SIGTERM))
    assert ended == [128 + signal.SIGTERM]


def test_the_collector_leaves_objects_made_at_start_alone() -> None:
    seen: list[tuple[int, tuple[int, int, int]]] = []

    def ready(made: FakeServer) -> None:
        seen.append((gc.get_freeze_count(), gc.get_threshold()))
        os.kill(os.getpid(), signal.SIGTERM)

    run(FakeServer(), ready)
    assert seen[0][0] > 0
    assert seen[0][1] == (50_000, 20, 50)


def test_an_operating_system_error_at_start_becomes_a_config_error_that_names_it() -> None:
    refusal = PermissionError(errno.EACCES, "Permission denied", "data/store")
    with pytest.raises(ConfigError, match=r"Permission denied.*data/store"):
        run(FakeServer(start_error=refusal), lambda made: None)


def test_an_error_of_contrail_at_start_passes_unchanged() -> None:
    with pytest.raises(StoreLocked, match="open elsewhere"):
        run(FakeServer(start_error=StoreLocked("open elsewhere")), lambda made: None)


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.EADDRINUSE, "--port"), (errno.EADDRNOTAVAIL, "listenAddress"), (errno.EACCES, "1024")],
)
def test_a_port_that_cannot_be_had_comes_with_its_fix(number: int, fix: str) -> None:
    error = ConfigError("127.0.0.1:80 cannot be listened on")
    error.__cause__ = OSError(number, os.strerror(number))
    assert str(with_fix(error)).startswith("127.0.0.1:80 cannot be listened on; ")
    assert fix in str(with_fix(error))


def test_an_error_without_a_known_cause_is_left_alone() -> None:
    error = ConfigError("listenPort is wrong")
    assert with_fix(error) is error
