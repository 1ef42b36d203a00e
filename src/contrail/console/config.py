"""The settings of a console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contrail.errors import ConfigError

PORT = 9870
SAMPLE_INTERVAL_S = 10.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """``folder`` keeps the accounts and the audit log."""

    folder: Path
    listen_address: str = "127.0.0.1"
    port: int = PORT
    # The address that browsers see, if it is another one: https://console.example.org
    public_url: str | None = None
    behind_proxy: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    sample_interval_s: float = SAMPLE_INTERVAL_S
    # Paths of JSON bodies that are hidden from all but admins: see state/masks.py.
    masks: tuple[tuple[str, ...], ...] = ()

    def check(self) -> None:
        """Raises ``ConfigError`` for an address that anybody could listen in on."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key: give both, or none")
        is_open = self.listen_address not in _LOOPBACK
        if is_open and not (self.has_tls or self.behind_proxy):
            raise ConfigError(
                f"--listen {self.listen_address}: passwords would cross the network in the clear. "
                "Give --tls-cert and --tls-key, or --behind-proxy if a proxy in front speaks TLS"
            )
        if is_open and self.public_url is None:
            raise ConfigError(
                f"--listen {self.listen_address}: say by --public-url which address browsers see; "
                "requests for any other host are refused"
            )
        if self.public_url is not None and not self.public_url.startswith(("http://", "https://")):
            raise ConfigError(f"--public-url {self.public_url!r} is no URL: https://HOST[:PORT]")

    @property
    def has_tls(self) -> bool:
        return self.tls_certificate is not None

    @property
    def is_secure(self) -> bool:
        """Whether browsers speak TLS, here or at the proxy."""
        if self.public_url is not None:
            return self.public_url.startswith("https://")
        return self.has_tls

    def origins(self, port: int) -> frozenset[str]:
        """The origins that the console answers to."""
        scheme = "https" if self.has_tls else "http"
        local = {f"{scheme}://{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
        return frozenset(local | ({self.public_url.rstrip("/")} if self.public_url else set()))
