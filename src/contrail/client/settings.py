"""The settings that all producers and consumers of a process share per cluster."""

from __future__ import annotations

import os
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Self

from contrail.client.credentials import credentials_of
from contrail.errors import ConfigError
from contrail.model.shown import shown
from contrail.protocol.signing import Credentials, CredentialSource
from contrail.wire.addresses import split_address

NAMESRV_VARIABLE = "NAMESRV_ADDR"
DEFAULT_INSTANCE = "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """One cluster as this process reaches it; equal settings share one client instance."""

    namesrv: tuple[str, ...]
    instance_name: str = DEFAULT_INSTANCE
    unit_name: str | None = None
    client_ip: str | None = None
    # False, True (the machine's trusted certificates) or a context of your own.
    tls: bool | ssl.SSLContext = False
    # The signer of all requests; by default that of the environment, see ``client.credentials``.
    credentials: CredentialSource | None = None
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    api_timeout_ms: int = 3_000

    def __post_init__(self) -> None:
        if not isinstance(self.tls, bool | ssl.SSLContext):
            raise ConfigError(f"tls={shown(self.tls)}: give True, False or an ssl.SSLContext")
        if not (self.credentials is None or callable(self.credentials)) and not isinstance(
            self.credentials, Credentials
        ):
            raise ConfigError(
                "credentials= takes Credentials(access_key, secret_key), a function that returns "
                "them, or None"
            )
        for name in ("unit_name", "client_ip"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name}={shown(value)}: give a str, or None")
        check_value("instance_name", self.instance_name, str)
        for name in _INTERVALS:
            check_value(name, getattr(self, name), int, least=1)

    @classmethod
    def of(cls, namesrv: str | Sequence[str] | None = None, **given: Any) -> Self:
        """Settings from a user's text: ``"a:9876;b:9876"``, a list, or ``NAMESRV_ADDR``.

        Raises:
            ConfigError: no address, an invalid address (the message says how to write it), or an
                unknown setting.
        """
        check_names(given, CLIENT_SETTINGS)
        if given.get("credentials") is None:
            given["credentials"] = credentials_of(os.environ)
        return cls(namesrv=_addresses(namesrv), **given)

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


CLIENT_SETTINGS = frozenset(field.name for field in fields(ClientSettings)) - {"namesrv"}
_INTERVALS = ("poll_name_server_interval_ms", "heartbeat_broker_interval_ms", "api_timeout_ms")
_KINDS = {int: "a whole number", bool: "True or False", str: "a str"}


def check_names(given: Collection[str], known: Collection[str]) -> None:
    """Raises ``ConfigError`` for a setting that is not in ``known``; it names the nearest."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            fix = f"did you mean {near[0]}=?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{name}= is no setting: {fix}")


def check_value(name: str, value: object, kind: type, *, least: int = 0) -> None:
    """Raises ``ConfigError`` for a value of another kind, and for a number below ``least``."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{name}={shown(value)}: give {_KINDS[kind]}")
    if isinstance(value, int) and value < least:
        raise ConfigError(f"{name}={value}: it must be {least} or more")


def _addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    given = namesrv if namesrv is not None else os.environ.get(NAMESRV_VARIABLE, "")
    pieces = given.replace(",", ";").split(";") if isinstance(given, str) else given
    if not isinstance(pieces, Sequence) or not all(isinstance(piece, str) for piece in pieces):
        raise ConfigError(
            f"namesrv={shown(namesrv)}: give 'host:9876', or a list of such addresses"
        )
    addresses = tuple(dict.fromkeys(piece.strip() for piece in pieces if piece.strip()))
    if not addresses:
        raise ConfigError(
            f"no NameServer is given: pass namesrv='host:9876' or set {NAMESRV_VARIABLE}"
        )
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(f"namesrv: {error}") from error
    return addresses
