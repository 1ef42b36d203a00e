"""TLS on the port that also takes plain frames: told apart by the first byte.

The session works on bytes alone, because the first of them have been read before anybody knows
that they are a handshake, and event loops cannot take bytes back.
"""

from __future__ import annotations

import ssl
from enum import StrEnum
from pathlib import Path

from contrail.errors import ConfigError, RemoteProtocolError

# The first byte of a handshake. As a frame's first byte it would mean more than 16 MiB.
HANDSHAKE_BYTE = 0x16
_READ_BYTES = 256 << 10
_CERTIFICATE_BEGIN = "-----BEGIN CERTIFICATE-----"
_CERTIFICATE_END = "-----END CERTIFICATE-----"


class TlsMode(StrEnum):
    """How a server treats a first byte that begins a handshake, and one that does not."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class TlsFiles:
    """The certificate and key files, read again when they change."""

    def __init__(self, certificate: Path, key: Path, *, client_authority: Path | None = None):
        self._certificate = certificate
        self._key = key
        self._client_authority = client_authority
        self._stamps = self._read_stamps()
        self.context = self._load()

    def reload_if_changed(self) -> bool:
        """Use new files for the connections to come; a bad new file keeps the old context.

        Raises:
            ConfigError: the files changed and cannot be used.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.context = self._load()
        return True

    def certificate_der(self) -> bytes:
        """The server's own certificate in binary form, as peers see it."""
        text = self._certificate.read_text(encoding="ascii", errors="replace")
        begin, end = text.find(_CERTIFICATE_BEGIN), text.find(_CERTIFICATE_END)
        if begin < 0 or end < 0:
            raise ConfigError(f"{self._certificate} holds no certificate in PEM form")
        return ssl.PEM_cert_to_DER_cert(text[begin : end + len(_CERTIFICATE_END)])

    def _read_stamps(self) -> list[tuple[int, int]]:
        paths = [self._certificate, self._key, self._client_authority]
        try:
            stats = [path.stat() for path in paths if path is not None]
        except OSError as error:
            raise ConfigError(f"the TLS files cannot be read: {error}") from error
        return [(stat.st_mtime_ns, stat.st_ino) for stat in stats]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_authority is not None:
                context.load_verify_locations(self._client_authority)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {self._certificate} with key {self._key} cannot be used: {error}"
            ) from error
        return context


class TlsSession:
    """One connection's encryption: network bytes in, plain bytes out, and the reverse."""

    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self.is_established = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the network and return the plain bytes they held.

        Raises:
            RemoteProtocolError: the handshake failed, or a record is broken.
        """
        self._incoming.write(data)
        try:
            if not self.is_established:
                self._tls.do_handshake()
                self.is_established = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise RemoteProtocolError("tls", f"TLS failed: {error}") from error

    def _read(self) -> bytes:
        pieces = []
        try:
            while piece := self._tls.read(_READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def encrypt(self, data: bytes) -> bytes:
        """The network bytes for plain ones; a handshake must be over."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def to_send(self) -> bytes:
        """The bytes that the session itself wants to send: handshake messages and alerts."""
        return self._outgoing.read()
