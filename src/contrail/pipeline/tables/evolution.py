"""How the columns of a table may change.

    =============================  ==============================================================
    the new messages have          the table
    =============================  ==============================================================
    a column or field more         gets it, at the end; it is null in the rows before
    a column or field less         keeps it; it is null in the new rows
    a wider type                   Iceberg: gets it (``int`` to ``bigint``, ``float`` to
                                   ``double``, more digits of a decimal before the same scale);
                                   Delta and Parquet: refused
    a narrower type                keeps its own; the values fit into it
    any other type                 refused, before a file is written
    =============================  ==============================================================

A field that is renamed is one less and one more: the old one stays, with its values.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from contrail.errors import OptionInvalid


def require_evolvable(table: pa.Schema, messages: pa.Schema, *, widens: bool) -> bool:
    """Whether the table must change to take such messages.

    Raises:
        OptionInvalid: it cannot; the text names the field and both types.
    """
    return _changes(table, messages, "", widens)


def _changes(
    table: Iterable[pa.Field], messages: Iterable[pa.Field], path: str, widens: bool
) -> bool:
    known = {field.name: field.type for field in table}
    changed = False
    for field in messages:
        if field.name not in known:
            changed = True
        else:
            name = f"{path}{field.name}"
            changed |= _type_changes(known[field.name], field.type, name, widens)
    return changed


def _type_changes(old: pa.DataType, new: pa.DataType, name: str, widens: bool) -> bool:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _changes(old, new, f"{name}.", widens)
    if _is_list(old) and _is_list(new):
        return _type_changes(old.value_type, new.value_type, f"{name}[]", widens)
    if pa.types.is_map(old) and pa.types.is_map(new):
        keys = _type_changes(old.key_type, new.key_type, f"{name}{{}}", widens)
        return _type_changes(old.item_type, new.item_type, f"{name}{{}}", widens) or keys
    if _same(old, new) or _fits(new, old):
        return False
    if _fits(old, new) and widens:
        return True
    raise OptionInvalid(
        f"field {name!r} is {old} in the table and {new} in the messages: "
        + (
            "this format cannot widen a column; archive to Iceberg, or to a new table"
            if _fits(old, new)
            else "give the field another name, or archive to a new table"
        )
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _same(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether two types differ at most in how Arrow holds their values."""
    return bool(old.equals(new) or (_family(old) == _family(new) != ""))


def _family(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "binary"
    return "timestamp" if pa.types.is_timestamp(kind) else ""


def _fits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether each value of one type is a value of the other."""
    if pa.types.is_int32(narrow) and pa.types.is_int64(wide):
        return True
    if pa.types.is_float32(narrow) and pa.types.is_float64(wide):
        return True
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision <= wide.precision)
    return False
