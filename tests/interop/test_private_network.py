"""Links between namespaces of a test can be cut, mended, flapped and slowed down."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from contrail.testing import eventually
from tests.interop.private_network import Node, PrivateNetwork

PORT = 20_001
KBIT_PER_S = 800
# Says how long its peer took to send everything; the peer may be in another namespace.
SERVER = """
import socket, sys, time
server = socket.create_server(("", int(sys.argv[1])))
while True:
    peer, _ = server.accept()
    begun = time.monotonic()
    while peer.recv(65536):
        pass
    peer.sendall(b"%f" % (time.monotonic() - begun))
    peer.close()
"""
CLIENT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


@contextmanager
def served(node: Node) -> Iterator[None]:
    """A server on every address of the node's namespace."""
    server = subprocess.Popen(node.command([sys.executable, "-c", SERVER, str(PORT)]))
    try:
        eventually(lambda: reaches(node), "the server in the namespace")
        yield
    finally:
        server.kill()
        server.wait()


def reaches(node: Node, timeout_s: float = 1.0) -> bool:
    try:
        socket.create_connection((node.address, PORT), timeout_s).close()
    except OSError:
        return False
    return True


def seconds_to_send(node: Node, byte_count: int) -> float:
    with socket.create_connection((node.address, PORT), 60) as connection:
        connection.sendall(bytes(byte_count))
        connection.shutdown(socket.SHUT_WR)
        return float(connection.recv(64))


def test_nodes_reach_each_other_and_a_cut_link_carries_nothing() -> None:
    with PrivateNetwork("one", "other") as network, served(network["one"]):
        one, other = network["one"], network["other"]
        reach = other.command([sys.executable, "-c", CLIENT, one.address, str(PORT)])
        assert subprocess.run(reach, check=False).returncode == 0
        one.cut()
        assert not reaches(one)
        one.mend()
        eventually(lambda: reaches(one), "the mended link")
        one.flap(3)
        eventually(lambda: reaches(one), "the link after it flapped")


def test_a_slow_link_takes_as_long_as_its_rate_says() -> None:
    byte_count = 200_000
    with PrivateNetwork("one") as network, served(network["one"]):
        node = network["one"]
        node.slow_down(kbit_per_s=KBIT_PER_S)
        slow_s = seconds_to_send(node, byte_count)
        node.speed_up()
        seconds_to_send(node, byte_count)
    # Under any load of this machine no link is faster than its rate; a bucket goes immediately.
    assert slow_s > 0.5 * byte_count * 8 / (1000 * KBIT_PER_S)
