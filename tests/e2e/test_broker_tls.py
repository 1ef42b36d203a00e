"""A broker from the command line with TLS: told by settings, served on the port it always has."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, encode_request
from contrail.protocol.frames import FrameDecoder
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker
from tests.e2e.raw_client import PATIENCE_S, send_fields
from tests.e2e.test_wire_tls import make_certificate

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificates"
)


def call_with_tls(port: int, authority: Path, request: Request) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    decoder = FrameDecoder()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(encode_request(request))
        while True:
            for answer in list(decoder.feed(secured.recv(1 << 16))):
                return answer


@pytest.mark.proves("wire.server.tls-permissive")
def test_a_broker_with_a_certificate_takes_messages_with_and_without_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "tls", "broker")
    properties = {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}
    with LocalCluster(folder=tmp_path, in_children=True, properties=properties) as cluster:
        broker = Asker(cluster)
        assert broker.stored("both", b"in clear") == 0
        request = Request(RequestCode.SEND_MESSAGE_V2, 1, send_fields("both"), b"in secret")
        answer = call_with_tls(cluster.brokers[0].port, certificate, request)
        assert (answer.code, answer.fields["queueOffset"]) == (0, "1")
        assert broker.bodies("both") == [b"in clear", b"in secret"]
