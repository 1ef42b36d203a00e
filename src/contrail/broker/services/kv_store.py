"""The folder in which some brokers of Apache's keep popped messages: it cannot be read here."""

from __future__ import annotations

from pathlib import Path

from contrail.errors import ConfigError
from contrail.runtime.files import FileSystem

FOLDER = "kvStore"


def require_no_kv_store(files: FileSystem, root: Path) -> None:
    """Refuse a store folder whose popped messages would be forgotten.

    Raises:
        ConfigError: there is a ``kvStore/`` with something in it.
    """
    folder = root / FOLDER
    if files.exists(folder) and files.entries(folder):
        raise ConfigError(
            f"{folder} holds popped messages of a broker with popConsumerKVServiceInit=true, which "
            "only RocketMQ reads: start that broker once more, send it POP_ROLLBACK (request "
            "200056), which moves them into the log, stop it and remove the folder"
        )
