"""Settings that every server has: TLS, and the warnings about names that mean nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from contrail.errors import ConfigError
from contrail.wire.tls import TlsFiles, TlsMode

TLS_MODE = "tls.server.mode"
TLS_CERTIFICATE = "tls.server.certPath"
TLS_KEY = "tls.server.keyPath"
TLS_CLIENT_AUTHORITY = "tls.server.trustCertPath"
TLS_NAMES = frozenset({TLS_MODE, TLS_CERTIFICATE, TLS_KEY, TLS_CLIENT_AUTHORITY})

LISTEN_ADDRESS = "listenAddress"
_BIND_ADDRESS = "bindAddress"

# By name: the values, in lower case, that are refused, and why.
Refusals = Mapping[str, tuple[frozenset[str], str]]


def read_tls(properties: Mapping[str, str]) -> tuple[TlsMode, TlsFiles | None]:
    """Without a certificate TLS is off; with one it is permissive unless said otherwise.

    Raises:
        ConfigError: the mode is unknown, or a file is missing or unusable.
    """
    certificate = properties.get(TLS_CERTIFICATE, "")
    text = properties.get(TLS_MODE, "permissive" if certificate else "disabled").strip().lower()
    if text not in list(TlsMode):
        raise ConfigError(f"{TLS_MODE}={text!r} must be one of {', '.join(TlsMode)}")
    mode = TlsMode(text)
    if mode is TlsMode.DISABLED:
        return mode, None
    key = properties.get(TLS_KEY, "")
    if not certificate or not key:
        raise ConfigError(f"{TLS_MODE}={text} needs {TLS_CERTIFICATE} and {TLS_KEY}")
    authority = properties.get(TLS_CLIENT_AUTHORITY)
    files = TlsFiles(
        Path(certificate), Path(key), client_authority=Path(authority) if authority else None
    )
    return mode, files


def with_listen_address(properties: Mapping[str, str]) -> dict[str, str]:
    """RocketMQ's files say ``bindAddress``; ``listenAddress`` wins where both stand."""
    found = dict(properties)
    bind_address = found.pop(_BIND_ADDRESS, None)
    if bind_address is not None:
        found.setdefault(LISTEN_ADDRESS, bind_address)
    return found


def require_allowed(properties: Mapping[str, str], refusals: Refusals) -> None:
    """Refuse properties that ask for a protection which this server does not have.

    Raises:
        ConfigError: a property asks for something that is not there.
    """
    for name, text in properties.items():
        values, reason = refusals.get(name, (frozenset(), ""))
        if text.strip().lower() in values:
            raise ConfigError(f"{name}={text} is refused: {reason}")


def unknown_notes(properties: Mapping[str, str], known: frozenset[str]) -> list[str]:
    """A line for each name that has no effect here."""
    notes = []
    for name in properties:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        notes.append(f"{name} is unknown here and has no effect{hint}")
    return notes
