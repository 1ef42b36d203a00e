"""How large the row groups of Parquet files are that hold messages.

A task gathers a row group in memory before it writes it, and looks at its size only every hundred
rows unless told otherwise: with bodies of a megabyte that alone is more than a small JVM has.
"""

from __future__ import annotations

ROW_GROUPS = {
    "parquet.block.size": str(32 << 20),
    "parquet.block.size.row.check.min": "8",
    "parquet.page.size.row.check.min": "8",
}
