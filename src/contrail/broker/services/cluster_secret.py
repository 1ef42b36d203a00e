"""The cluster secret: one file, the same on every broker of a cluster, readable by its owner alone.

The file is one line of hexadecimal digits, so that it can be copied by hand. Two brokers whose
secrets differ tell their operators by fingerprint, which gives nothing of the secret away.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from contrail.errors import ConfigError

SECRET_BYTES = 32
_OWNER_ONLY = 0o600
_FILE_BYTES_MAX = 1024


def read_cluster_secret(path: Path, setting_name: str = "contrailClusterSecretFile") -> bytes:
    """The secret of a file, which ``setting_name`` names.

    Raises:
        ConfigError: the file is missing, holds no secret, or others may read it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_bytes()[: _FILE_BYTES_MAX + 1].decode("ascii").strip()
        secret = bytes.fromhex(text)
    except OSError as error:
        raise ConfigError(
            f"{setting_name}={path} cannot be read ({error.strerror}): "
            "`contrail replication secret` makes one"
        ) from error
    except ValueError:
        raise _refusal(setting_name, path, "it is no line of hexadecimal digits") from None
    if mode & 0o077:
        raise ConfigError(
            f"{setting_name}={path} is refused: others than its owner may use it (mode "
            f"{mode:04o}); say `chmod 600 {path}`"
        )
    if len(secret) < SECRET_BYTES:
        raise _refusal(
            setting_name, path, f"its secret has {len(secret)} bytes, and {SECRET_BYTES} are needed"
        )
    return secret


def _refusal(setting_name: str, path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{setting_name}={path} is refused: {reason}; `contrail replication secret` makes one"
    )


def write_cluster_secret(path: Path, secret: bytes) -> None:
    """Write a new file for its owner alone; one that exists is left as it is.

    Raises:
        ConfigError: the file exists already, or it cannot be written.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path, flags, _OWNER_ONLY)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists and is left as it is: brokers that use it would no longer know each "
            "other; choose another path"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(fd, "wb") as file:
        file.write(secret.hex().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
