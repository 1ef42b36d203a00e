"""Hot loops over bytes and integers: one job per file, compiled when a C compiler is there.

A kernel's extension is built next to its ``.py`` and wins the import. With
``CONTRAIL_KERNELS=pure`` in the environment the ``.py`` wins instead, so that the same tests can
be run against both.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from importlib.util import find_spec
from pkgutil import iter_modules

if os.environ.get("CONTRAIL_KERNELS") == "pure":
    # Python asks the finder cached for this folder, and this finder knows source files only.
    sys.path_importer_cache[__path__[0]] = FileFinder(
        __path__[0], (SourceFileLoader, SOURCE_SUFFIXES)
    )


def kernel_names() -> list[str]:
    """The kernels there are, sorted; imports none of them."""
    return sorted({module.name for module in iter_modules(__path__)})


def compiled_kernels() -> dict[str, bool]:
    """Load every kernel and say whether machine code runs (True) or the interpreter (False)."""
    return {name: _is_compiled(name) for name in kernel_names()}


@cache
def interpreted_kernels() -> tuple[str, ...]:
    """The kernels of which only Python's source would be loaded, or was; loads none of them."""
    return tuple(name for name in kernel_names() if not _has_machine_code(name))


def _has_machine_code(name: str) -> bool:
    found = find_spec(f"{__name__}.{name}")
    return found is not None and (found.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def _is_compiled(name: str) -> bool:
    loaded_from = import_module(f"{__name__}.{name}").__file__ or ""
    return loaded_from.endswith(tuple(EXTENSION_SUFFIXES))
