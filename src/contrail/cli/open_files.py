"""How many files and sockets this process may have open, and how many are left for connections."""

from __future__ import annotations

import dataclasses
import logging
import resource

from contrail.errors import ConfigError
from contrail.store.config import StoreConfig
from contrail.wire.limits import Limits

_log = logging.getLogger(__name__)

# Log segments, the tables, the event loop, outgoing connections, and Python's own files.
RESERVE = 200
# The lowest value of contrailOpenFilesMax.
STORE_OPEN_FILES_MIN = 8
# Fewer would not even serve an administrator's tools.
CONNECTION_COUNT_MIN = 16


def raise_open_files_limit() -> int:
    """Let the process open as many files as it may; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        # Some systems name a hard limit that they do not grant.
        _log.info("the limit of %d open files cannot be raised: %s", soft, error)
        return soft
    return hard


def store_within(store: StoreConfig, open_files: int) -> StoreConfig:
    """The store's settings, with ``contrailOpenFilesMax`` as high as the process can have it.

    Raises:
        ConfigError: the process may not even open the files that a broker needs to start.
    """
    if open_files == resource.RLIM_INFINITY:
        return store
    room = open_files - RESERVE - CONNECTION_COUNT_MIN
    if store.open_files_max <= room:
        return store
    if room < STORE_OPEN_FILES_MIN:
        raise ConfigError(
            f"contrailOpenFilesMax={store.open_files_max}, but the process may open {open_files} "
            f"files, and a broker needs {RESERVE + CONNECTION_COUNT_MIN + STORE_OPEN_FILES_MIN}: "
            "raise the hard limit (ulimit -Hn)"
        )
    # Connections want as much.
    lowered = min(room, (open_files - RESERVE) // 2)
    _log.warning(
        "contrailOpenFilesMax is %d, not %d: the process may open %d files; raise the hard limit "
        "(ulimit -Hn) or lower contrailOpenFilesMax",
        lowered,
        store.open_files_max,
        open_files,
    )
    return dataclasses.replace(store, open_files_max=lowered)


def limits_within(open_files: int, *, store_open_files_max: int = 0) -> Limits:
    """The bounds of a server whose process may open this many files.

    Beyond them the store would find no free descriptor, instead of the last client.
    """
    limits = Limits()
    reserve = store_open_files_max + RESERVE
    count_max = max(open_files - reserve, CONNECTION_COUNT_MIN)
    if open_files == resource.RLIM_INFINITY or count_max >= limits.connection_count_max:
        return limits
    _log.warning(
        "only %d connections are accepted, not %d: the process may open %d files and keeps %d for "
        "its own; raise the hard limit (ulimit -Hn)%s",
        count_max,
        limits.connection_count_max,
        open_files,
        reserve,
        " or lower contrailOpenFilesMax" if store_open_files_max else "",
    )
    return dataclasses.replace(limits, connection_count_max=count_max)
