"""The version of Contrail in this process, and whether its kernels are compiled."""

from __future__ import annotations

import sys

from contrail.kernels import interpreted_kernels, kernel_names

_PACKAGE = __name__.partition(".")[0]


def contrail_version() -> str:
    """The version of this package.

    The package is loaded, since this module is part of it. An import statement would tie this room
    to every public name that the package resolves lazily.
    """
    return str(sys.modules[_PACKAGE].__version__)


def interpreted_warning() -> str | None:
    """A server's warning about interpreted kernels for its operator; None if all are compiled."""
    names = interpreted_kernels()
    if not names:
        return None
    count = len(kernel_names())
    which = "all kernels are" if len(names) == count else f"{len(names)} of {count} kernels are"
    return (
        f"{which} interpreted, not compiled: this server is many times slower than it could be; "
        "install a wheel of this platform, or a C compiler and reinstall, and leave "
        "CONTRAIL_KERNELS=pure to tests (`contrail version` lists the kernels)"
    )
