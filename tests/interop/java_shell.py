"""One of our Java programs as a long-lived process: words in, everything it has to say out."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.peers import PeerFailed, java_peer, own_environment

_HEAP = "-Xmx256m"
_COMMAND_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0


class JavaShell:
    """Asks a program that answers each line with a number of bytes and then these bytes."""

    def __init__(
        self,
        program: str,
        arguments: list[str],
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
    ) -> None:
        """``environment`` is added to the program's own."""
        self.folder = folder
        self._errors = folder / "errors.txt"
        folder.mkdir(parents=True, exist_ok=True)
        peer = java_peer("apache-5-server")
        command = peer.command(program, arguments, home=folder, ours=True, heap=_HEAP)
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=own_environment(folder) | (environment or {}),
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

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def exchange(self, words: list[str]) -> str:
        """Ask with these words, none of which has a tab; return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # A question that hangs is ended with its process, which ends the read below.
        guard = threading.Timer(_COMMAND_TIMEOUT_S, self._process.kill)
        guard.start()
        try:
            self._process.stdin.write("\t".join(words).encode() + b"\n")
            self._process.stdin.flush()
            size = self._process.stdout.readline()
            if not size.strip():
                errors = self._errors.read_text()[-4000:]
                raise PeerFailed(f"the program ended in {words}:\n{errors}")
            return self._process.stdout.read(int(size)).decode()
        finally:
            guard.cancel()
