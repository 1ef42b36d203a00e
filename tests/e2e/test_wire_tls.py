"""TLS and plain frames on one port, told apart by the first byte."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrail.errors import ConfigError
from contrail.protocol.command import Request, encode_request
from contrail.protocol.frames import FrameDecoder
from contrail.testing import eventually
from contrail.testing.loop import LoopThread
from contrail.wire.limits import Limits
from contrail.wire.server import Server
from contrail.wire.tls import TlsFiles, TlsMode
from tests.e2e.raw_client import PATIENCE_S, RawClient
from tests.fakes.transports import EchoService

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificates"
)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key, made anew."""
    folder.mkdir(exist_ok=True)
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "30", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
    subprocess.run([*command, "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_certificate(folder, name) for name in ("server", "next", "client")}


class TlsServer:
    """An echo server with TLS; ``files`` may change while it runs."""

    def __init__(self, mode: TlsMode, files: TlsFiles | None) -> None:
        self._thread = LoopThread("tls")
        self.server = Server(
            EchoService(),
            limits=Limits(tls_handshake_s=5, write_bytes_max=64 << 20),
            tls_mode=mode,
            tls_files=files,
        )
        self.port = self._thread.run(self.server.listen("127.0.0.1", 0))

    def sweep_at(self, later_s: float) -> None:
        async def sweep() -> None:
            self.server.now_s = self._thread.loop.time() + later_s
            self.server.sweep()

        self._thread.run(sweep())

    def close(self) -> None:
        self._thread.run(self.server.stop())
        self._thread.close()


Start = Callable[..., TlsServer]


@pytest.fixture
def start(tmp_path: Path, certificates: dict[str, tuple[Path, Path]]) -> Iterator[Start]:
    started: list[TlsServer] = []

    def make(mode: TlsMode, *, authority: Path | None = None) -> TlsServer:
        for source, target in zip(certificates["server"], ("cert.pem", "cert.key"), strict=True):
            shutil.copy(source, tmp_path / target)
        files = TlsFiles(tmp_path / "cert.pem", tmp_path / "cert.key", client_authority=authority)
        started.append(TlsServer(mode, files))
        return started[-1]

    yield make
    for server in started:
        server.close()


class TlsClient:
    """A connection with TLS; raises ``ssl.SSLError`` or ``OSError`` when it is refused."""

    def __init__(
        self, port: int, authority: Path, *, certificate: tuple[Path, Path] | None = None
    ) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        try:
            self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def echo(self, body: bytes) -> bytes:
        self.socket.sendall(encode_request(Request(34, 5, {}, body)))
        decoder = FrameDecoder()
        while True:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            for found in decoder.feed(data):
                return found.body  # type: ignore[union-attr]

    def certificate(self) -> bytes:
        found = self.socket.getpeercert(binary_form=True)
        assert found is not None
        return found

    def __enter__(self) -> TlsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.mark.proves("wire.server.tls-permissive")
def test_a_permissive_port_takes_both(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    server = start(TlsMode.PERMISSIVE)
    with (
        TlsClient(server.port, certificates["server"][0]) as secret,
        RawClient(server.port) as plain,
    ):
        assert secret.echo(b"hidden") == b"hidden"
        assert plain.call(34, {}, b"open").body == b"open"
        assert secret.socket.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.proves("wire.server.tls-permissive")
def test_frames_larger_than_a_record_travel_both_ways(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    server = start(TlsMode.PERMISSIVE)
    body = os.urandom(1 << 20) * 3
    with TlsClient(server.port, certificates["server"][0]) as client:
        assert client.echo(body) == body
        assert client.echo(b"after") == b"after"


@pytest.mark.proves("wire.server.tls-enforcing")
def test_an_enforcing_port_closes_plain_connections(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    server = start(TlsMode.ENFORCING)
    with RawClient(server.port) as plain:
        plain.send(encode_request(Request(34, 1, {})))
        plain.wait_closed()
    eventually(lambda: server.server.counts["closed_plaintext_refused"] == 1, "it is counted")
    with TlsClient(server.port, certificates["server"][0]) as secret:
        assert secret.echo(b"hidden") == b"hidden"


@pytest.mark.proves("wire.server.tls-disabled")
def test_a_port_without_tls_closes_handshakes(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    server = start(TlsMode.DISABLED)
    with pytest.raises(OSError):
        TlsClient(server.port, certificates["server"][0])
    eventually(lambda: server.server.counts["closed_tls_refused"] == 1, "it is counted")
    with RawClient(server.port) as plain:
        assert plain.call(34, {}, b"open").body == b"open"


def test_bytes_that_only_begin_like_a_handshake_close_their_connection(start: Start) -> None:
    server = start(TlsMode.PERMISSIVE)
    with RawClient(server.port) as client:
        client.send(b"\x16\x03\x01\x00\x05" + b"hello" * 20)
        client.wait_closed()
    eventually(lambda: server.server.counts["closed_tls"] == 1, "it is counted")


def test_a_broken_record_after_the_handshake_closes_the_connection(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    server = start(TlsMode.ENFORCING)
    with TlsClient(server.port, certificates["server"][0]) as client:
        assert client.echo(b"x") == b"x"
        beneath = socket.socket(fileno=os.dup(client.socket.fileno()))
        with beneath:
            beneath.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            eventually(lambda: server.server.counts["closed_tls"] == 1, "it is counted")


def test_a_handshake_must_be_over_in_five_seconds(start: Start) -> None:
    server = start(TlsMode.PERMISSIVE)
    with RawClient(server.port) as client:
        client.send(b"\x16\x03\x01\x02\x00\x01")
        eventually(
            lambda: any(peer.is_shaking_hands for peer in list(server.server.connections)),
            "the handshake begins",
        )
        server.sweep_at(4)
        assert server.server.counts["closed_tls_handshake_timeout"] == 0
        server.sweep_at(5.5)
        client.wait_closed()
    eventually(lambda: server.server.counts["closed_tls_handshake_timeout"] == 1, "it is counted")


@pytest.mark.proves("wire.server.certificates-reloaded")
def test_new_certificates_are_used_without_a_restart(
    start: Start, certificates: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    server = start(TlsMode.ENFORCING)
    files = server.server.tls_files
    assert files is not None and files.reload_if_changed() is False
    with TlsClient(server.port, certificates["server"][0]) as before:
        assert before.echo(b"1") == b"1"
        for source, target in zip(certificates["next"], ("cert.pem", "cert.key"), strict=True):
            shutil.copy(source, tmp_path / "new")
            os.replace(tmp_path / "new", tmp_path / target)
        assert files.reload_if_changed() is True
        with TlsClient(server.port, certificates["next"][0]) as after:
            assert after.echo(b"2") == b"2"
            assert after.certificate() != before.certificate()
        assert before.echo(b"3") == b"3"
    with pytest.raises(ssl.SSLError):
        TlsClient(server.port, certificates["server"][0])


@pytest.mark.proves("wire.server.certificates-reloaded")
def test_a_bad_new_certificate_keeps_the_old_one_in_use(
    start: Start, certificates: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    server = start(TlsMode.ENFORCING)
    files = server.server.tls_files
    assert files is not None
    (tmp_path / "new").write_text("no certificate")
    os.replace(tmp_path / "new", tmp_path / "cert.pem")
    with pytest.raises(ConfigError, match="cannot be used"):
        files.reload_if_changed()
    with TlsClient(server.port, certificates["server"][0]) as client:
        assert client.echo(b"x") == b"x"


def test_with_an_authority_only_clients_with_a_certificate_are_taken(
    start: Start, certificates: dict[str, tuple[Path, Path]]
) -> None:
    authority = certificates["client"][0]
    server = start(TlsMode.ENFORCING, authority=authority)
    trusted = certificates["server"][0]
    with TlsClient(server.port, trusted, certificate=certificates["client"]) as known:
        assert known.echo(b"x") == b"x"
    for stranger in (None, certificates["next"]):
        # With TLS 1.3 a client learns of the refusal with the first bytes that it reads.
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            TlsClient(server.port, trusted, certificate=stranger) as client,
        ):
            client.echo(b"x")
    eventually(lambda: server.server.counts["closed_tls"] == 2, "both are counted")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        TlsFiles(tmp_path / "missing.pem", tmp_path / "missing.key")
