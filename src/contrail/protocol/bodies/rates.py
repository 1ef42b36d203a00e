"""Figures that are no whole numbers: rates and mean times."""

from __future__ import annotations

from contrail.model.fastjson import FastJsonError, Fields


def read_rate(fields: Fields, name: str) -> float:
    """A number with or without decimals; 0 when absent.

    Raises:
        FastJsonError: it is no number.
    """
    value = fields.unknown(frozenset()).get(name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FastJsonError(f"{name} must be a number, it is {value!r}"[:120])
    return float(value)
