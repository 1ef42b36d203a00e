"""``contrail.features``: names of what a release must understand to open a folder rightly.

A release that knew nothing of a name would read the folder wrongly without noticing. The file has
no backup: an older copy would lack a name. RocketMQ's brokers do not look at it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contrail.errors import FeatureRefused, StateFileDamaged
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_only_copy, write_only_copy

FEATURES_FILE = "contrail.features"
GROUP_FEATURE = "failover-group"
"""The folder of a failover group's member: its log may end with records that are cut later."""
KNOWN = frozenset({GROUP_FEATURE})

_VERSION = 1


def read_features(files: FileSystem, root: Path) -> frozenset[str]:
    """The names that a folder asks for; none in most folders.

    Raises:
        FeatureRefused: the file is damaged, so nothing may be taken for granted.
    """
    try:
        return read_only_copy(files, root / FEATURES_FILE, parse=_parse) or frozenset()
    except StateFileDamaged as error:
        raise FeatureRefused(f"{error}. It names what a release must know to open {root}") from None


def write_features(files: FileSystem, root: Path, names: frozenset[str]) -> None:
    """Replace the names; on return they are durable."""
    fields = {"version": _VERSION, "features": sorted(names)}
    write_only_copy(files, root / FEATURES_FILE, json.dumps(fields).encode())


def require_known(files: FileSystem, root: Path) -> frozenset[str]:
    """The names that a folder asks for, all of which this release knows.

    Raises:
        FeatureRefused: the folder asks for more.
    """
    names = read_features(files, root)
    unknown = sorted(names - KNOWN)
    if unknown:
        raise FeatureRefused(
            f"the store in {root} needs {', '.join(unknown)}, which this release does not know: "
            "open it with the release that wrote it, or a later one"
        )
    return names


def require_single(files: FileSystem, root: Path) -> None:
    """Raises ``FeatureRefused`` for a member's folder: a single broker would read it wrongly."""
    if GROUP_FEATURE in require_known(files, root):
        raise FeatureRefused(
            f"the store in {root} is a failover group's member: start its broker with "
            f"enableDLegerCommitLog=true, or run `contrail replication detach {root}` to make it a "
            "single broker's"
        )


def require_group(files: FileSystem, root: Path) -> None:
    """Note durably that a folder is a member's, unless that is noted already."""
    names = require_known(files, root)
    if GROUP_FEATURE not in names:
        write_features(files, root, names | {GROUP_FEATURE})


def _parse(data: bytes) -> frozenset[str]:
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["version"] != _VERSION:
            raise ValueError("its version is not one that this release can read")
        return frozenset(map(str, fields["features"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks a field or has an odd one: {error}") from error
