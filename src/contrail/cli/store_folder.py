"""Where the store is, if the folder around it was named."""

from __future__ import annotations

from pathlib import Path

# Entries that every broker makes in its store folder.
_SIGNS = ("commitlog", "consumequeue", "config", "checkpoint", "abort", "lock")
_USUAL_NAME = "store"


def store_folder(folder: Path) -> Path:
    """The folder itself, or its ``store`` if only that looks like a store.

    `contrail dev --folder DIR` keeps the store in ``DIR/store``, and a broker by default in
    ``~/store``.
    """
    inner = folder / _USUAL_NAME
    return inner if not _is_store(folder) and _is_store(inner) else folder


def found_store(given: str | None) -> str | None:
    """The store folder for ``--store-path``."""
    return None if given is None else str(store_folder(Path(given)))


def _is_store(folder: Path) -> bool:
    try:
        return any((folder / name).exists() for name in _SIGNS)
    except OSError:
        # An unreadable folder is refused by name when it is opened.
        return False
