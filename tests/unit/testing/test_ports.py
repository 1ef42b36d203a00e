"""Ports for servers under test: those that somebody listens on are left out, no others."""

from __future__ import annotations

import socket

from contrail.testing import cluster


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not cluster._is_free(listener.getsockname()[1])


def test_a_port_whose_connections_have_just_ended_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        # The side that closes first keeps the port for a minute.
        accepted.close()
        client.close()
    with socket.socket() as probe:
        # Without this the test would prove nothing.
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert cluster._is_free(port)
