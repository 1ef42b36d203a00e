"""Opens the table of each format, whose library is an extra."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.errors import OptionInvalid
from contrail.pipeline.tables.contract import Format, Table
from contrail.pipeline.tables.places import Place


def table_at(place: Place, format: Format) -> Table:
    """The table of this format at a place.

    Raises:
        OptionInvalid: the format's library is not installed.
    """
    return _OPENERS[format](place)


def _iceberg(place: Place) -> Table:
    try:
        from contrail.pipeline.tables.iceberg import IcebergTable
    except ImportError as error:
        raise _missing("pyiceberg", "iceberg") from error
    return IcebergTable(place)


def _delta(place: Place) -> Table:
    try:
        from contrail.pipeline.tables.delta import DeltaFiles
    except ImportError as error:
        raise _missing("deltalake", "delta") from error
    return DeltaFiles(place)


def _parquet(place: Place) -> Table:
    from contrail.pipeline.tables.plain import PlainFiles

    return PlainFiles(place)


def _missing(library: str, extra: str) -> OptionInvalid:
    return OptionInvalid(f"this needs {library}: pip install contrail-mq[{extra}]")


_OPENERS: Mapping[Format, Callable[[Place], Table]] = {
    Format.ICEBERG: _iceberg,
    Format.DELTA: _delta,
    Format.PARQUET: _parquet,
}
