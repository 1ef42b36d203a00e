"""``NAME=VALUE`` on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from contrail.errors import OptionInvalid


def parse_pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """The values by name; if a name is given twice the last value counts.

    Raises:
        OptionInvalid: a piece has no name or no ``=``.
    """
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, found, value = text.partition("=")
        if not found or not name.strip():
            raise OptionInvalid(f"{option} {text!r} is not NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs
