"""Exchanges two folders in one step, so that a reader lists the old files or the new."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from contrail.errors import OptionInvalid

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)


def swap_folders(one: Path, other: Path) -> None:
    """Exchange the names of two folders of one file system.

    Raises:
        OptionInvalid: the file system or the platform cannot exchange folders in one step.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise _cannot(one, "this platform has no renameat2")
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            raise _cannot(one, os.strerror(code))
        raise OSError(code, os.strerror(code), str(one))


def _cannot(folder: Path, why: str) -> OptionInvalid:
    return OptionInvalid(
        f"the file system of {str(folder)!r} cannot exchange two folders in one step ({why}), and "
        "without that a reader could see messages twice or not at all: compact the archive on "
        "Linux, on ext4, xfs, btrfs or tmpfs"
    )
