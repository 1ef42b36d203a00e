"""What every producer and consumer of a process share per cluster."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from contrail.errors import ConfigError
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
    poll_name_server_interval_ms: int = 30_000
    heartbeat_broker_interval_ms: int = 30_000
    api_timeout_ms: int = 3_000

    @classmethod
    def of(cls, namesrv: str | Sequence[str] | None = None, **given: Any) -> Self:
        """Settings from what a user writes: ``"a:9876;b:9876"``, a list, or ``NAMESRV_ADDR``.

        Raises:
            ConfigError: no address, or one that is none; the message says how to write it.
        """
        return cls(namesrv=_addresses(namesrv), **given)

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


def _addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    given = namesrv if namesrv is not None else os.environ.get(NAMESRV_VARIABLE, "")
    pieces = given.replace(",", ";").split(";") if isinstance(given, str) else list(given)
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
