"""Where a client's credentials come from: arguments, the environment, or a file of their owner.

The file has lines ``accessKey=…`` and ``secretKey=…`` (and ``securityToken=…``), or the same with a
colon as in RocketMQ's ``tools.yml``. It is read again when it changes.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contrail.errors import ConfigError
from contrail.protocol.signing import Credentials, CredentialSource

ACCESS_KEY_VARIABLE = "CONTRAIL_ACCESS_KEY"
SECRET_KEY_VARIABLE = "CONTRAIL_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "CONTRAIL_SECURITY_TOKEN"
FILE_VARIABLE = "CONTRAIL_CREDENTIALS_FILE"

_FILE_BYTES_MAX = 64 << 10
_NAMES = {"accessKey": "access_key", "secretKey": "secret_key", "securityToken": "security_token"}


@dataclass(frozen=True, slots=True)
class CredentialsFile:
    """The credentials of a file, as they are now; ``credentials=CredentialsFile(path)``."""

    path: Path
    # The file's facts when it was read, and what it held.
    _read: dict[tuple[int, int, int], Credentials] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self) -> Credentials:
        """Raises ``ConfigError`` for a file that is missing, unfit or open to others."""
        try:
            facts = self.path.stat()
            mark = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            known = self._read.get(mark)
            if known is None:
                known = _parse(self.path, facts.st_mode)
                self._read.clear()
                self._read[mark] = known
            return known
        except OSError as error:
            raise ConfigError(
                f"the credentials file {self.path} cannot be read: {error.strerror}"
            ) from error


def _parse(path: Path, mode: int) -> Credentials:
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"the credentials file {path} is refused: others than its owner may use it (mode "
            f"{stat.S_IMODE(mode):04o}); say `chmod 600 {path}`"
        )
    found: dict[str, str] = {}
    for line in path.read_bytes()[:_FILE_BYTES_MAX].decode("utf-8", "replace").splitlines():
        name, mark, value = line.partition("=" if "=" in line.partition(":")[0] else ":")
        if mark and name.strip() in _NAMES:
            found[_NAMES[name.strip()]] = value.strip().strip("\"'")
    if not found.get("access_key") or not found.get("secret_key"):
        raise ConfigError(f"the credentials file {path} needs lines accessKey=… and secretKey=…")
    return Credentials(**found)


def credentials_of(environment: Mapping[str, str]) -> CredentialSource | None:
    """The credentials that an environment names; None if it names none.

    Raises:
        ConfigError: it names half of them, or both kinds.
    """
    key, secret = environment.get(ACCESS_KEY_VARIABLE), environment.get(SECRET_KEY_VARIABLE)
    path = environment.get(FILE_VARIABLE)
    if path and (key or secret):
        raise ConfigError(f"{FILE_VARIABLE} and {ACCESS_KEY_VARIABLE}: set one of the two")
    if path:
        return CredentialsFile(Path(path))
    if not key and not secret:
        return None
    if not key or not secret:
        raise ConfigError(f"set both {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}")
    return Credentials(key, secret, environment.get(SECURITY_TOKEN_VARIABLE))
