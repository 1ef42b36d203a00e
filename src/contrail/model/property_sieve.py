"""A filter in the form the record reader uses: verdicts by the stored values of properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PropertySieve(NamedTuple):
    """The property names whose values decide, and the verdicts.

    A key of ``verdicts`` is the stored values in the names' order, joined by the byte that ends a
    property; a missing property has an empty value, which no stored property has.
    """

    names: tuple[bytes, ...]
    verdicts: Mapping[bytes, bool]
    # The kernel that asks for verdicts keeps the last ones here.
    memory: bytearray
