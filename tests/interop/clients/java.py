"""Apache's Java clients, driven by ``java/ClientDriver.java``."""

from __future__ import annotations

from pathlib import Path

from tests.interop.clients.driver import Driver
from tests.interop.peers import java_peer

_HEAP = "-Xmx128m"


class JavaDriver(Driver):
    """One pinned version of ``rocketmq-client``."""

    def __init__(self, pin: str, homes: Path) -> None:
        super().__init__(homes)
        self._peer = java_peer(pin)

    def command_line(self, home: Path) -> list[str]:
        return self._peer.command("ClientDriver", [], home=home, ours=True, heap=_HEAP)


def java_5(homes: Path) -> Driver:
    return JavaDriver("java-client-5", homes)


def java_4(homes: Path) -> Driver:
    return JavaDriver("java-client-4", homes)
