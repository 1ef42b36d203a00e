"""Apache's ``mqadmin`` as one long-lived process: a command in, everything it printed out."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.interop.peers import PeerFailed, java_peer, own_environment

_HEAP = "-Xmx256m"
_COMMAND_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} (WARN|ERROR) ")


class Sent(NamedTuple):
    """What the producer was told about one message of its."""

    key: str
    unique_key: str
    message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    status: str


class MqAdmin:
    """Run commands against a cluster; the words are those of the command line after ``mqadmin``."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self._namesrv = namesrv
        self._errors = folder / "errors.txt"
        folder.mkdir(parents=True, exist_ok=True)
        command = java_peer("apache-5-server").command(
            "AdminShell", [], home=folder, ours=True, heap=_HEAP
        )
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=own_environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, name: str, *words: str) -> str:
        """Run one command of ``mqadmin`` and return all it printed."""
        return self._exchange([name, "-n", self._namesrv, *words])

    def rows(self, name: str, *words: str) -> list[list[str]]:
        """The lines a command printed, as words, without its heading (``#...``) and empty lines."""
        lines = self.run(name, *words).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def hold_producer(self, group: str, topic: str, keys: list[str]) -> list[Sent]:
        """Send a message of each key (tag ``TagA``, body ``body-<key>``) and stay connected."""
        printed = self._exchange(["!producer", self._namesrv, group, topic, *keys])
        return [_sent(line) for line in printed.splitlines() if line.count("\t") == 6]

    def hold_consumer(self, group: str, topic: str, count: int) -> str:
        """Bring a push consumer online; return its client id once it has taken ``count``."""
        printed = self._exchange(["!consumer", self._namesrv, group, topic, str(count)]).strip()
        if len(printed.splitlines()) != 1:
            raise PeerFailed(f"the consumer of {topic} said:\n{printed}")
        return printed

    def commit_offsets(self) -> None:
        """Let the consumers tell the brokers how far they are: else they do after 10 s."""
        self._exchange(["!commit"])

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _exchange(self, words: list[str]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        # A command that hangs is ended with its process, which ends the read below.
        guard = threading.Timer(_COMMAND_TIMEOUT_S, self._process.kill)
        guard.start()
        try:
            self._process.stdin.write("\t".join(words).encode() + b"\n")
            self._process.stdin.flush()
            size = self._process.stdout.readline()
            if not size.strip():
                raise PeerFailed(f"mqadmin ended in {words}:\n{self._errors.read_text()[-4000:]}")
            return _without_log(self._process.stdout.read(int(size)).decode())
        finally:
            guard.cancel()


def _without_log(printed: str) -> str:
    lines = printed.splitlines(keepends=True)
    return "".join(line for line in lines if not _LOG_LINE.match(line))


def _sent(line: str) -> Sent:
    key, unique_key, message_id, broker_name, queue_id, queue_offset, status = line.split("\t")
    return Sent(key, unique_key, message_id, broker_name, int(queue_id), int(queue_offset), status)
