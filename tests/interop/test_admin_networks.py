"""Administration from another host: from the networks that a setting names, and no others."""

from __future__ import annotations

import socket
import threading

import pytest

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.protocol.frames import FrameDecoder
from contrail.protocol.signing import Credentials, signed_fields
from contrail.testing import LocalCluster
from contrail.testing.places import Place
from tests.e2e.access_setup import ACCESS, ADMIN
from tests.interop.private_network import Node, PrivateNetwork


def asked_from(node: Node, address: str, port: int, credentials: Credentials) -> ReceivedResponse:
    """The answer to an administrator's question, which a thread asks from the node."""
    answers: list[ReceivedResponse] = []

    def ask() -> None:
        node.enter()
        fields = signed_fields({}, b"", credentials)
        with socket.create_connection((address, port), 10) as connection:
            connection.sendall(encode_request(Request(RequestCode.AUTH_LIST_USER, 1, fields, b"")))
            decoder, frames = FrameDecoder(), []
            while not frames:
                frames = decoder.feed(connection.recv(65536))
        answers.extend(one for one in frames if isinstance(one, ReceivedResponse))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    (answer,) = answers
    return answer


@pytest.mark.proves("access.settings.admin-networks")
def test_administration_is_taken_from_the_networks_that_the_setting_names() -> None:
    with PrivateNetwork("desk", "street") as network:
        desk, street = network["desk"], network["street"]
        settings = {
            **ACCESS,
            "contrailAdminNetworks": f"{desk.address}/32",
            "contrailTrustedNetworks": network.subnet,
        }
        cluster = LocalCluster(properties=settings)
        cluster.brokers[0].put_at(Place(host=network.address))
        with cluster:
            port = cluster.brokers[0].port
            told = asked_from(desk, network.address, port, ADMIN)
            assert told.code == 0 and b"root" in told.body
            wrong = Credentials(ADMIN.access_key, "guessed")
            assert asked_from(desk, network.address, port, wrong).code == ResponseCode.NO_PERMISSION
            refused = asked_from(street, network.address, port, ADMIN)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "administration" in (refused.remark or "")
