"""A network that only this machine reaches, for servers that can only listen on every address.

RocketMQ 4.9 has no setting for the address it binds to. Its servers run in a network namespace of
their own, with one cable to the host; what they bind to is reached over that cable alone.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess

from tests.interop.peers import PeerFailed, unavailable

_INSTALL = "apt-get install --no-install-recommends iproute2"
_TIMEOUT_S = 60


class PrivateNetwork:
    """One namespace and the cable to it; ``open`` and ``close``. Needs root."""

    def __init__(self) -> None:
        choose = random.SystemRandom()
        third, fourth = choose.randrange(256), 4 * choose.randrange(64)
        name = f"ct{choose.randrange(1 << 24):06x}"
        self._namespace = name
        self._host_end, self._far_end = f"{name}h", f"{name}n"
        # Of the block for benchmarks of network devices: nobody routes it.
        self._host_address = f"198.19.{third}.{fourth + 1}"
        self.address = f"198.19.{third}.{fourth + 2}"
        self._is_open = False

    def open(self) -> None:
        if shutil.which("ip") is None:
            unavailable("the command ip, which makes network namespaces, is missing", _INSTALL)
        if os.geteuid() != 0:
            unavailable("making a network namespace needs root", "run the tests as root")
        self._is_open = True
        namespace, far_end, host_end = self._namespace, self._far_end, self._host_end
        _ip("netns", "add", namespace)
        _ip("link", "add", host_end, "type", "veth", "peer", "name", far_end, "netns", namespace)
        _ip("addr", "add", f"{self._host_address}/30", "dev", host_end)
        _ip("link", "set", host_end, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address}/30", "dev", far_end)
        _ip("-n", namespace, "link", "set", far_end, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")

    def command(self, command: list[str]) -> list[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self._namespace, *command]

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            # The cable goes with its end.
            _ip("netns", "del", self._namespace)


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise PeerFailed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
