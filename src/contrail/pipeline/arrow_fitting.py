"""Arrow values in the exact types of a schema: columns and fields by name, missing ones null."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def fitted_batch(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with exactly these columns, cast and in this order."""
    columns = []
    for column in schema:
        index = rows.schema.get_field_index(column.name)
        if index < 0:
            columns.append(pa.nulls(rows.num_rows, column.type))
        else:
            columns.append(fitted_array(rows.column(index), column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def fitted_array(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as ``kind``; fields of structs are matched by name, missing ones are null."""
    if values.type.equals(kind, check_metadata=True):
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        children = [
            fitted_array(pc.struct_field(values, field.name), field.type)
            if values.type.get_field_index(field.name) >= 0
            else pa.nulls(len(values), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(
            children, fields=list(kind), mask=pc.is_null(values) if values.null_count else None
        )
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        inner = fitted_array(values.flatten(), kind.value_type)
        mask = pc.is_null(values) if values.null_count else None
        return pa.ListArray.from_arrays(_offsets(values), inner, type=kind, mask=mask)
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        entries = values.cast(pa.map_(kind.key_type, kind.item_type))
        mask = pc.is_null(entries) if entries.null_count else None
        flat = _whole(entries)
        return pa.MapArray.from_arrays(flat.offsets, flat.keys, flat.items, type=kind, mask=mask)
    return values.cast(kind)


def _offsets(values: pa.ListArray) -> pa.Array:
    """Offsets into ``values.flatten()``, which leaves out what nulls and slices hide."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])


def _whole(entries: pa.MapArray) -> pa.MapArray:
    """The same maps in an array that begins with its buffers, where offsets say all."""
    if entries.offset == 0:
        return entries
    whole: pa.MapArray = pa.concat_arrays([entries, entries.slice(0, 0)])
    return whole if whole.offset == 0 else pa.array(entries.to_pylist(), entries.type)


def united(known: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """The known columns, then the new ones; structs are united field by field."""
    return pa.schema(_united_fields(list(known), list(schema)))


def _united_fields(known: list[pa.Field], more: list[pa.Field]) -> list[pa.Field]:
    wanted = {field.name: field for field in more}
    fields = []
    for field in known:
        other = wanted.pop(field.name, None)
        if other is not None and pa.types.is_struct(field.type) and pa.types.is_struct(other.type):
            inner = _united_fields(list(field.type), list(other.type))
            fields.append(pa.field(field.name, pa.struct(inner)))
        else:
            fields.append(field)
    return fields + list(wanted.values())
