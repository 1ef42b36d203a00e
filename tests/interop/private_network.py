"""Networks that only this machine reaches, for servers that listen on every address they have.

RocketMQ 4.9 has no setting for the address it binds to, and the HA port of 5.x has none either.
Such servers run in network namespaces of their own. Each namespace is a node with one cable to a
bridge; the bridge has an address too, so that the test reaches every node and nodes reach each
other. A cable can be cut, slowed down and flapped, seen from the bridge: the node notices nothing
but silence. Namespaces may be made inside another one (``ip netns exec``).
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from types import TracebackType
from typing import Self

from tests.interop.peers import PeerFailed, unavailable

_INSTALL = "apt-get install --no-install-recommends iproute2"
_TIMEOUT_S = 60
# Of the block for benchmarks of network devices, 198.18.0.0/15: nobody routes it.
_SUBNET_BYTES = 32
NODE_COUNT_MAX = _SUBNET_BYTES - 3
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
# A local address of no device: frames to it are seen by all nodes and taken by none.
_NOBODY = "02:00:00:00:00:01"


class Node:
    """One namespace, its address and its cable to the bridge."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.address = address
        self.namespace = namespace
        self.bridge_end, self.own_end = f"{namespace}h", f"{namespace}n"

    def command(self, command: list[str]) -> list[str]:
        """The same command, run inside. ``ip`` becomes the command: the process id is its own."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def enter(self) -> None:
        """Have the calling thread, and no other, make its connections inside from now on."""
        with open(f"/run/netns/{self.namespace}") as opened:
            if _LIBC.setns(opened.fileno(), _CLONE_NEWNET):
                problem = os.strerror(ctypes.get_errno())
                raise PeerFailed(f"the namespace {self.namespace} cannot be entered: {problem}")

    def cut(self) -> None:
        """Let no frame pass in either direction until ``mend``; nobody is told."""
        _ip("link", "set", self.bridge_end, "down")

    def mend(self) -> None:
        """Let frames pass again."""
        _ip("link", "set", self.bridge_end, "up")

    def lose_to(self, *others: Node) -> None:
        """Let no frame of this node reach the others until ``reach``; theirs arrive here."""
        for other in others:
            _ip(*self._neighbour("replace", other), "lladdr", _NOBODY, "nud", "permanent")

    def reach(self, *others: Node) -> None:
        """End ``lose_to``."""
        for other in others:
            _ip(*self._neighbour("del", other))

    def _neighbour(self, verb: str, other: Node) -> list[str]:
        return ["-n", self.namespace, "neigh", verb, other.address, "dev", self.own_end]

    def flap(self, times: int) -> None:
        """Cut and mend the cable so many times, as fast as it goes."""
        for _ in range(times):
            self.cut()
            self.mend()

    def slow_down(self, *, kbit_per_s: int) -> None:
        """Let the node receive no faster than this; skips where ``tc`` cannot do it."""
        if shutil.which("tc") is None:
            unavailable("the command tc, which slows links down, is missing", _INSTALL)
        words = ["qdisc", "replace", "dev", self.bridge_end, "root", "tbf"]
        words += ["rate", f"{kbit_per_s}kbit", "burst", "16kb", "latency", "200ms"]
        if (problem := _problem("tc", *words)) is not None:
            unavailable(f"the kernel slows no link down: {problem}", _INSTALL)

    def speed_up(self) -> None:
        """Take the limit of ``slow_down`` away."""
        _run("tc", "qdisc", "del", "dev", self.bridge_end, "root")


class PrivateNetwork:
    """Nodes on one bridge; a context manager, or ``open`` and ``close``. Needs root."""

    def __init__(self, *names: str) -> None:
        assert 0 < len(names) <= NODE_COUNT_MAX
        choose = random.SystemRandom()
        block = f"198.{choose.choice((18, 19))}.{choose.randrange(256)}"
        first = _SUBNET_BYTES * choose.randrange(256 // _SUBNET_BYTES)
        word = f"ct{choose.randrange(1 << 24):06x}"
        self._bridge = f"{word}b"
        # The test's own address among the nodes.
        self.address = f"{block}.{first + 1}"
        self.subnet = f"{block}.{first}/27"
        self.nodes = {
            name: Node(name, f"{word}{number:02}", f"{block}.{first + 2 + number}")
            for number, name in enumerate(names)
        }
        self._is_open = False

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Make the bridge, the namespaces and their cables; once, however often it is asked."""
        if self._is_open:
            return
        if shutil.which("ip") is None:
            unavailable("the command ip, which makes network namespaces, is missing", _INSTALL)
        if os.geteuid() != 0:
            unavailable("making a network namespace needs root", "run the tests as root")
        self._is_open = True
        try:
            self._lay_out()
        except BaseException:
            self.close()
            raise

    def _lay_out(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/27", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node in self.nodes.values():
            inside, own_end, bridge_end = node.namespace, node.own_end, node.bridge_end
            _ip("netns", "add", inside)
            _ip("link", "add", bridge_end, "type", "veth", "peer", "name", own_end, "netns", inside)
            _ip("link", "set", bridge_end, "master", self._bridge, "up")
            _ip("-n", inside, "addr", "add", f"{node.address}/27", "dev", own_end)
            _ip("-n", inside, "link", "set", own_end, "up")
            _ip("-n", inside, "link", "set", "lo", "up")

    def close(self) -> None:
        """Take everything away; processes inside keep a namespace alive, not its cable."""
        if not self._is_open:
            return
        self._is_open = False
        for node in self.nodes.values():
            # The cable goes with its end.
            _problem("ip", "link", "del", node.bridge_end)
            _problem("ip", "netns", "del", node.namespace)
        _problem("ip", "link", "del", self._bridge)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    if (problem := _problem(*command)) is not None:
        raise PeerFailed(problem)


def _problem(*command: str) -> str | None:
    """Run a command; what it complained of, if it failed."""
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    return f"{' '.join(command)}: {done.stderr.strip()}" if done.returncode != 0 else None
