"""How a test drives an official client: a small program per client, run as a process of its own.

A driver program takes a command and one JSON object of arguments, and prints one JSON object per
line: its events. Other output goes to standard error, which is kept in a file. Senders and
consumers end by themselves or when their standard input is closed.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from contrail.protocol.signing import Credentials
from tests.interop.peers import PeerFailed, own_environment

Event = dict[str, Any]

RUN_TIMEOUT_S = 120.0
ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "DRIVER_ACCESS_KEY", "DRIVER_SECRET_KEY"

# A killed consumer has not written its offsets to the brokers.
_CLOSE_TIMEOUT_S = 60.0
_TAIL_CHARACTERS = 4000
_TAIL_EVENTS = 5


class Driver(ABC):
    """One client's program. Each process it starts gets its own HOME under ``homes``."""

    def __init__(self, homes: Path) -> None:
        self._homes = homes
        self._numbers = itertools.count(1)
        # The user that the client signs for; without one it does not sign.
        self.credentials: Credentials | None = None

    @abstractmethod
    def command_line(self, home: Path) -> list[str]:
        """The program and its fixed options; the command and its arguments are added."""

    def environment(self, home: Path) -> dict[str, str]:
        """The whole environment of the process; nothing else is handed down."""
        return own_environment(home)

    def judges_exit_code(self) -> bool:
        """Whether a bad exit code fails a run; some clients crash after their work is done."""
        return True

    def run(
        self, command: str, arguments: Mapping[str, Any], *, timeout_s: float = RUN_TIMEOUT_S
    ) -> list[Event]:
        """Run a command to its end and return its events."""
        with self.start(command, arguments) as running:
            return running.finish(timeout_s)

    def start(self, command: str, arguments: Mapping[str, Any]) -> RunningDriver:
        """Start a command; the caller closes the returned process."""
        home = self._homes / f"{command}-{next(self._numbers)}"
        home.mkdir(parents=True)
        line = [*self.command_line(home), command, json.dumps(arguments)]
        environment = self.environment(home)
        if self.credentials is not None:
            environment[ACCESS_KEY_VARIABLE] = self.credentials.access_key
            environment[SECRET_KEY_VARIABLE] = self.credentials.secret_key
        return RunningDriver(line, home, environment, self.judges_exit_code())


class RunningDriver:
    """A driver process and the events it has printed so far."""

    def __init__(
        self, line: list[str], home: Path, environment: dict[str, str], judges_exit_code: bool
    ) -> None:
        self._judges_exit_code = judges_exit_code
        self._line = line
        self._errors = home / "stderr.txt"
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._ended = False
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                line,
                cwd=home,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def events(self) -> list[Event]:
        """The events printed so far; a copy."""
        with self._changed:
            return list(self._events)

    @property
    def running(self) -> bool:
        with self._changed:
            return not self._ended

    def of(self, kind: str) -> list[Event]:
        """The events of one kind so far."""
        return [event for event in self.events if event["event"] == kind]

    def wait_for(self, predicate: Callable[[list[Event]], bool], timeout_s: float) -> list[Event]:
        """Wait until the events satisfy ``predicate`` and return them."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not predicate(self._events):
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0:
                    why = "it ended" if self._ended else f"{timeout_s} s have passed"
                    raise PeerFailed(f"the client did not do what was expected: {why}\n{self}")
                self._changed.wait(left_s)
            return list(self._events)

    def wait_for_event(self, kind: str, timeout_s: float) -> Event:
        """Wait for the first event of that kind and return it."""
        self.wait_for(lambda events: any(event["event"] == kind for event in events), timeout_s)
        return self.of(kind)[0]

    def tell(self, line: Mapping[str, Any]) -> None:
        """Write one JSON object to its standard input; some programs take commands there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()

    def finish(self, timeout_s: float) -> list[Event]:
        """Wait until the process ends by itself and return all its events."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as late:
            raise PeerFailed(f"the client still runs after {timeout_s} s\n{self}") from late
        self._reader.join()
        if self._judges_exit_code and code != 0:
            raise PeerFailed(f"the client ended with {code}\n{self}")
        return self.events

    def close(self) -> None:
        """Close its standard input and wait; a client that does not end in time is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        self._process.stdout.close()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __str__(self) -> str:
        errors = self._errors.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:]
        line = " ".join(self._line[-2:])
        events = "\n".join(map(str, self._events[-_TAIL_EVENTS:]))
        return f"{line}\n{len(self._events)} events, the last:\n{events}\nstandard error:\n{errors}"

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            # Native clients print banners of their own; an event is always one object.
            if line.startswith(b"{"):
                event = json.loads(line)
                with self._changed:
                    self._events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
