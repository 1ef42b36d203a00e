"""A filter as the reader of records asks it: by the stored values of a few properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PropertySieve(NamedTuple):
    """The names whose values decide, and what they decide.

    A key of ``verdicts`` is the stored values in the names' order, joined by the byte that ends a
    property; a message without one has an empty value there, as no property can have.
    """

    names: tuple[bytes, ...]
    verdicts: Mapping[bytes, bool]
